"""A node in network namespaces, for the tests of `fastcni why`. Fixtures make faults on the node and remove them.

    a, b    two pods on the bridge br0, with ipMasq and a server each; the TCP port 8080 of the node leads to b
    c       a pod of ptp, with a server
    x       a host outside, behind the link up0, with a server; it has no route to the pods
"""

import json
import os
import re
import subprocess
import uuid

import pytest
from unit.node.conftest import Answer

from fastcni.cli import entry_point
from fastcni.runtime import CNI, RuntimeConf
from fastcni.runtime.exec import InProcess
from fastcni.selftest.sockets import Server
from fastcni.testing.namespaces import Inside, add_netns, delete_netns, ip, run, set_lo_up
from fastcni.testing.witnesses import eventually, set_sysctl

HOST_PORT = 8080
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
RANGES = {"bridge": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
          "ptp": [[{"subnet": "10.89.0.0/24"}], [{"subnet": "fd00:89::/64"}]]}
OUTSIDE, OUTSIDE6, NODE, NODE6 = "192.0.2.2", "fd00:2::2", "192.0.2.1", "fd00:2::1"
SYSCTLS = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "0"}


class World:
    """The node and its surroundings. names: {"h", "a", ...: name of the namespace}. words: replacements in the commands
    of faults, for instance {va} for the host's end of pod a's veth pair. PODS: {network: letters of its pods}. SERVERS:
    letters of further namespaces that have a server."""

    PODS, SERVERS = {"bridge": "ab", "ptp": "c"}, "xh"

    def __init__(self, directory):
        self.directory, self.servers, self.names = directory, {}, {}
        self.conf_dir, self.cache = directory / "net.d", directory / "cache"
        self.conf_dir.mkdir()
        self.words, self.faulty = {}, True

    def build(self):
        tag = uuid.uuid4().hex[:6]
        for letter in ["h", "x", *"".join(self.PODS.values())]:
            self.names[letter] = f"fcni-why-{letter}-{tag}"
            add_netns(self.names[letter])
            with Inside(self.names[letter]):
                set_lo_up()
        with Inside(self.names["h"]):
            self._uplink()
            self.cni = CNI(["/nowhere"], str(self.conf_dir), str(self.cache), InProcess())
            for kind, pods in self.PODS.items():
                self._network(kind)
                for pod in pods:
                    self._pod(pod, kind)
            for letter in self.SERVERS:
                self._serve(letter)
            for name, value in SYSCTLS.items():
                set_sysctl(name, value)
        self.words |= {f"netns_{letter}": name for letter, name in self.names.items()}
        self.faulty = False

    def close(self):
        for server in self.servers.values():
            server.close()
        for name in self.names.values():
            delete_netns(name)

    def _uplink(self):
        ip("link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", self.names["x"])
        for end, netns, number in (("up0", self.names["h"], 1), ("eth0", self.names["x"], 2)):
            ip("addr", "add", f"192.0.2.{number}/24", "dev", end, netns=netns)
            ip("addr", "add", f"fd00:2::{number}/64", "dev", end, "nodad", netns=netns)
            ip("link", "set", end, "up", netns=netns)

    def _network(self, kind):
        plugin = {"type": kind, "ipMasq": True, "ipam": {
            "type": "host-local", "dataDir": str(self.directory / "data"), "ranges": RANGES[kind], "routes": ROUTES}}
        if kind == "bridge":
            plugin |= {"bridge": "br0", "isGateway": True}
        document = {"cniVersion": "1.0.0", "name": f"n-{kind}", "plugins": [
            plugin, {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}]}
        (self.conf_dir / f"10-{kind}.conflist").write_text(json.dumps(document))

    def _serve(self, letter):
        fd = os.open(f"/run/netns/{self.names[letter]}", os.O_RDONLY)
        try:
            self.servers[letter] = Server(fd)
        finally:
            os.close(fd)
        self.words[f"port_{letter}"] = self.servers[letter].port

    def _pod(self, letter, kind):
        self._serve(letter)
        mappings = [{"hostPort": HOST_PORT, "containerPort": self.servers[letter].port, "protocol": "tcp"}]
        runtime = RuntimeConf(f"pod-{letter}", f"/run/netns/{self.names[letter]}", "eth0", [
            ("IgnoreUnknown", "1"), ("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", f"web-{letter}")],
            {"portMappings": mappings} if letter == "b" else {})
        result = self.cni.add(self.cni.load(f"n-{kind}"), runtime)
        four, six = (each["address"].partition("/")[0] for each in result["ips"])
        host = next((it["name"] for it in result["interfaces"] if it["name"].startswith("veth")), "")
        mac = next(it["mac"] for it in result["interfaces"] if it.get("sandbox"))
        self.words |= {f"ip_{letter}": four, f"ip6_{letter}": six, f"v{letter}": host, f"mac_{letter}": mac}

    def say(self, text):
        return re.sub(r"\{(\w+)\}", lambda found: str(self.words[found[1]]), text)

    def shell(self, text):
        """Run a command on the node, or in pod a if it begins with "A: ". {x} is replaced by the word x."""
        netns = self.names["h"]
        if text[1:3] == ": ":
            netns, text = self.names[text[0].lower()], text[3:]
        with Inside(netns):
            run("sh", "-c", self.say(text))


