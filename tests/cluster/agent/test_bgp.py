"""BGP through BIRD: the agent writes BIRD's configuration, and a host outside reaches a pod by the routes that BIRD
announces."""

import json
import signal
import socket
import subprocess
from ipaddress import ip_address, ip_network

import pytest
from lab.loggers import logger_to
from unit.agent.nodes import Machine

from fastcni.agent import bgp
from fastcni.agent.contract import ConfigurationError
from fastcni.daemon import log
from fastcni.kit.ipam.cluster.node_state import State
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, ip_json

FILE = {"as": 64512, "peers": [{"address": "192.0.2.254", "as": 64513, "password": "for tests only"},
                               {"address": "2001:db8::254", "as": 64513}]}


class Bird:
    """A BIRD process in a namespace."""

    def __init__(self, directory, netns, text):
        self.directory, self.netns, self.process = directory, netns, None
        directory.mkdir()
        self.socket, self.conf = directory / "bird.ctl", directory / "bird.conf"
        self.conf.write_text(text)

    def start(self):
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.netns, "bird", "-f", "-c", self.conf, "-s", self.socket, "-P",
                 self.directory / "pid"], stdout=log, stderr=log)
        assert eventually(self.answers), self.log()

    def answers(self):
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(str(self.socket)) == 0

    def log(self):
        return (self.directory / "log").read_text()

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
            self.process = None


ROUTER = """
router id 192.0.2.254;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel { ipv6 { import none; export all; }; }
protocol bgp node4 {
    local as 64513; neighbor 192.0.2.1 as 64512; password "for tests only"; ipv4 { import all; export none; };
}
protocol bgp node6 { local as 64513; neighbor 2001:db8::1 as 64512; ipv6 { import all; export none; }; }
"""


@pytest.fixture
def birds(host_netns, pod_netns, tmp_path):
    """Return (the router's BIRD, the node's BIRD, the node). The router is the test's namespace, which is not in the
    agents' network."""
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", "192.0.2.254/24", "dev", "wire")
    ip("addr", "add", "2001:db8::254/64", "dev", "wire", "nodad")
    node = Machine(1, pod_netns(), "wire")
    router = Bird(tmp_path / "router", host_netns, ROUTER)
    own = Bird(tmp_path / "own", node.netns, "protocol device {}\nprotocol kernel { ipv4 { export all; }; }\n"
               f'include "{tmp_path}/own/fastcni.con?";\n')
    yield router, own, node
    for bird in (router, own):
        bird.end()


def make(own, spaces=(), **more):
    path = own.directory / "bgp.json"
    path.write_text(json.dumps({**FILE, "config": f"{own.directory}/fastcni.conf", "socket": str(own.socket),
                                "spaces": list(spaces), **more}))
    log = []

    def note(event):
        log.append(event)

    found = bgp.Bgp(bgp.read_settings(str(path)), logger_to(note))
    found.events = log
    return found


def learned(family=4):
    return {route["dst"] for route in ip_json(f"-{family}", "route") if route.get("protocol") == "bird"}


@pytest.mark.needs("root")
def test_a_pod_is_reached_from_outside_until_the_node_leaves(birds, tmp_path):
    router, own, node = birds
    router.start()
    own.start()
    space = tmp_path / "space"
    it = make(own, [str(space)])
    subnets = [ip_network("10.244.1.0/24"), ip_network("fd00:10:244:1::/64")]
    it.set(subnets, ip_address("192.0.2.1"))
    assert it.events[-1]["event"] == "announced", it.events
    assert eventually(lambda: learned() == {"10.244.1.0/24"}, 60), router.log() + own.log()
    assert eventually(lambda: learned(6) == {"fd00:10:244:1::/64"}, 60)
    assert " 0% packet loss" in run("ping", "-c1", "-W2", "-q", "10.244.1.5")
    assert not [each for each in ip_json("route", netns=node.netns) if each.get("protocol") == "bird"]

    state = State({"node": "n"})
    state.add_block("10.99.0.64/26", 1, 0.0)
    (space / ".cluster").mkdir(parents=True)
    (space / ".cluster" / "blocks.json").write_text(json.dumps(state.to_dict()))
    it.due = 0.0
    it.attend()
    assert eventually(lambda: learned() == {"10.244.1.0/24", "10.99.0.64/26"}, 60)

    own.end()                               # BIRD restarts without the agent, and reads the file
    own.start()
    assert eventually(lambda: "10.99.0.64/26" in learned(), 60)
    it.settings = make(own).settings
    it.set([], ip_address("192.0.2.1"))
    assert eventually(lambda: learned() == learned(6) == set(), 60)


