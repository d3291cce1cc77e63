"""Fifty nodes announce their subnets to three route reflectors (two BIRD, one FRR), from which a router learns the
subnets.

docs/cluster-bgp.md has the reflectors' configurations.
"""

import contextlib
import json
import re
import shutil
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cluster.agent.test_bgp import Bird, learned
from cluster.agent.test_bgp_frr import Frr
from unit.agent.nodes import Machine

from fastcni.agent import bgp
from fastcni.daemon import log
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually, ip_json

NODES = 50
REFLECTORS = ["192.0.2.201", "192.0.2.202", "192.0.2.203"]
PAGE = Path(__file__).parents[3] / "docs/cluster-bgp.md"
ROUTER = """
router id 192.0.2.254;
protocol device {}
protocol direct { ipv4; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }
""" + "".join(f"protocol bgp from{number} {{ local as 64512; neighbor {address} as 64512; ipv4 {{ import all; }}; }}\n"
              for number, address in enumerate(REFLECTORS))


def of_page(program, address):
    """Return the reflector configuration that the docs show for `program`, with this router address."""
    found = re.search(rf"<!-- reflector: {program} -->\n+```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found[1].replace("192.0.2.201", address)


@contextlib.contextmanager
def running(*daemons):
    try:
        for daemon in daemons:
            daemon.start()
        yield
    finally:
        for daemon in daemons:
            daemon.end()
            if isinstance(daemon, Frr):
                shutil.rmtree(daemon.directory)


def reflector(number, netns, directory):
    """Return the reflector with this number. Do not start it."""
    ip("link", "add", f"wire{number}", "master", "wire", "up", "type", "veth", "peer", "eth0", "netns", netns)
    ip("addr", "add", f"{REFLECTORS[number]}/24", "dev", "eth0", netns=netns)
    ip("link", "set", "eth0", "up", netns=netns)
    if number < 2:
        return Bird(directory / f"reflector{number}", netns, of_page("BIRD", REFLECTORS[number]))
    found = Frr(netns)
    (found.directory / "bgpd.conf").write_text(of_page("FRR", REFLECTORS[number]))
    return found


def announcing(number, bird):
    """Announce a node's subnets as the node's agent does."""
    path = bird.directory / "bgp.json"
    path.write_text(json.dumps({"as": 64512, "config": f"{bird.directory}/fastcni.conf", "socket": str(bird.socket),
                                "peers": [{"address": address, "as": 64512} for address in REFLECTORS]}))
    it = bgp.Bgp(bgp.read_settings(str(path)), log.make("debug", "logfmt"))
    it.set([ip_network(f"10.244.{number}.0/24")], ip_address(f"192.0.2.{number}"))
    return it


@pytest.mark.needs("root")
def test_a_router_has_the_routes_of_fifty_nodes_while_one_reflector_lives(host_netns, pod_netns, tmp_path):
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", "192.0.2.254/24", "dev", "wire")
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    reflectors = [reflector(number, pod_netns(), tmp_path) for number in range(3)]
    machines = [Machine(number, pod_netns(), "wire") for number in range(1, NODES + 1)]
    for machine in machines:
        ip("route", "add", "default", "via", "192.0.2.254", netns=machine.netns)
    own = [Bird(directory := tmp_path / f"node{machine.number}", machine.netns,
                f'protocol device {{}}\ninclude "{directory}/fastcni.con?";\n') for machine in machines]
    router = Bird(tmp_path / "router", host_netns, ROUTER)
    subnets = {f"10.244.{number}.0/24" for number in range(1, NODES + 1)}
    with running(*reflectors, *own, router):
        agents = [announcing(machine.number, bird) for machine, bird in zip(machines, own, strict=True)]
        assert eventually(lambda: learned() == subnets, 60), (learned() ^ subnets, router.log())
        for number in range(3):
            assert eventually(lambda number=number: routes_from(router, number) == NODES, 60), number
        assert {route["gateway"] for route in ip_json("route") if route.get("protocol") == "bird"} == {
            f"192.0.2.{number}" for number in range(1, NODES + 1)}              # the next hops are the nodes
        assert " 0% packet loss" in run("ping", "-c1", "-W2", "-q",
                                        "-I", "10.244.1.5", f"10.244.{NODES}.5", netns=machines[0].netns)
        for gone in reflectors[:2]:
            gone.end()
            assert eventually(lambda: protocols(router) == up(reflectors), 60), protocols(router)
            assert eventually(lambda: learned() == subnets, 60)     # BIRD replaces a route in two steps
        agents[6].set([], ip_address("192.0.2.7"))
        assert eventually(lambda: learned() == subnets - {"10.244.7.0/24"}, 60)


def up(reflectors):
    return {f"from{number}" for number, each in enumerate(reflectors)
            if (each.processes if isinstance(each, Frr) else each.process)}


def routes_from(router, number):
    """Return how many routes the router has learned from a reflector."""
    shown = run("birdc", "-s", str(router.socket), "show", "route", "protocol", f"from{number}", "count")
    return int(re.search(r"^(\d+) of", shown, re.MULTILINE)[1])


def protocols(router):
    """Return the names of the router's BGP sessions that are established."""
    shown = run("birdc", "-s", str(router.socket), "show", "protocols")
    return {line.split()[0] for line in shown.splitlines() if line.rstrip().endswith("Established")}