@pytest.fixture(scope="module")
def worlds(request, tmp_path_factory):
    """Yield a function that returns the module's World. If a test has left a fault in it, the function makes a new
    World."""
    made = []

    def present():
        if not made or made[-1].faulty:
            if made:
                made.pop().close()
            made.append(getattr(request.module, "WORLD", World)(tmp_path_factory.mktemp("world")))
            made[-1].build()
        return made[-1]

    yield present
    for each in made:
        each.close()


@pytest.fixture
def world(worlds):
    return worlds()


@pytest.fixture
def why(world, capfd):
    """Return a function that runs `fastcni why` on the node, with --json or as text."""
    def call(*words, text=False):
        capfd.readouterr()
        words = [world.say(word) for word in words]
        places = ["--conf-dir", str(world.conf_dir), "--cache-dir", str(world.cache)]
        with Inside(world.names["h"]):
            status = entry_point.run(["why", *words, *places, *([] if text else ["--json"])])
        return Answer(status, *capfd.readouterr())
    return call


@pytest.fixture
def broken(world):
    """Yield a function broken(commands, undo) that makes a fault. After the test, the commands in undo remove it."""
    undone = []

    def make(commands, undo=()):
        world.faulty = True
        undone.extend(undo)
        for command in commands:
            world.shell(command)

    yield make
    for command in undone:
        world.shell(f"{command} 2> /dev/null || true")          # the command in `do` may have removed the fault already


class Case:
    """A fault. args: arguments of `why`. commands: they make the fault. hop: the hop at which the connection ends.
    says: texts that the fields of this end contain. mends: whether `do` is a command that repairs the fault. undo:
    commands that remove the rest of it, and that may fail."""

    def __init__(self, name, args, commands, hop, *says, mends=True, undo=(), needs=()):
        self.name, self.args, self.commands, self.hop, self.says = name, args.split(), commands, hop, says
        self.mends, self.undo, self.needs = mends, undo, needs


def cases(*found):
    return pytest.mark.parametrize("case", [pytest.param(each, id=each.name, marks=[
        pytest.mark.needs(*each.needs)] if each.needs else []) for each in found])


def check(case, why, world, broken):
    """Make the fault, and check that `why` reports it. Then run `do`, and check that the packet arrives."""
    broken(case.commands, case.undo)
    found = why(*case.args)
    assert found.status == 1, found.out
    document = found.document
    assert document["ends"] is not None, found.out
    assert document["ends"]["hop"] == case.hop, document["ends"]
    assert document["hops"][-1] == {"hop": case.hop, "ok": False}
    assert all(hop["ok"] for hop in document["hops"][:-1])
    text = " ".join(document["ends"].values())
    for each in case.says:
        assert world.say(each) in text, document["ends"]
    assert document["ends"]["do"]
    if case.mends:
        with Inside(world.names["h"]):
            done = subprocess.run(document["ends"]["do"], shell=True, capture_output=True, text=True)
        assert done.returncode == 0, f"{document['ends']['do']}: {done.stderr}"
        after = eventually(lambda: why(*case.args).status == 0, 4)
        assert after, f"after {document['ends']['do']}: {why(*case.args).document['ends']}"
        world.faulty = False


