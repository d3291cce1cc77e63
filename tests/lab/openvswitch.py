"""Run Open vSwitch for tests: ovsdb-server and ovs-vswitchd in the test's network namespace, with private files.

    with Switch() as switch:
        switch.vsctl("list-br")
        switch.address          # the value of the key socket_file

By default the bridges use the userspace datapath, which needs no kernel module.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile

import pytest
from lab.node import eventually, links
from stopping import stop

PROGRAMS = ("ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovsdb-tool")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"

LACKS = "" if os.path.exists(SCHEMA) and all(shutil.which(name, path=PATH) for name in PROGRAMS) else (
    "needs Open vSwitch (Debian: openvswitch-switch)")
needs_ovs = pytest.mark.skipif(bool(LACKS), reason=LACKS)


class Switch:
    """A running Open vSwitch with the bridges `names`. datapath: "netdev", or "system" for the kernel's datapath."""

    def __init__(self, *names, datapath="netdev"):
        self.names, self.datapath = names, datapath
        # A short path, because a socket's path has at most 107 bytes
        self.directory = tempfile.mkdtemp(prefix="fcni-ovs-")
        self.socket, self.database = f"{self.directory}/db.sock", f"{self.directory}/conf.db"
        self.address = f"unix:{self.socket}"
        self.env = {**os.environ, "PATH": PATH, "OVS_RUNDIR": self.directory, "OVS_DBDIR": self.directory}
        self.processes = {}

    def __enter__(self):
        try:
            self.run("ovsdb-tool", "create", self.database, SCHEMA)
            self.start_ovsdb()
            self.vsctl("--no-wait", "init")
            self.start_vswitchd()
            for name in self.names:
                self.add_bridge(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in ("ovs-vswitchd", "ovsdb-server"):
            self.stop(name)
        shutil.rmtree(self.directory)

    def start(self, name, *args):
        with open(f"{self.directory}/{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen([name, *args, f"--unixctl={self.directory}/{name}.ctl"],
                                                    env=self.env,
                                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_ovsdb(self, *remotes):
        self.start("ovsdb-server", self.database, f"--remote=punix:{self.socket}",
                   *(f"--remote={remote}" for remote in remotes))
        assert eventually(self.listens), self.log("ovsdb-server")

    def listens(self):
        """Return whether the socket accepts connections. ovsdb-server binds its socket before it listens, so the file
        alone proves nothing."""
        with socket.socket(socket.AF_UNIX) as conn:
            return conn.connect_ex(self.socket) == 0

    def start_vswitchd(self):
        self.start("ovs-vswitchd", self.address, *(["--disable-system"] if self.datapath == "netdev" else []))

    def stop(self, name, how=signal.SIGKILL):
        process = self.processes.pop(name, None)
        if process:
            process.send_signal(how)
            process.wait()
        if name == "ovsdb-server" and os.path.exists(self.socket):
            os.unlink(self.socket)

    def freeze(self, name):
        stop(self.processes[name].pid)

    def thaw(self, name):
        self.processes[name].send_signal(signal.SIGCONT)

    def log(self, name):
        with open(f"{self.directory}/{name}.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self, *command):
        done = subprocess.run(command, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def vsctl(self, *args):
        return self.run("ovs-vsctl", f"--db={self.address}", "--timeout=20", *args)

    def add_bridge(self, name):
        self.vsctl("add-br", name, "--", "set", "Bridge", name, f"datapath_type={self.datapath}")
        assert eventually(lambda: name in links())

    def ports(self, bridge):
        return self.vsctl("list-ports", bridge).split()

    def row(self, table, name):
        """Return a row of the database as {column: value}: maps as dicts, sets as lists, a set with one member as this
        member."""
        found = json.loads(self.vsctl("--format=json", "list", table, name))
        return dict(zip(found["headings"], map(plain, found["data"][0]), strict=True))


def plain(value):
    if isinstance(value, list) and value[0] == "map":
        return dict(value[1])
    return value[1] if isinstance(value, list) and value[0] == "set" else value



def host_of(result):
    """Return the name of the pod's port, from the ADD's result."""
    return result["interfaces"][0]["name"]


def assert_nothing_is_left(node, switch, kept, pod=None):
    """Assert that the pod has left no port, link, file or address. kept: links that may remain."""
    assert switch.ports("br0") == []
    assert not [name for name in links() if name.startswith("veth")]
    assert kept() == []
    assert node.held() == {}
    if pod:
        assert "eth0" not in links(pod)
