"""Write and remove the systemd units of the warm server, of the dhcp daemon, and of the command that repeats the
install when the plugins' Python changes.

`fastcni install` writes the units and never runs systemctl. `fastcni uninstall` stops, disables and removes the units.
"""

from __future__ import annotations

import contextlib
import os
import string
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastcni.kit.call.files import make_directories
from fastcni.launcher import files, systemd_dhcp
from fastcni.launcher.install import InstallError

if TYPE_CHECKING:
    from fastcni.launcher.install import Installed

UNIT_DIR = "/etc/systemd/system"
NEXT = "systemctl daemon-reload && systemctl enable --now fastcni.socket fastcni-reinstall.path"
WRITTEN_BY = "# Written by `fastcni install --systemd`"
HEADER = f"{WRITTEN_BY}, which overwrites it. Put changes into {{unit}}.d/*.conf.\n"
STOP_S = 120                    # systemd's own limit for fastcni.service is 90 s
PROBE = "import fastcni.cli.serve, fastcni.server.service"

SOCKET = """\
[Unit]
Description=Socket of the fastcni server
Documentation=https://www.cni.dev/docs/spec/
# If the server cannot start, the socket fails immediately, too. Then plugins find no socket and run one-shot.

[Socket]
ListenSequentialPacket=/run/fastcni/fastcni.sock
# Root only. For other users: SocketMode=0666, DirectoryMode=0711, and --allow-uid for the server.
SocketMode=0600
DirectoryMode=0700
# Without this line, plugins would try a socket file that no server listens at.
RemoveOnStop=yes
# Requests wait here while the server restarts. net.core.somaxconn is the kernel's limit.
Backlog=4096

[Install]
WantedBy=sockets.target
"""

SERVICE = """\
[Unit]
Description=fastcni server: answers CNI plugins from one warm process
Documentation=https://www.cni.dev/docs/spec/
Requires=fastcni.socket
After=fastcni.socket
# systemd gives up within seconds if the server cannot start. Until then requests wait in the socket.
StartLimitIntervalSec=30
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
# Unlike the plugin files, the server needs the fastcni package in this Python. Do not remove it.
ExecStart={command}
Restart=on-failure
RestartSec=100ms
# The server notifies systemd when a worker has answered a test request. systemd ends a server that hangs: by SIGABRT,
# which logs the stack of each thread, or by SIGKILL. The callers of its requests stop waiting then.
WatchdogSec=60
TimeoutAbortSec=5
# After SIGTERM the server answers its running requests, for 80 s at most.
TimeoutStopSec=90
# SIGTERM goes to the server only, so that the IPAM plugins that it runs can finish.
KillMode=mixed
# Each request that runs or waits needs three descriptors.
LimitNOFILE=16384
OOMScoreAdjust=-500
# If the kernel kills one IPAM plugin for memory, the server and all other plugins continue.
OOMPolicy=continue

# SYS_ADMIN: setns(2) into pods. NET_ADMIN: links, addresses, nftables, sysctls. NET_RAW: the legacy iptables.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
# The server enters network namespaces. Other kinds are forbidden.
RestrictNamespaces=net
# iptables and third-party IPAM plugins need packet and raw sockets.
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6 AF_PACKET
# @system-service contains @process, which contains setns(2). bpf: the datapath "ebpf" of ptp. fs...: the server mounts
# its own procfs, in which it finds the sysctls of pods faster.
SystemCallFilter=@system-service bpf fsopen fsconfig fsmount
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native

# Not strict, and no PrivateTmp: a network's dataDir may be below /var, /run or /tmp, and one-shot plugins use the same
# files.
ProtectSystem=full
# Not yes: the Python of a virtual environment may be below /home.
ProtectHome=read-only
# No PrivateMounts, MountFlags=private or RootDirectory: later mounts in /run/netns must appear here.
# No ProtectKernelTunables: the server writes /proc/sys/net of the node and of pods. No ProtectProc: a CNI_NETNS may be
# /proc/PID/ns/net. No PrivateNetwork or PrivateUsers: the server works in the node's namespaces.
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# As PrivateDevices, plus the device of the tap plugin and the device of the latency request (--latency-request).
DevicePolicy=closed
DeviceAllow=/dev/net/tun rw
DeviceAllow=/dev/cpu_dma_latency w
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes

[Install]
# To start the server at boot instead of at the first request: systemctl enable fastcni.service
WantedBy=multi-user.target
Also=fastcni.socket
"""
# A path unit starts the repeated install. Unlike a hook of a package manager, a path unit works for all distributions
# and for interpreters without a package, and cannot make a package manager fail.
REINSTALL_PATH = """\
[Unit]
Description=Watch the Python that runs the fastcni plugins
Documentation=https://www.cni.dev/docs/spec/

[Path]
# systemd treats the replacement or removal of this file as a change, too.
PathChanged={interpreter}

[Install]
WantedBy=multi-user.target
"""
REINSTALL_SERVICE = """\
[Unit]
Description=Write the fastcni plugins again, because their Python has changed
Documentation=https://www.cni.dev/docs/spec/
# During an upgrade, Python may be incomplete for minutes. After 10 failed starts in an hour, systemd gives up, and
# `systemctl --failed` lists this unit.
StartLimitIntervalSec=1h
StartLimitBurst=10

[Service]
Type=oneshot
# Run the first Python that has the fastcni package: the Python of the last install, otherwise the distribution's.
ExecStart={command}
ExecStartPost=systemctl daemon-reload
ExecStartPost=systemctl --no-block try-restart {restarted}
Restart=on-failure
RestartSec=30s
TimeoutStartSec=300
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=read-only
"""
# $1: the interpreter of the last install, $2: the Python that has the package, the rest: the command's arguments.
REINSTALL = """\
old=$1 python=$2; shift 2; \
for p in "$python" /usr/bin/python3 /usr/local/bin/python3; do \
"$p" -Ic "import fastcni.cli.install" 2>/dev/null || continue; \
test -x "$old" && "$p" -I -m fastcni install "$@" --interpreter "$old" && exit; \
"$p" -I -m fastcni install "$@" && exit; \
done; \
echo "no Python here can install the fastcni plugins: install the fastcni package, then run: fastcni install $*" >&2; \
exit 1"""
UNITS = ("fastcni.socket", "fastcni.service", "fastcni-reinstall.path", "fastcni-reinstall.service")
PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+=,")      # characters that need no quotes
UNSAFE = frozenset("\"'\\")          # systemd rejects a program's path with these characters, see string_is_safe()
CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN")