@pytest.mark.needs("root")
def test_without_bird_the_problem_is_told_once_and_tried_again(birds):
    router, own, _ = birds
    it = make(own)
    it.set([ip_network("10.244.1.0/24")], ip_address("192.0.2.1"))
    assert [event["event"] for event in it.events] == ["bgp_failed"]
    it.due = 0.0
    it.attend()
    assert len(it.events) == 1 and "does BIRD run" in it.events[0]["error"]
    own.start()
    router.start()
    it.due = 0.0
    it.attend()
    assert it.events[-1]["event"] == "announced"
    assert eventually(lambda: learned() == {"10.244.1.0/24"}, 60)


@pytest.mark.needs("root")
def test_what_bird_refuses_is_in_the_log(birds):
    _, own, _ = birds
    own.start()
    it = make(own)
    own.conf.write_text("nonsense\n")
    it.set([ip_network("10.244.1.0/24")], ip_address("192.0.2.1"))
    assert "BIRD refuses its configuration" in it.events[-1]["error"] and "syntax error" in it.events[-1]["error"]


def test_the_file_for_bird_is_written_for_its_group_only(tmp_path):
    path = tmp_path / "bgp.json"
    path.write_text(json.dumps({**FILE, "config": f"{tmp_path}/out.conf", "socket": f"{tmp_path}/none"}))
    it = bgp.Bgp(bgp.read_settings(str(path)), log.make("debug", "logfmt"))
    it.set([ip_network("10.244.1.0/24")], ip_address("192.0.2.1"))
    assert (tmp_path / "out.conf").stat().st_mode & 0o777 == 0o640
    text = (tmp_path / "out.conf").read_text()
    assert "route 10.244.1.0/24 blackhole;" in text and 'password "for tests only";' in text


@pytest.mark.parametrize(("change", "words"), [
    ({"as": 0}, "as: expected a number"), ({"as": "x"}, "as: expected a number"), ({"peers": None}, "bgp.json"),
    ({"peers": [{"as": 1}]}, "key 'address' is missing"), ({"peers": [{"address": "x", "as": 1}]}, "bgp.json"),
    ({"peers": [{"address": "192.0.2.1", "as": 1, "password": 'a"; x'}]}, "no quotes"),
    ({"peers": [{"address": "192.0.2.1", "as": 1, "passwd": "x"}]}, "peer 1: the key 'passwd' is not known"),
    ({"peers": [{"address": "192.0.2.1", "as": 1, "password": 5}]}, "peer 1: password: expected a text$"),
    ({"peers": {}}, "peers: expected a list"), ({"peers": ["192.0.2.1"]}, "peer 1: expected an object"),
    ({"spaces": "/x"}, "spaces: expected a list"), ({"pears": []}, "the key 'pears' is not known"),
    ({"router_id": "x"}, "bgp.json")])
def test_an_error_names_file_and_key(tmp_path, change, words):
    path = tmp_path / "bgp.json"
    path.write_text(json.dumps({**FILE, **change}))
    with pytest.raises(ConfigurationError, match=words):
        bgp.read_settings(str(path))
    with pytest.raises(ConfigurationError, match="No such file"):
        bgp.read_settings(str(tmp_path / "none"))


def test_a_node_without_ipv4_needs_a_router_id(tmp_path):
    path = tmp_path / "bgp.json"
    path.write_text(json.dumps({**FILE, "config": f"{tmp_path}/out.conf", "socket": f"{tmp_path}/none"}))
    it = bgp.Bgp(bgp.read_settings(str(path)), log.make("debug", "logfmt"))
    with pytest.raises(ConfigurationError, match="router_id"):
        it.set([ip_network("fd00::/64")], None)
