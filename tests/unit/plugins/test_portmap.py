"""portmap by nftables: which clients reach a host port, with which source addresses, other traffic, and each key."""

import shutil

import pytest
from lab.node import Inside, cid_of, elements, run, set_sysctl, sysctl
from lab.portmap_chain import BRIDGE, DUAL, EXTERNAL, NODE, POD, Chain, mapping
from lab.traffic import add_external, ask, is_refused, listen, no_bridge_netfilter

from fastcni.kit.firewall import port_flows

FAMILIES = pytest.mark.parametrize("family", [4, 6])
PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
needs_conntrack = pytest.mark.skipif(not shutil.which("conntrack"), reason="needs conntrack (Debian: conntrack)")


@pytest.fixture
def chain(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, hairpinMode=True))


# -- clients and their source addresses --------------------------------------------------------------------

@FAMILIES
@PROTOCOLS
def test_outside_client_reaches_the_pod_with_its_own_address(chain, pod, external, family, protocol):
    conf = chain.add(pod, mapping(protocol=protocol))
    with listen(pod, 80, protocol):
        assert ask(external, NODE[family], 8080, protocol) == EXTERNAL[family]
        chain.node.delete(conf, pod)
        assert ask(external, NODE[family], 8080, protocol, wait=0.3) is None


@FAMILIES
@PROTOCOLS
def test_the_node_itself_reaches_the_pod(chain, pod, external, family, protocol):
    chain.add(pod, mapping(protocol=protocol))
    with listen(pod, 80, protocol):
        assert ask(None, NODE[family], 8080, protocol) == NODE[family]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53"])
def test_localhost_reaches_the_pod(chain, pod, address):
    chain.add(pod, mapping())
    with listen(pod, 80):
        assert ask(None, address, 8080) == BRIDGE[4]


def test_localhost_of_ipv6_stays_with_the_node(chain, pod):
    """The kernel does not route packets from ::1. Either a server on the node answers, or the kernel refuses the
    connection immediately."""
    chain.add(pod, mapping())
    with listen(pod, 80), Inside(None):
        assert ask(None, "::1", 8080) is None
        with listen(None, 8080, address="::1"):
            assert ask(None, "::1", 8080) == "::1"


@FAMILIES
@pytest.mark.parametrize("plain", [True, False], ids=["without br_netfilter", "with br_netfilter and hairpinMode"])
def test_the_pod_and_another_pod_of_its_bridge_reach_it(chain, pod, pod_netns, external, family, plain):
    other = pod_netns()
    if plain:
        no_bridge_netfilter()
        chain.first["hairpinMode"] = False
    chain.add(pod, mapping())
    chain.add(other)
    with listen(pod, 80):
        for client in (pod, other):
            assert ask(client, NODE[family], 8080) == BRIDGE[family]
            assert ask(client, BRIDGE[family], 8080) == BRIDGE[family]


@FAMILIES
def test_a_pod_of_another_subnet_reaches_it_as_itself(chain, node, pod, pod_netns, external, family):
    other = pod_netns()
    chain.add(pod, mapping())
    node.add(node.conf("10.33.0.0/24", "fd00:33::/64", name="net-b", bridge="br1", isDefaultGateway=True), other)
    with listen(pod, 80):
        assert ask(other, NODE[family], 8080) == {4: "10.33.0.2", 6: "fd00:33::2"}[family]


def test_ptp_pods_reach_themselves_and_each_other(node, pod, pod_netns, external):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    chain = Chain(node, node.conf(*DUAL, type="ptp", routes=["0.0.0.0/0", "::/0"]))
    other = pod_netns()
    chain.add(pod, mapping())
    chain.add(other)
    with listen(pod, 80):
        for client in (pod, other):
            assert ask(client, NODE[4], 8080) is not None
            assert ask(client, NODE[6], 8080) is not None
        assert ask(None, "127.0.0.1", 8080) is not None
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]


def test_port_works_together_with_ip_masq(chain, node, pod, external):
    chain.first["ipMasq"] = True
    chain.add(pod, mapping())
    with listen(pod, 80), listen(external, 80):
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
        assert ask(pod, EXTERNAL[4], 80) == NODE[4]
        assert ask(pod, NODE[4], 8080) == BRIDGE[4]


# -- other traffic -----------------------------------------------------------------------------------------

