"""A socket with a filter: the messages that the kernel passes to it. The tests use the real kernel."""

from contextlib import closing

import pytest
from lab.node import links, run, set_sysctl

from fastcni.kernel import filters, rtnl, uapi, wire
from fastcni.server.requests.facts import NETCONF, ROUTE_GROUPS


@pytest.fixture
def listener(node):
    """Yield a socket that is in the groups of Facts and has no message. The namespace has two bridges."""
    for name in ("br-a", "br-b"):
        run("ip", "link", "add", name, "type", "bridge")
    sock = wire.open_socket(groups=ROUTE_GROUPS)
    yield sock
    sock.close()


def index_of(name):
    return links()[name]["ifindex"]


def received(sock):
    """Return the messages that wait in the socket, as [(kind, index of the link or None)]."""
    found = []
    while (messages := wire.receive(sock, 0)) is not None:
        found += [(kind, None if kind in NETCONF else rtnl.u32(payload[4:8])) for kind, _, _, _, payload in messages]
    return found


def indexes(sock):
    return {index for _, index in received(sock)}


def change_everything(name):
    run("ip", "link", "set", name, "mtu", "1400")
    run("ip", "addr", "add", "10.1.1.1/24", "dev", name)
    run("ip", "-6", "addr", "add", "2001:db8::1/64", "dev", name, "nodad")
    run("ip", "link", "set", name, "up")
    run("ip", "addr", "flush", "dev", name)


def test_without_a_filter_all_messages_are_received(listener):
    change_everything("br-a")
    change_everything("br-b")
    assert {index_of("br-a"), index_of("br-b")} <= indexes(listener)


def test_only_messages_about_a_watched_link_are_received(listener):
    watched = index_of("br-a")
    filters.attach(listener, filters.links((watched,)))
    change_everything("br-b")
    assert received(listener) == []
    change_everything("br-a")
    messages = received(listener)
    assert {(kind, watched) for kind in (uapi.RTM_NEWLINK, uapi.RTM_NEWADDR, uapi.RTM_DELADDR)} <= set(messages)
    run("ip", "link", "del", "br-b")
    run("ip", "link", "del", "br-a")
    messages += received(listener)
    assert (uapi.RTM_DELLINK, watched) in messages and {index for _, index in messages} == {watched}


def test_without_watched_links_no_message_about_a_link_is_received(listener):
    filters.attach(listener, filters.links(()))
    change_everything("br-a")
    assert received(listener) == []


@pytest.mark.parametrize("count", [2, 63, filters.MAX_LINKS])
def test_messages_about_each_of_many_links_are_received(listener, count):
    """The test covers the jumps of the BPF program for the first link, for the last link, and for a link that is not in
    the list."""
    run("ip", "link", "add", "br-c", "index", "5000", "type", "bridge")
    received(listener)
    for first, passes in ((5000, True), (5000 - count + 1, True), (5001, False), (5000 - count, False)):
        filters.attach(listener, filters.links(range(first, first + count)))
        change_everything("br-c")
        assert indexes(listener) == ({5000} if passes else set())


@pytest.mark.parametrize("name", ["net/ipv4/ip_forward", "net/ipv4/conf/all/forwarding",
                                  "net/ipv6/conf/all/forwarding"])
@pytest.mark.parametrize("count", [0, 1, filters.MAX_LINKS])
def test_forwarding_of_all_links_is_received_and_that_of_one_is_not(listener, name, count):
    index = index_of("br-a")
    filters.attach(listener, filters.links(range(index + 1, index + 1 + count)))
    set_sysctl("net/ipv4/conf/br-a/forwarding", "1")
    set_sysctl("net/ipv6/conf/br-a/forwarding", "1")
    assert received(listener) == []
    set_sysctl(name, "1")
    assert {kind for kind, _ in received(listener)} == {uapi.RTM_NEWNETCONF}


def test_only_messages_about_links_of_these_kinds_are_received(listener):
    filters.attach(listener, filters.link_kinds(("vxlan", "sit", "gretap")))
    change_everything("br-a")
    run("ip", "link", "add", "pair-a", "type", "veth", "peer", "name", "pair-b")
    run("ip", "link", "add", "tunnel-a", "type", "vxlan", "id", "1", "dstport", "4789")
    index = index_of("tunnel-a")
    run("ip", "link", "set", "tunnel-a", "up")
    run("ip", "link", "set", "pair-a", "up")
    run("ip", "link", "del", "tunnel-a")
    assert set(received(listener)) == {(uapi.RTM_NEWLINK, index), (uapi.RTM_DELLINK, index)}


@pytest.mark.parametrize("kinds", [("bridge", "vxlan"), ("gre", "vxlan"), ("a", "b", "bridge", "z")])
def test_the_program_of_kinds_passes_each_of_them(listener, kinds):
    filters.attach(listener, filters.link_kinds(kinds))
    change_everything("br-a")
    assert bool(received(listener)) == ("bridge" in kinds)


def test_only_deletions_are_received(node):
    run("ip", "link", "add", "br-a", "type", "bridge")
    index = index_of("br-a")
    with closing(wire.open_socket(groups=(uapi.RTNLGRP_LINK,))) as sock:
        filters.attach(sock, filters.deletions())
        run("ip", "link", "add", "br-b", "type", "bridge")
        change_everything("br-a")
        assert received(sock) == []
        run("ip", "link", "del", "br-a")
        assert set(received(sock)) == {(uapi.RTM_DELLINK, index)}


def test_a_port_that_leaves_its_bridge_is_not_deleted(node):
    """The bridge announces this with an RTM_DELLINK of AF_BRIDGE. Once, it woke a thread that waited for a deletion."""
    run("ip", "link", "add", "br-a", "type", "bridge")
    run("ip", "link", "add", "veth-a", "master", "br-a", "type", "veth", "peer", "name", "peer-a")
    index = index_of("veth-a")
    with closing(wire.open_socket(groups=(uapi.RTNLGRP_LINK,))) as sock:
        run("ip", "link", "set", "veth-a", "nomaster")
        assert (uapi.RTM_DELLINK, index) in received(sock)
        filters.attach(sock, filters.deletions())
        run("ip", "link", "set", "veth-a", "master", "br-a")
        run("ip", "link", "set", "veth-a", "nomaster")
        assert received(sock) == []
        run("ip", "link", "del", "veth-a")
        assert (uapi.RTM_DELLINK, index) in received(sock)