def install_units(unit_dir: str | os.PathLike[str] = UNIT_DIR,
                  command: Sequence[str | os.PathLike[str]] | None = None, plugins: Installed | None = None,
                  names: Sequence[str] = (), *, dhcp: bool = False, dry_run: bool = False) -> list[str]:
    """Write the units, and replace old units in one step. Return the paths, beginning with the socket unit.

    unit_dir: the directory, which is created if it is missing. command: the server's command line, whose first item is
    an absolute path; by default the server in this Python. plugins: the result of the install, for the units that
    repeat the install; None: do not write these units. names: the requested CNI types, () for all. dhcp: also write the
    units of the dhcp daemon of `plugins`. Raises InstallError.
    """
    if command is None:
        command = own_command()
    unit_dir = os.path.abspath(unit_dir)
    texts = {"fastcni.socket": SOCKET, "fastcni.service": service(command)}
    if plugins:
        texts |= reinstall(plugins, unit_dir, names, command, dhcp)
        if dhcp:
            texts |= systemd_dhcp.texts(command_line([os.path.join(plugins.bin_dir, "dhcp"), "daemon"]))
    if dry_run:
        return [os.path.join(unit_dir, name) for name in texts]

    def write(name: str, path: str) -> None:
        files.write(path, (HEADER.format(unit=name) + texts[name]).encode(), 0o644)

    try:
        make_directories(unit_dir, 0o755)
        return files.replace(unit_dir, texts, write)
    except OSError as error:
        raise InstallError(f"write systemd units into {unit_dir}: {error}") from error


def reinstall(plugins: Installed, unit_dir: str, names: Sequence[str],
              server: Sequence[str | os.PathLike[str]], dhcp: bool = False) -> dict[str, str]:
    """Return the texts of the units that repeat an install when its interpreter changes. Raises InstallError."""
    words = ["--bin-dir", plugins.bin_dir, "--systemd", "--unit-dir", unit_dir]
    words += ["--netavark-dir", plugins.netavark_dir] if plugins.netavark_dir else []
    if "--idle-exit" in server:
        words += ["--idle-exit", os.fspath(server[server.index("--idle-exit") + 1])]
    for name in names:
        words += ["--plugin", name]
    restarted = ["fastcni.service", "fastcni-reinstall.path"]
    if dhcp:
        words.append("--dhcp")
        restarted.append(systemd_dhcp.NAMES[1])
    command = ["/bin/sh", "-c", REINSTALL, "fastcni-reinstall", plugins.interpreter, sys.executable, *words]
    return {"fastcni-reinstall.path": REINSTALL_PATH.format(interpreter=quoted_path(plugins.interpreter)),
            "fastcni-reinstall.service": REINSTALL_SERVICE.format(command=command_line(command),
                                                                  restarted=" ".join(restarted))}