@FAMILIES
def test_forwarded_traffic_to_the_same_port_of_others_is_not_redirected(chain, pod, pod_netns, external, family):
    """This is CVE-2025-67499, for clients outside, in the pod, and on the node."""
    beyond = add_external(pod_netns, "up1", "10.23.0", "fd00:23:", has_default_route=True)
    run("ip", "route", "add", "10.23.0.0/24", "via", NODE[4], netns=external)
    run("ip", "route", "add", "fd00:23::/64", "via", NODE[6], netns=external)
    chain.add(pod, mapping())
    address = {4: "10.23.0.9", 6: "fd00:23::9"}[family]
    with listen(pod, 80), listen(beyond, 8080):
        assert ask(external, address, 8080) == EXTERNAL[family]
        assert ask(pod, address, 8080) == POD[family]
        assert ask(None, address, 8080) == {4: "10.23.0.1", 6: "fd00:23::1"}[family]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_service_rule_of_another_program_takes_precedence(chain, pod, pod_netns, external, when):
    """CVE-2019-9946: a service may use an address of the node. The service's rule wins, whichever rule was installed
    first."""
    rules = """table ip services { chain pre { type nat hook prerouting priority dstnat;
               ip daddr 198.51.100.1 tcp dport 8080 dnat to 10.22.0.3:81
               }
               }"""
    other = pod_netns()
    if when == "before":
        run("nft", "-f", "-", stdin=rules)
    chain.add(pod, mapping(), mapping(8090, 80))
    chain.add(other)
    if when == "after":
        run("nft", "-f", "-", stdin=rules)
    with listen(pod, 80), listen(other, 81):
        assert ask(external, NODE[4], 8090) == EXTERNAL[4]
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
    with listen(other, 81):
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
        assert ask(external, NODE[4], 8090) is None


def test_other_ports_and_protocols_stay_with_the_node(chain, pod, external):
    chain.add(pod, mapping())
    with listen(pod, 80), listen(pod, 80, "udp"), listen(None, 80), listen(None, 8080, "udp"):
        assert ask(external, NODE[4], 80) == EXTERNAL[4]              # the node's own server answers
        assert ask(external, NODE[4], 8081, wait=0.3) is None
        assert ask(external, NODE[4], 8080, "udp") == EXTERNAL[4]


def spoof_localhost(pod):
    """Let the pod route packets to 127.0.0.1 through the bridge."""
    with Inside(pod):
        set_sysctl("net/ipv4/conf/eth0/route_localnet", "1")
    run("ip", "route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local", check=False, netns=pod)
    run("ip", "route", "add", "127.0.0.0/8", "via", BRIDGE[4], netns=pod)


def test_a_pod_does_not_reach_the_nodes_localhost(chain, pod):
    """CVE-2020-8558: route_localnet lets the pod connect to the node's 127.0.0.1. The guard rule prevents this."""
    chain.add(pod, mapping())
    spoof_localhost(pod)
    with listen(None, 9999, address="127.0.0.1"):
        assert ask(None, "127.0.0.1", 9999) == "127.0.0.1"
        assert ask(pod, "127.0.0.1", 9999, wait=0.5) is None
        run("nft", "flush", "chain", "inet", "fastcni", "loopback")
        assert ask(pod, "127.0.0.1", 9999) == POD[4]


def test_route_localnet_is_on_for_the_pods_link_alone(chain, pod, external):
    chain.add(pod, mapping())
    switched = {name: sysctl(f"net/ipv4/conf/{name}/route_localnet") for name in ("all", "default", "br0", "up0", "lo")}
    assert switched == {"all": "0", "default": "0", "br0": "1", "up0": "0", "lo": "0"}


def test_the_next_pod_adds_a_flushed_guard_again(chain, pod, pod_netns):
    chain.add(pod, mapping())
    before = run("nft", "list", "chain", "inet", "fastcni", "loopback")
    run("nft", "flush", "chain", "inet", "fastcni", "loopback")
    chain.add(pod_netns(), mapping(81))
    assert run("nft", "list", "chain", "inet", "fastcni", "loopback") == before
    assert "127.0.0.0/8 drop" in before


@pytest.mark.parametrize("keys, host_ip", [({"snat": False}, ""), ({}, NODE[4]), ({}, "::")])
def test_route_localnet_is_off_where_localhost_has_no_port(chain, pod, external, keys, host_ip):
    chain.add(pod, mapping(hostIP=host_ip), **keys)
    assert sysctl("net/ipv4/conf/br0/route_localnet") == "0"


# -- keys --------------------------------------------------------------------------------------------------

