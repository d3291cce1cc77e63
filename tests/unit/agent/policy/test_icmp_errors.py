"""ICMP errors about connections of restricted pods: whose errors the rules let pass. Needs root."""

import contextlib
import socket

import pytest
from unit.agent.policy import frames
from unit.agent.policy.frames import arrived, ipv4, ipv6, too_big
from unit.agent.policy.pods import ADDRESSES, FORWARDING, batch, mac_of_pod
from unit.agent.policy.test_ports import NO_EGRESS, NO_INGRESS, site  # noqa: F401

from fastcni.agent.policy import port_rules
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

MTU = 1300
IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_DO = 14, 10, 2             # linux/in.h
IPV6_MTU, IPV6_MTU_DISCOVER = 24, 23                            # linux/in6.h
LABELS = {"app": "db"}                                          # labels of a pod that NO_INGRESS selects


def begin(site, source, destination, port=90):          # noqa: F811
    """Let a pod send a datagram. Return the pod's socket, and the packet as an ICMP error quotes it."""
    with Inside(site.node.names[source]):
        it = socket.socket(socket.AF_INET6 if ":" in destination else socket.AF_INET, socket.SOCK_DGRAM)
    it.connect((destination, port))
    it.send(b"12345678")
    make = ipv6 if ":" in destination else ipv4
    frame = make(mac_of_pod(source), it.getsockname()[0], destination, (
        frames.UDP, it.getsockname()[1].to_bytes(2, "big") + port.to_bytes(2, "big") + (16).to_bytes(2, "big")
        + bytes(2) + b"12345678"))
    return it, frame[14:]


@pytest.mark.parametrize("family", (0, 1))
def test_an_error_from_a_pod_that_is_no_end_of_the_connection_is_no_part_of_it(site, family):       # noqa: F811
    """Otherwise any pod could tell another pod that its packets are too big, or that its destination is unreachable."""
    site.write(NO_INGRESS)
    for name in "ad":
        site.add(name)
    site.add("b", **LABELS)
    make, addresses = (ipv4, ipv6)[family], {name: each[family] for name, each in ADDRESSES.items()}
    it, packet = begin(site, "b", addresses["d"])
    with it:
        sent = {name: make(mac_of_pod(name), addresses[name], addresses["b"], too_big(packet, 1400), to=mac_of_pod("b"))
                for name in "ac"}
        last = frames.arp(mac_of_pod("c"), mac_of_pod("c"), ADDRESSES["c"][0])
        own = {"a": sent["a"]}
        assert arrived(own, *site.names("a", "b"), last, site.node.names["c"]) == set()
        # c is not a pod of the agent, so it may be a router
        assert arrived({"c": sent["c"]}, *site.names("c", "b"), last) == {"c"}
        to_node = make(mac_of_pod("d"), addresses["d"], addresses["b"], too_big(packet, 1290), to=site.gateway_mac("d"))
        frames.send(site.node.names["d"], to_node)
        assert eventually(lambda: mtu_of(it, family) == 1290)


@pytest.mark.parametrize("family", (0, 1))
def test_the_source_mac_of_a_pod_behind_a_link_of_its_own_makes_it_no_router_and_no_end(site, family):      # noqa: F811
    """Once, such a pod counted as a router if its source MAC was unknown, and as an end of the connection if the MAC
    was that end's."""
    site.write(NO_INGRESS)
    for name in "acd":
        site.add(name)
    site.add("b", **LABELS)
    make, addresses = (ipv4, ipv6)[family], {name: each[family] for name, each in ADDRESSES.items()}
    it, packet = begin(site, "b", addresses["c"])
    with it:
        before = mtu_of(it, family)
        for mac in (mac_of_pod("d"), "02:00:00:00:00:99", *map(mac_of_pod, "abc")):
            frames.send(site.node.names["d"], make(mac, addresses["d"], addresses["b"], too_big(packet, 1400),
                                                   to=site.gateway_mac("d")))
        assert site.arrived({}, "a", "c", "a") == set()  # by then the kernel has handled the forged errors
        assert mtu_of(it, family) == before


@pytest.mark.parametrize("family", (0, 1))
def test_the_end_of_a_connection_says_that_no_process_listens(site, family):        # noqa: F811
    site.write(NO_INGRESS)
    site.add("a")
    site.add("b", **LABELS)
    it, _ = begin(site, "b", ADDRESSES["a"][family], port=99)
    with it:
        it.settimeout(10)
        with pytest.raises(ConnectionRefusedError):
            it.recv(1)


