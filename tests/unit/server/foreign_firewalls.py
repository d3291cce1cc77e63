"""Other programs that begin to filter a node's forwarded packets: ufw, dockerd, firewalld, kube-proxy and commands by
hand. Each program runs in the test's network namespace and in its own mount namespace, so it changes nothing on the
machine. `with program(directory, kind) as again:` makes the program begin to filter. again() makes the program write
its rules again, as a reload does."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lab.firewalld import Firewalld
from lab.node import run, set_sysctl

from fastcni.testing.witnesses import eventually

PROGRAMS = {"nft": ("iptables", "ip6tables"), "legacy": ("iptables-legacy", "ip6tables-legacy")}
# Makes iptables, called by any name, the legacy program
LEGACY = "mount --bind /usr/sbin/xtables-legacy-multi /usr/sbin/xtables-nft-multi && "
KUBE_PROXY = """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""


def needs(*programs):
    missing = [name for name in programs if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@contextlib.contextmanager
def policy(directory, kind="nft"):
    """Set the policy DROP by hand, with iptables -P."""
    def again():
        for program in PROGRAMS[kind]:
            run(program, "-P", "FORWARD", "DROP")

    again()
    yield again


@contextlib.contextmanager
def kube_proxy(directory, kind="nft"):
    """Write kube-proxy's rules in the table filter, as on a node whose policy is DROP."""
    def again():
        for program in PROGRAMS[kind]:
            run(f"{program}-restore", "--noflush", stdin=KUBE_PROXY)        # kube-proxy does the same

    again()
    yield again


@contextlib.contextmanager
def ufw(directory, kind="nft"):
    """Run `ufw enable` with Debian's rules, which drop all forwarded packets except echo requests."""
    own = Path(directory) / "ufw"
    shutil.copytree("/etc/ufw", own)
    prepare = f"mount --bind {own} /etc/ufw && mount -t tmpfs none /run && {LEGACY if kind == 'legacy' else ''}"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{prepare}exec ufw "$@"', "sh"]

    def call(*args):
        """Run ufw, three times at most. ufw calls iptables-restore without -w, which fails if the server writes rules
        at the same moment."""
        for _ in range(3):
            with contextlib.suppress(AssertionError):
                return run(*command, *args)
        return run(*command, *args)

    call("--force", "enable")
    yield lambda *args: call(*(args or ("reload",)))
    call("disable")


@contextlib.contextmanager
def docker(directory, kind="nft"):
    """Run a dockerd that first switches on forwarding and then drops forwarded packets by the chain's policy."""
    set_sysctl("net/ipv4/ip_forward", "0")
    own = [where for where in ("/run", "/var/lib/docker", "/var/lib/containerd", "/etc/docker") if os.path.isdir(where)]
    prepare = "".join(f"mount -t tmpfs none {where} && " for where in own) + (LEGACY if kind == "legacy" else "")
    iptables = PROGRAMS[kind][0]
    with open(Path(directory) / "dockerd.log", "wb") as log:
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "sh",
             "-c", f"{prepare}exec dockerd --storage-driver vfs --group root"], stdout=log, stderr=log)
    try:
        assert eventually(lambda: "-P FORWARD DROP" in run(iptables, "-S", "FORWARD") or process.poll(), 60)
        assert process.poll() is None, (Path(directory) / "dockerd.log").read_text()[-2000:]
        yield lambda: None
    finally:
        process.kill()                  # the kernel then kills each process of its pid namespace
        process.wait()


@contextlib.contextmanager
def firewalld(directory, kind="nft", backend="iptables", reload="--reload"):
    """Run a firewalld whose default zone drops packets."""
    with Firewalld(Path(directory), backend, LEGACY if kind == "legacy" else "") as daemon:
        yield lambda: daemon.client(reload)


def firewalld_complete(directory, kind="nft"):
    """Return firewalld() whose reload is complete: it first removes all rules, and ends the connections that conntrack
    has."""
    return firewalld(directory, kind, reload="--complete-reload")


def firewalld_nftables(directory, kind="nft"):
    return firewalld(directory, kind, "nftables")


FIREWALLD = ("firewalld", "dbus-daemon")
FIREWALLS = {"policy": (policy, ()), "kube-proxy": (kube_proxy, ()), "ufw": (ufw, ("ufw",)),
             "docker": (docker, ("dockerd", "containerd")), "firewalld": (firewalld, FIREWALLD),
             "firewalld-complete-reload": (firewalld_complete, FIREWALLD),
             "firewalld-nftables": (firewalld_nftables, FIREWALLD)}
# firewalld with nftables uses no iptables, so it is tested once
EACH = [pytest.param(which, kind, id=f"{name}-{kind}", marks=needs(*PROGRAMS[kind], *programs))
        for name, (which, programs) in FIREWALLS.items() for kind in PROGRAMS
        if kind == "nft" or name != "firewalld-nftables"]