def test_only_host_ip_is_mapped(chain, pod, external):
    run("ip", "addr", "add", "198.51.100.2/24", "dev", "up0")
    chain.add(pod, mapping(hostIP="198.51.100.2"), mapping(8081, 80, hostIP="2001:db8::1"))
    with listen(pod, 80):
        assert ask(external, "198.51.100.2", 8080) == EXTERNAL[4]
        assert ask(None, "198.51.100.2", 8080) is not None
        assert ask(pod, "198.51.100.2", 8080) == BRIDGE[4]
        assert ask(external, NODE[6], 8081) == EXTERNAL[6]
        for address, port in ((NODE[4], 8080), (NODE[6], 8080), ("198.51.100.2", 8081), (BRIDGE[4], 8080)):
            assert ask(external if address != BRIDGE[4] else None, address, port, wait=0.3) is None


def test_host_ip_of_localhost_is_reached_only_from_the_node(chain, pod, external):
    chain.add(pod, mapping(hostIP="127.0.0.1"))
    with listen(pod, 80):
        assert ask(None, "127.0.0.1", 8080) == BRIDGE[4]
        assert ask(None, NODE[4], 8080, wait=0.3) is None
        assert ask(external, NODE[4], 8080, wait=0.3) is None


@pytest.mark.parametrize("host_ip, reached", [("0.0.0.0", 4), ("::", 6)])
def test_unspecified_host_ip_is_every_address_of_its_family(chain, pod, external, host_ip, reached):
    chain.add(pod, mapping(hostIP=host_ip))
    with listen(pod, 80):
        assert [ask(external, NODE[family], 8080, wait=5 if family == reached else 0.3) for family in (4, 6)] == \
            [EXTERNAL[family] if family == reached else None for family in (4, 6)]


def test_without_snat_only_other_hosts_reach_the_pod(chain, pod, external):
    no_bridge_netfilter()
    chain.add(pod, mapping(), snat=False)
    with listen(pod, 80):
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
        # the pod answers the node's address itself, so no connection is established
        assert ask(pod, NODE[4], 8080, wait=0.5) is None
        assert ask(None, "127.0.0.1", 8080, wait=0.5) is None
    assert elements("hairpins4") == []


@FAMILIES
def test_with_masq_all_every_client_has_the_nodes_address(chain, pod, external, family):
    chain.add(pod, mapping(), masqAll=True)
    with listen(pod, 80):
        assert ask(external, NODE[family], 8080) == BRIDGE[family]
        assert ask(pod, NODE[family], 8080) == BRIDGE[family]
        assert ask(None, "127.0.0.1", 8080) == BRIDGE[4]


def test_a_range_maps_each_of_its_ports(chain, pod, external):
    conf = chain.add(pod, mapping(9000, 7000, range=100))
    for n in (0, 50, 99):
        with listen(pod, 7000 + n):
            assert ask(external, NODE[4], 9000 + n) == EXTERNAL[4]
    with listen(pod, 7100):
        assert ask(external, NODE[4], 9100, wait=0.3) is None
    assert len(elements("hostports4")) == 100
    chain.node.check(conf, pod, conf["prevResult"])
    chain.node.delete(conf, pod)
    assert elements("hostports4") == elements("hairpins6") == elements("hostport-pods") == []


def test_pod_of_one_family_has_its_ports_in_that_one(chain, node, pod, external):
    chain.first["ipam"] = node.host_local("10.22.0.0/24")
    chain.add(pod, mapping())
    with listen(pod, 80):
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
        assert ask(external, NODE[6], 8080, wait=0.3) is None
    assert elements("hostports6") == []


def test_mapping_uses_the_interfaces_first_address_of_each_family(chain, node):
    conf = chain.portmap(mapping(), prevResult={
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "br0"}, {"name": "eth1", "sandbox": "/x"}, {"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.9.0.1/24", "interface": 0}, {"address": "10.9.0.2/24", "interface": 1},
                {"address": "10.9.0.3/24", "interface": 2}, {"address": "10.9.0.4/24", "interface": 2}]})
    node.add(conf, "pod")
    assert elements("hostports4") == [(("tcp", 8080), ("10.9.0.3", 80))]


