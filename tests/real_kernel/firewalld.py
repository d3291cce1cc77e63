"""A firewalld for tests: in the test's network namespace, with a private message bus and private files.

    with Firewalld(folder) as firewalld:
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
from real_kernel.node import eventually

needs_firewalld = pytest.mark.skipif(not (shutil.which("firewalld") and shutil.which("dbus-daemon")),
                                     reason="needs firewalld and dbus-daemon (Debian: firewalld, dbus)")
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
# It cannot reach the files of the machine, and mounts of pods' namespaces end there when they end here.
ALONE = "mount -t tmpfs none /run && mount -t tmpfs none /var/log && exec firewalld \"$@\""


class Bus:
    """A message bus: `path` of its socket."""

    def __init__(self, folder):
        self.path, self.conf = folder / "bus", folder / "bus.conf"
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
    process.kill()                      # stopped or not
    process.wait()


class Firewalld:
    """firewalld with its default zones. Packets that match no other zone belong to the default zone, which
    is `drop`."""

    def __init__(self, folder):
        self.bus, self.folder, self.log = Bus(folder), folder / "firewalld", folder / "firewalld.log"
        self.env, self.process = self.bus.env, None

    def __enter__(self):
        self.folder.mkdir(exist_ok=True)
        (self.folder / "firewalld.conf").write_text("DefaultZone=drop\nFirewallBackend=nftables\n")
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
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "slave", "sh", "-c", ALONE, "firewalld", "--nofork", "--nopid",
                 "--log-target", "console", "--system-config", self.folder],
                env={**os.environ, **self.env}, stdout=log, stderr=log)
        assert eventually(self.runs, 60), self.log.read_text()

    def stop(self):
        """Stop it as systemctl stop does: it removes its rules."""
        self.process.terminate()
        assert self.process.wait(60) == 0

    def client(self, *words, check=True):
        """Return the output of firewall-cmd."""
        done = subprocess.run(["firewall-cmd", *words], env={**os.environ, **self.env}, capture_output=True, text=True,
                              timeout=60)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def runs(self):
        """Return the state that firewall-cmd --state reports: is it running?"""
        try:
            return self.ask(Properties(DBusAddress(PATH, NAME, NAME)).get("state")) == ("s", "RUNNING")
        except DBusErrorResponse:           # no process has its name
            return False

    def sources(self, zone="trusted"):
        """Return the output of firewall-cmd --list-sources, which itself takes 0.2 s to start."""
        return set(self.ask(new_method_call(DBusAddress(PATH, NAME, f"{NAME}.zone"), "getSources", "s", (zone,))))

    def ask(self, message):
        """Return the body of the reply to a message on the bus."""
        with open_dbus_connection(f"unix:path={self.bus.path}") as connection:
            return unwrap_msg(connection.send_and_get_reply(message, timeout=60))[0]