def next_command(written: Sequence[str]) -> str:
    """Return the command line that enables the units at these paths."""
    return NEXT + (f" {systemd_dhcp.NAMES[1]}" if systemd_dhcp.enabled(written) else "")


def installed_units(unit_dir: str | os.PathLike[str] = UNIT_DIR) -> list[str]:
    """Return the paths of the units in a directory that `fastcni install` has written. Raises OSError."""
    names = (*UNITS, *systemd_dhcp.NAMES)
    return [path for path in (os.path.join(os.path.abspath(unit_dir), name) for name in names) if is_written(path)]


def is_written(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().startswith(WRITTEN_BY)
    except FileNotFoundError:
        return False


def remove_units(paths: Sequence[str]) -> list[str]:
    """Stop, disable and remove units. Return the names of the units that ran. Raises InstallError.

    remove_units() calls systemctl only for units that systemd has loaded from these files.
    """
    loaded = [os.path.basename(path) for path in paths if fragment(os.path.basename(path)) == os.path.realpath(path)]
    if loaded:
        systemctl("disable", "--now", *loaded)
    try:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    except OSError as error:
        raise InstallError(f"remove systemd units: {error}") from error
    if loaded:
        systemctl("daemon-reload")
    return loaded


def fragment(unit: str) -> str:
    """Return the real path of the file from which systemd has loaded a unit; "" without systemd, or if systemd has no
    such unit."""
    try:
        found = systemctl("show", "--property=FragmentPath", "--value", unit).strip()
    except InstallError:
        return ""
    return os.path.realpath(found) if found else ""


def systemctl(*words: str) -> str:
    """Run systemctl with the arguments `words`; return its output. Raises InstallError."""
    try:
        return subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=STOP_S, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise InstallError(f"systemctl {' '.join(words)}: {error.stderr.strip()}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"systemctl {' '.join(words)}: {error}") from error


def service(command: Sequence[str | os.PathLike[str]]) -> str:
    """Return the text of fastcni.service. Raise InstallError for a command that no unit can contain."""
    return SERVICE.format(command=command_line(command), capabilities=" ".join(CAPABILITIES))


def own_command() -> list[str]:
    """Return the command line that runs the server in this Python. Raise InstallError if the server cannot run in this
    Python."""
    if not os.path.isabs(sys.executable or ""):
        raise InstallError("this Python does not know its own path (sys.executable), so no unit can start it")
    python = [sys.executable, "-I"]
    try:
        subprocess.run([*python, "-c", PROBE], cwd="/", capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2]
        raise InstallError(f"{' '.join(python)} has no fastcni server: {last}; "
                           "install the package there with pip, because the unit ignores PYTHONPATH") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{' '.join(python)} does not run: {error}") from error
    return [*python, "-m", "fastcni", "serve"]


def command_line(arguments: Sequence[str | os.PathLike[str]]) -> str:
    """Return the arguments quoted for ExecStart= (systemd.service(5), "Command lines"; systemd.syntax(7), "Quoting").

    A dollar sign in the program's path cannot be escaped by doubling, so the prefix ":" turns the expansion of
    variables off.
    """
    words = [os.fspath(argument) for argument in arguments]
    if not os.path.isabs(words[0]):
        raise InstallError(f"a unit needs the absolute path of its program, not {words[0]!r}")
    if set(words[0]) & UNSAFE:
        raise InstallError(f"systemd runs no program with a quote or a backslash in its path: {words[0]!r}")
    prefix = ":" if any("$" in argument for argument in words) else ""
    return prefix + " ".join(quoted(argument) for argument in words)


def quoted(argument: str) -> str:
    """Return one argument quoted. Raise InstallError if a unit cannot contain the argument."""
    if not argument.isprintable():      # also rejects bytes that are not UTF-8, which os.fsdecode turns into surrogates
        raise InstallError(f"a systemd unit cannot contain {argument!r}; use a path of printable characters")
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return argument if PLAIN.issuperset(argument) and argument else f'"{escaped}"'


def quoted_path(path: str) -> str:
    """Return a path for a unit's setting, with specifiers escaped by doubling. Raises InstallError."""
    if not path.isprintable() or path != path.strip():
        raise InstallError(f"a systemd unit cannot watch {path!r}; use a path of printable characters")
    return path.replace("%", "%%")