def test_pod_without_mappings_adds_nothing(chain, node, pod):
    before = node.left()
    conf = chain.of(pod)
    with_pod = node.left()
    assert node.add(conf, pod) == conf["prevResult"]
    assert node.left() == with_pod
    node.check(conf, pod, conf["prevResult"])
    node.delete(conf, pod)
    node.delete(chain.first, pod)
    assert node.left()["rules"] == before["rules"]
    assert run("nft", "list", "tables") == ""


# -- conntrack entries -------------------------------------------------------------------------------------

class Kernel:
    """Determines which conntrack requests the kernel accepts. kind: "all", "old" for those that Linux before 6.8
    accepts, or "none" as a control."""

    def __init__(self, monkeypatch, kind):
        self.forgets = kind != "none"
        if kind == "old":
            monkeypatch.setattr(port_flows.wire, "succeeds", lambda *_: False)
        elif kind == "none":
            monkeypatch.setattr(port_flows, "with_warning", lambda *_: None)

    def ask_again(self, external, family, source):
        return ask(external, NODE[family], 8080, "udp", source=source, wait=5 if self.forgets else 0.5)


@pytest.fixture(params=["all", "old", "none"])
def kernel(request, monkeypatch):
    return Kernel(monkeypatch, request.param)


@FAMILIES
@pytest.mark.parametrize("host_ip", ["", "the node's"])
def test_udp_client_that_was_there_before_the_pod_finds_it(chain, pod, pod_netns, external, family, host_ip, kernel):
    source, asked, other = ("", 5555), mapping(protocol="udp", hostIP=host_ip and NODE[family]), pod_netns()
    chain.add(other, mapping(9))                # this ADD loads conntrack
    assert is_refused(external, NODE[family], 8080, source)     # conntrack has recorded the node as the target
    chain.add(pod, asked)
    with listen(pod, 80, "udp"):
        assert kernel.ask_again(external, family, source) == (EXTERNAL[family] if kernel.forgets else None)


@pytest.mark.parametrize("told", ["all", "no prevResult", "no mappings"])
@FAMILIES
def test_udp_client_that_never_stops_finds_the_next_pod(chain, pod, pod_netns, external, family, told, kernel):
    """No pod's ADD uses the port in between, so only DEL can delete the flow to the first pod."""
    other, source = pod_netns(), ("", 5555)
    of_other = chain.of(other, mapping(protocol="udp"))
    conf = chain.add(pod, mapping(protocol="udp"))
    with listen(pod, 80, "udp"):
        assert ask(external, NODE[family], 8080, "udp", source=source) == EXTERNAL[family]
    lacks = {"no prevResult": "prevResult", "no mappings": "runtimeConfig"}.get(told)
    chain.node.delete({key: conf[key] for key in conf if key != lacks}, pod)
    chain.node.add(of_other, other)
    with listen(other, 80, "udp"):
        assert kernel.ask_again(external, family, source) == (EXTERNAL[family] if kernel.forgets else None)


def flows_to(port, protocol="udp"):
    return [line for line in run("conntrack", "-L", "-p", protocol).splitlines() if f"dport={port} " in line]


@needs_conntrack
def test_flows_through_the_node_to_the_same_port_of_others_are_kept(chain, pod, pod_netns, external):
    """For example, a pod is a DNS server, and other pods query another DNS server."""
    with listen(external, 53, "udp"):
        other = pod_netns()
        chain.first["ipMasq"] = True
        chain.add(other)
        assert ask(other, EXTERNAL[4], 53, "udp") == NODE[4]
        assert ask(None, NODE[4], 53, "udp", wait=0.2) is None
        kept = [line for line in flows_to(53) if f"dst={EXTERNAL[4]}" in line]
        assert len(kept) == 1
        assert len(flows_to(53)) == 2
        conf = chain.add(pod, mapping(53, 53, "udp"))
        assert [f"dst={EXTERNAL[4]}" in line for line in flows_to(53)] == [True]
        chain.node.delete(conf, pod)
        assert [f"dst={EXTERNAL[4]}" in line for line in flows_to(53)] == [True]


@needs_conntrack
def test_del_of_a_pod_that_never_had_the_port_keeps_its_owners_flows(chain, node, pod, pod_netns, external):
    other = pod_netns()
    chain.add(pod, mapping(protocol="udp"))
    with listen(pod, 80, "udp"):
        assert ask(external, NODE[4], 8080, "udp") == EXTERNAL[4]
    refused = chain.of(other, mapping(protocol="udp"))
    assert cid_of(pod) in node.refused("ADD", refused, other)["msg"]
    node.delete(refused, other)
    assert len(flows_to(8080)) == 1
