"""Writes fastcni.socket and fastcni.service, by which systemd runs the warm server; never runs systemctl."""

import os
import string
import subprocess
import sys

from fastcni.kit.call.files import make_folders
from fastcni.launcher import files
from fastcni.launcher.install import InstallError

UNIT_DIR = "/etc/systemd/system"
NEXT = "systemctl daemon-reload && systemctl enable --now fastcni.socket"
PROBE = "import fastcni.cli.serve, fastcni.server.service"

SOCKET = """\
# Written by `fastcni install --systemd`, which replaces it; put changes into fastcni.socket.d/*.conf.
[Unit]
Description=Socket of the fastcni server
Documentation=https://www.cni.dev/docs/spec/
# When the server cannot be started the socket fails with it, at once: plugins find none and do their work themselves.

[Socket]
ListenSequentialPacket=/run/fastcni/fastcni.sock
# Root only. To serve others too: 0666, DirectoryMode=0711, and --allow-uid for the server.
SocketMode=0600
DirectoryMode=0700
# A socket file that nobody listens on is no harm, but costs each plugin a look.
RemoveOnStop=yes
# While the server restarts requests wait here. The kernel makes it net.core.somaxconn at most.
Backlog=4096

[Install]
WantedBy=sockets.target
"""

SERVICE = """\
# Written by `fastcni install --systemd`, which replaces it; put changes into fastcni.service.d/*.conf.
[Unit]
Description=fastcni server: answers CNI plugins from one warm process
Documentation=https://www.cni.dev/docs/spec/
Requires=fastcni.socket
After=fastcni.socket
# A server that cannot start gives up within seconds. While systemd tries again, requests wait in the socket.
StartLimitIntervalSec=30
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
# Unlike the plugin files, the server needs the installed package: fastcni in this Python, as long as the unit is used.
ExecStart={command}
Restart=on-failure
RestartSec=100ms
# The server tells systemd that a worker has answered a request. One that is stuck or stopped is ended by SIGABRT, which
# logs where its threads are, or SIGKILL. Its requests are lost, and their callers are told so instead of waiting.
WatchdogSec=60
TimeoutAbortSec=5
# It answers what it has begun, for 80 s at most.
TimeoutStopSec=90
# SIGTERM to the server alone: the IPAM plugins that it runs are to finish.
KillMode=mixed
# Three descriptors for each request that runs or waits.
LimitNOFILE=16384
OOMScoreAdjust=-500
# The death of one IPAM plugin is no reason to stop the others.
OOMPolicy=continue

# SYS_ADMIN: setns(2) into pods. NET_ADMIN: links, addresses, nftables, sysctls. NET_RAW: the legacy iptables.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
# setns() into network namespaces; no new ones of other kinds.
RestrictNamespaces=net
# Packets and raw sockets are for iptables and for the IPAM plugins of others.
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6 AF_PACKET
# setns is in @process, so in @system-service.
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native

# /var, /run and /tmp are the node's own, and writable: a network's dataDir may be there, and a plugin that goes
# one-shot has to find the same files. So neither PrivateTmp nor strict.
ProtectSystem=full
# Not yes: the Python of a virtual environment may be in there.
ProtectHome=read-only
# No PrivateMounts, MountFlags=private, RootDirectory: what is mounted in /run/netns later has to show up here.
# No ProtectKernelTunables: /proc/sys/net is written, the node's and the pods'. No ProtectProc: a CNI_NETNS may be
# /proc/PID/ns/net. No PrivateNetwork, no PrivateUsers: the node's are meant.
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
# PrivateDevices, but for what tap makes its devices with, and what keeps processors awake while requests come.
DevicePolicy=closed
DeviceAllow=/dev/net/tun rw
DeviceAllow=/dev/cpu_dma_latency w
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes

[Install]
# Only for a server that is there before the first request: systemctl enable fastcni.service
WantedBy=multi-user.target
Also=fastcni.socket
"""
PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+=,")      # mean nothing in a command line
UNSAFE = frozenset("\"'\\")          # in a program's path: refused by systemd itself, string_is_safe()
CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN")


def install_units(unit_dir=UNIT_DIR, command=None):
    """Write both units, each renamed into place; return their paths, socket first.

    unit_dir: made if it is not there. command: the words of the server's command line, the first an absolute path;
    by default this Python, which is asked whether it has the server. Raises InstallError.
    """
    if command is None:
        command = own_command()
    texts = {"fastcni.socket": SOCKET, "fastcni.service": service(command)}
    unit_dir = os.path.abspath(unit_dir)
    try:
        make_folders(unit_dir, 0o755)
        return files.replace(unit_dir, texts, lambda name, path: files.write(path, texts[name].encode(), 0o644))
    except OSError as error:
        raise InstallError(f"write systemd units into {unit_dir}: {error}") from error


def service(command):
    """The text of fastcni.service. Raises InstallError for a command that no unit can have."""
    return SERVICE.format(command=command_line(command), capabilities=" ".join(CAPABILITIES))


def own_command():
    """The server in this very Python, a virtual environment's where it is one. Raises InstallError."""
    if not os.path.isabs(sys.executable or ""):
        raise InstallError("this Python does not know where it is (sys.executable), so no unit can start it")
    python = [sys.executable, "-I"]
    try:
        subprocess.run([*python, "-c", PROBE], cwd="/", capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2]
        raise InstallError(f"{' '.join(python)} has no fastcni server: {last}; "
                           "install the package there (pip install), PYTHONPATH does not count") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{' '.join(python)} does not run: {error}") from error
    return [*python, "-m", "fastcni", "serve"]


def command_line(words):
    """Words as ExecStart= has them (systemd.service(5), "Command lines"; systemd.syntax(7), "Quoting").

    A dollar sign cannot be doubled in the program's path, so where there is one the prefix ":" takes its meaning away.
    """
    words = [os.fspath(word) for word in words]
    if not os.path.isabs(words[0]):
        raise InstallError(f"a unit starts a program by its absolute path, not {words[0]!r}")
    if set(words[0]) & UNSAFE:
        raise InstallError(f"systemd runs no program whose path has a quote or a backslash: {words[0]!r}")
    prefix = ":" if any("$" in word for word in words) else ""
    return prefix + " ".join(quoted(word) for word in words)


def quoted(word):
    if not word.isprintable():          # also bytes that are no UTF-8, which os.fsdecode makes surrogates of
        raise InstallError(f"a systemd unit cannot say {word!r}; use a path of printable characters")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return word if PLAIN.issuperset(word) and word else f'"{escaped}"'