def test_a_pod_without_egress_sends_no_errors_about_connections_of_others(site):       # noqa: F811
    site.write(NO_EGRESS)
    site.add("a", egress="none")
    it, packet = begin(site, "b", ADDRESSES["c"][0])
    with it:
        sent = {"error": ipv4(mac_of_pod("a"), ADDRESSES["a"][0], ADDRESSES["b"][0], too_big(packet),
                              to=mac_of_pod("b"))}
        assert site.arrived(sent, "a", "b", "c") == set()


def test_errors_from_outside_are_limited(site):        # noqa: F811
    site.write(NO_INGRESS)
    site.add("b", **LABELS)
    it, packet = begin(site, "b", ADDRESSES["c"][0])
    with it:
        burst = port_rules.ERRORS_BURST
        sent = {str(number): ipv4(mac_of_pod("c"), ADDRESSES["c"][0], ADDRESSES["b"][0], too_big(packet, 600 + number),
                                  to=mac_of_pod("b")) for number in range(10 * burst)}
        last = frames.arp(mac_of_pod("c"), mac_of_pod("c"), ADDRESSES["c"][0])
        assert burst <= len(arrived(sent, *site.names("c", "b"), last)) < 5 * burst


@pytest.mark.parametrize("name", "bd")
def test_the_path_mtu_is_found_through_a_router(site, pod_netns, name):        # noqa: F811
    """Pods without ingress, on a bridge and on a separate link, learn the path MTU from errors of a router and of the
    node."""
    router, outside = pod_netns(), pod_netns()
    batch(None, f"link add up0 type veth peer eth0 netns {router}", "addr add 10.0.9.1/24 dev up0",
          "addr add fd00:9::1/64 dev up0 nodad", "link set up0 up", "route add 10.0.10.0/24 via 10.0.9.2",
          "route add fd00:10::/64 via fd00:9::2", f"link add up1 mtu {MTU} type veth peer eth1 netns {outside}",
          "addr add 10.0.11.1/24 dev up1", "addr add fd00:11::1/64 dev up1 nodad", "link set up1 up")
    batch(router, "addr add 10.0.9.2/24 dev eth0", "addr add fd00:9::2/64 dev eth0 nodad", "link set eth0 up",
          f"link add eth1 mtu {MTU} type veth peer eth0 netns {outside}", "addr add 10.0.10.1/24 dev eth1",
          "addr add fd00:10::1/64 dev eth1 nodad", "link set eth1 up", "route add default via 10.0.9.1",
          "route add default via fd00:9::1")
    batch(outside, "addr add 10.0.10.2/24 dev eth0", "addr add fd00:10::2/64 dev eth0 nodad", "link set eth0 up",
          "addr add 10.0.11.2/24 dev eth1", "addr add fd00:11::2/64 dev eth1 nodad", "link set eth1 up",
          "route add default via 10.0.11.1", "route add default via fd00:11::1")
    with Inside(router):
        for path in FORWARDING:
            sysctl.write(path, "1")
    site.write(NO_INGRESS)
    site.add(name, **LABELS)
    for family, targets in enumerate((("10.0.10.2", "10.0.11.2"), ("fd00:10::2", "fd00:11::2"))):
        for target in targets:
            it, _ = begin(site, name, target)
            with it:
                discover = (socket.IPPROTO_IP, IP_MTU_DISCOVER) if not family else (socket.IPPROTO_IPV6,
                                                                                     IPV6_MTU_DISCOVER)
                it.setsockopt(*discover, IP_PMTUDISC_DO)
                assert eventually(lambda it=it, family=family: learned(it, family) == MTU), target


def learned(it, family):
    """Send a large datagram. Return the path MTU that the kernel then has."""
    # EMSGSIZE: the kernel knows the path MTU; ECONNREFUSED: the error of an earlier datagram
    with contextlib.suppress(OSError):
        it.send(bytes(1440))
    return mtu_of(it, family)


def mtu_of(it, family):
    return it.getsockopt(*((socket.IPPROTO_IP, IP_MTU), (socket.IPPROTO_IPV6, IPV6_MTU))[family])


