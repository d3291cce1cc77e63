"""On the real kernel, find the link and the address by which a node reaches the other nodes."""

from ipaddress import ip_address, ip_network

import pytest
from unit.agent.nodes import conf, record

from fastcni.agent.backends import open_backend
from fastcni.agent.contract import ConfigurationError, Underlay
from fastcni.agent.underlay import Options, choose
from fastcni.testing.namespaces import Inside, ip

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def node(pod_netns):
    """Return a namespace with eth0, which has the default route, and eth1, which has addresses of two networks."""
    netns = pod_netns()
    for name, *texts in (("eth0", "192.0.2.1/24", "2001:db8::1/64"),
                         ("eth1", "198.51.100.1/24", "203.0.113.1/25", "2001:db8:1::1/64")):
        ip("link", "add", name, "type", "veth", "peer", f"{name}-peer", netns=netns)
        for end in (name, f"{name}-peer"):
            ip("link", "set", end, "up", netns=netns)
        for text in texts:
            ip("addr", "add", text, "dev", name, *(["nodad"] if ":" in text else []), netns=netns)
    ip("route", "add", "default", "via", "192.0.2.9", netns=netns)
    with Inside(netns):
        yield


@pytest.mark.parametrize(("options", "name", "own"), [
    ({}, "eth0", "192.0.2.1"),
    ({"iface": ["none", "eth1"]}, "eth1", "198.51.100.1"),
    ({"iface": ["203.0.113.1"]}, "eth1", "203.0.113.1"),
    ({"iface_regex": ["^wl", "eth1$"]}, "eth1", "198.51.100.1"),
    ({"iface_regex": [r"198\.51"]}, "eth1", "198.51.100.1"),
    ({"iface_can_reach": "203.0.113.77"}, "eth1", "198.51.100.1"),
    ({"iface_can_reach": "2001:db8:1::77"}, "eth1", "198.51.100.1"),
    ({"iface_can_reach": "10.99.0.1"}, "eth0", "192.0.2.1"),
    ({"public_ip": {4: ip_address("203.0.113.1")}}, "eth1", "203.0.113.1"),
    ({"public_ip": {4: ip_address("203.0.113.1")}, "iface": ["eth0"]}, "eth0", "192.0.2.1"),
], ids=str)
def test_a_link_is_chosen_as_the_options_say(node, options, name, own):
    found = choose(Options(**options), (4,))
    assert (found.name, str(found.addresses[4]), found.mtu) == (name, own, 1500)
    assert found.public[4] == options.get("public_ip", found.addresses)[4]
    assert found.addresses[4] in found.prefixes[4]


def test_both_families_are_of_one_link(node):
    found = choose(Options(), (4, 6))
    assert found.public == found.addresses == {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}
    assert found.prefixes == {4: ip_network("192.0.2.0/24"), 6: ip_network("2001:db8::/64")}


@pytest.mark.parametrize(("options", "text"), [
    ({"iface": ["none"]}, "no link reaches the other nodes"),
    ({"iface_regex": ["eth[0"]}, r'iface-regex "eth\[0": unterminated character set'),
    ({"iface_can_reach": "gateway.example"}, "iface-can-reach: 'gateway.example' does not appear to be"),
], ids=str)
def test_what_cannot_be_chosen_is_a_configuration_error(node, options, text):
    with pytest.raises(ConfigurationError, match=text):
        choose(Options(**options), (4,))


def test_a_link_without_an_address_of_the_family_is_refused(node):
    ip("addr", "flush", "dev", "eth1", "scope", "global")
    with pytest.raises(ConfigurationError, match='link "eth1" has no IPv6 address'):
        choose(Options(iface=["eth1"]), (6,))


def test_without_a_default_route_there_is_no_link(node):
    ip("route", "del", "default")
    with pytest.raises(ConfigurationError, match="there is no default route"):
        choose(Options(), (4,))


# -- the public address belongs to a router in front of the node ------------------------------------------------------

OWN, PUBLIC = ip_address("192.0.2.1"), ip_address("203.0.113.1")
BEHIND = Underlay("eth0", 1500, {4: OWN}, {4: PUBLIC}, {4: ip_network("192.0.2.0/24")})


@pytest.mark.parametrize("kind", ["vxlan", "ipip"])
def test_a_tunnel_is_sent_from_the_own_address(tmp_path, kind):
    backend = open_backend(conf(kind), BEHIND, str(tmp_path), publishes=True)
    (link,) = backend.state(record(1, kind, backend.data()), []).links
    assert link.settings["local"] == OWN


def test_others_derive_the_mac_of_the_public_address(tmp_path):
    mine = open_backend(conf(), BEHIND, str(tmp_path), publishes=False)
    other = open_backend(conf(), Underlay("eth0", 1500, {4: ip_address("198.51.100.2")},
                                          {4: ip_address("198.51.100.2")}, {4: ip_network("198.51.100.0/24")}),
                         str(tmp_path), publishes=False)
    state = other.state(record(2, "vxlan", {}), [record(1, "vxlan", {}, public={4: PUBLIC})])
    assert [each.mac for each in state.stations] == [mine.macs[4]]


def test_host_gw_refuses_a_public_address_that_the_link_does_not_have(tmp_path):
    with pytest.raises(ConfigurationError, match='"eth0" does not have the public IP'):
        open_backend(conf("host-gw"), BEHIND, str(tmp_path), publishes=True)
