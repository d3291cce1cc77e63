"""Run a firewalld for tests in the test's network namespace, with a private message bus and private files.

    with Firewalld(directory) as firewalld:
        firewalld.env           # the environment that names that bus
"""

import os
import shutil
import socket
import subprocess

import pytest
from jeepney import DBusAddress, DBusErrorResponse, Properties, new_method_call
from jeepney.io.blocking import open_dbus_connection
from jeepney.wrappers import unwrap_msg
from lab.forked import ForkedFirewalld
from lab.node import elements, eventually, set_sysctl
from lab.portmap_chain import DUAL

from fastcni.kit.firewall.forward import firewalld as forward_firewalld

needs_firewalld = pytest.mark.skipif(not (shutil.which("firewalld") and shutil.which("dbus-daemon")),
                                     reason="needs firewalld and dbus-daemon (Debian: firewalld, dbus)")
SOURCES = {"10.22.0.2/32", "fd00:22::2/128"}            # addresses of the first pod on the bridge
NAME, PATH = "org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1"
BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/> <allow own="*"/>
    <allow send_type="method_call"/> <allow send_type="signal"/>
    <allow send_type="method_return" send_requested_reply="true"/>
    <allow send_type="error" send_requested_reply="true"/>
    <allow receive_type="method_call"/> <allow receive_type="signal"/>
    <allow receive_type="method_return"/> <allow receive_type="error"/>
  </policy>
</busconfig>
"""
# With these mounts firewalld does not reach the machine's files, and does not keep pods' namespaces mounted.
ALONE = "mount -t tmpfs none /run && mount -t tmpfs none /var/log"


class Bus:
    """A D-Bus message bus. path: the path of its socket."""

    def __init__(self, directory):
        self.path, self.conf = directory / "bus", directory / "bus.conf"
        self.env = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={self.path}"}

    def __enter__(self):
        self.conf.write_text(BUS.format(path=self.path))
        self.path.unlink(missing_ok=True)
        self.process = subprocess.Popen(["dbus-daemon", f"--config-file={self.conf}", "--nofork", "--nopidfile"],
                                        stderr=subprocess.DEVNULL)
        try:
            assert eventually(self.listens), "dbus-daemon does not start"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)

    def listens(self):
        with socket.socket(socket.AF_UNIX) as conn:
            return conn.connect_ex(str(self.path)) == 0


def end(process):
    process.kill()                      # SIGKILL ends a stopped process, too
    process.wait()


class Firewalld:
    """firewalld with its default zones. Packets that match no other zone belong to the default zone, which is `drop`.
    backend: "nftables" or "iptables", which firewalld uses. prepare: shell commands in firewalld's mount namespace,
    before it starts."""

    def __init__(self, directory, backend="nftables", prepare=""):
        self.prepare = prepare
        self.bus, self.directory, self.log = Bus(directory), directory / "firewalld", directory / "firewalld.log"
        self.backend, self.env, self.process = backend, self.bus.env, None

    def __enter__(self):
        self.directory.mkdir(exist_ok=True)
        (self.directory / "firewalld.conf").write_text(f"DefaultZone=drop\nFirewallBackend={self.backend}\n"
                                                   "CleanupModulesOnExit=no\n")
        self.bus.__enter__()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            end(self.process)
        self.bus.__exit__()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = ForkedFirewalld(
                shutil.which("firewalld"), "--nofork", "--nopid", "--log-target", "console", "--system-config",
                self.directory, prepare=f"mount --make-rslave / && {self.prepare}{ALONE}",
                env={**os.environ, **self.env}, log=log)
        assert eventually(self.is_ready, 60), self.log.read_text()

    def stop(self):
        """Stop firewalld as systemctl stop does: firewalld removes its rules."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def client(self, *args, check=True):
        """Return the output of firewall-cmd."""
        done = subprocess.run(["firewall-cmd", *args], env={**os.environ, **self.env}, capture_output=True, text=True,
                              timeout=60)
        assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def is_ready(self):
        """Return whether firewalld is ready, as firewall-cmd --state reports it."""
        try:
            return self.ask(Properties(DBusAddress(PATH, NAME, NAME)).get("state")) == ("s", "RUNNING")
        except DBusErrorResponse:           # firewalld has not registered its name on the bus yet
            return False

    def sources(self, zone="trusted"):
        """Return the sources of a zone, as `firewall-cmd --list-sources` prints them. firewall-cmd takes 0.2 s to
        start, so ask by D-Bus."""
        return set(self.ask(new_method_call(DBusAddress(PATH, NAME, f"{NAME}.zone"), "getSources", "s", (zone,))))

    def ask(self, message):
        """Return the body of the reply to a message on the bus."""
        with open_dbus_connection(f"unix:path={self.bus.path}") as connection:
            return unwrap_msg(connection.send_and_get_reply(message, timeout=60))[0]


class Chain:
    """A chain of bridge and firewall. The plugins' environment names the test's bus."""

    def __init__(self, node, env):
        self.node, self.env = node, env
        self.first = node.conf(*DUAL, isDefaultGateway=True)
        set_sysctl("net/ipv6/conf/default/accept_dad", "0")

    def conf(self, **keys):
        """Return the configuration of firewall without prevResult."""
        conf = {"cniVersion": "1.1.0", "name": self.first["name"], "type": "firewall", "backend": "firewalld", **keys}
        return {key: value for key, value in conf.items() if value is not None}

    def of(self, pod, **keys):
        """Add a pod by bridge. Return firewall's configuration for the pod."""
        return self.conf(prevResult=self.node.add(self.first, pod), **keys)

    def at(self, *ips, **keys):
        """Return firewall's configuration for a pod with these addresses; the pod need not exist."""
        conf = self.conf(**keys)
        return {**conf, "prevResult": {"cniVersion": conf["cniVersion"], "ips": [{"address": ip} for ip in ips]}}

    def ok(self, command, conf, pod="", **more):
        """Make a call that must succeed. Return its JSON document."""
        return self.node.ok(command, conf, pod, env=self.env, **more)

    def add(self, pod, **keys):
        """Add a pod by both plugins. Return firewall's configuration, for CHECK and DEL."""
        conf = self.of(pod, **keys)
        assert self.ok("ADD", conf, pod) == conf["prevResult"]
        return conf

    def refused(self, command, conf, pod="", **more):
        """Make a call that must fail. Return its error document."""
        return self.node.refused(command, conf, pod, env=self.env, **more)


def owned():
    """Return the addresses for which fastcni has recorded an owner."""
    return set(elements("firewalld-sources4") + elements("firewalld-sources6"))


def set_timeout(monkeypatch, seconds=0.5):
    """Shorten the timeout of fastcni's calls to firewalld."""
    monkeypatch.setattr(forward_firewalld, "TIMEOUT_S", seconds)
