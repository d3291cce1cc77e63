"""DHCP messages, and their IP, UDP and ARP packets."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.dhcp.clock import ADDRESS, MAC, SERVER, SERVER_MAC, Clock, new_client

from fastcni.dhcp import frames, packets
from fastcni.dhcp.lease import Lease, read_lease, result_of

MESSAGES = st.builds(packets.Message, st.sampled_from((1, 2)), st.integers(0, 0xFFFFFFFF), st.just(MAC),
                     st.dictionaries(st.integers(1, 254).filter(lambda code: code not in (52, 53)),
                                     st.binary(min_size=1, max_size=600), max_size=5).map(lambda o: o | {53: b"\2"}),
                     ciaddr=st.binary(min_size=4, max_size=4), yiaddr=st.binary(min_size=4, max_size=4))


def as_tuple(message):
    return message.op, message.xid, message.chaddr, message.options, message.ciaddr, message.yiaddr, message.flags


def test_the_bytes_of_a_discover():
    message = packets.Message(1, 0x01020304, MAC, {53: b"\1", 55: b"\3\1"})
    data = packets.encode(message)
    assert data[:12] == bytes.fromhex("01010600 01020304 00000000")
    assert data[12:28] == bytes(16) and data[28:34] == MAC and data[34:236] == bytes(202)
    assert data[236:248] == bytes.fromhex("63825363 350101 3702 0301 ff")
    assert len(data) == packets.MIN_BYTES


@given(MESSAGES)
def test_what_is_written_is_read_again(message):
    """The writer divides an option of more than 255 bytes, and the reader joins the parts (RFC 3396)."""
    assert as_tuple(packets.decode(packets.encode(message))) == as_tuple(message)


@given(st.binary(max_size=700))
def test_no_bytes_but_packet_errors(data):
    with_header = packets.encode(packets.Message(2, 1, MAC, {}))[:packets.HEADER.size] + data
    for each in (data, with_header):
        try:
            message = packets.decode(each)
        except packets.PacketError:
            continue
        assert message.kind in range(256)


@given(st.binary(max_size=200), st.booleans())
def test_no_packet_but_frame_errors(data, complete):
    for each in (data, b"\x45\0\0\xc8" + data):
        try:
            frames.payload(each, complete)
        except frames.FrameError:
            continue
    frames.conflicts(data, MAC, ADDRESS)


@given(st.lists(st.tuples(st.sampled_from((1, 3, 6, 15, 26, 33, 51, 54, 58, 59, 61, 119, 121)), st.binary(max_size=80)),
                max_size=8), st.sampled_from((packets.OFFER, packets.ACK, packets.NAK)))
def test_no_answer_of_a_server_crashes_a_client(options, kind):
    clock = Clock()
    client = new_client(clock)
    client.acquire()
    for step in (packets.OFFER, kind):
        found = {53: bytes((step,)), 54: SERVER, 1: b"\xff\xff\xff\0"} | dict(options)
        client.received(packets.Message(2, client.xid, MAC, found | {53: bytes((step,))}, yiaddr=ADDRESS), SERVER_MAC)
    while client.state == "probing":
        client.due()
    if client.lease:
        result_of(client.lease)
        client.due()


@pytest.mark.parametrize("cut", range(0, 240, 7))
def test_a_message_cut_short_is_an_error(cut):
    data = packets.encode(packets.Message(2, 1, MAC, {53: b"\2"}))
    with pytest.raises(packets.PacketError):
        packets.decode(data[:cut])


def test_options_continue_in_the_fields_for_names():
    """By option 52, the fields `sname` and `file` contain further options (RFC 2132, 9.3)."""
    head = packets.HEADER.pack(2, 1, 6, 0, 1, 0, 0, ADDRESS, ADDRESS, ADDRESS, ADDRESS, MAC,
                               b"\x0f\2cd\xff", b"\x0f\2ab\x33\4\0\0\0\x05\xff", packets.MAGIC)
    message = packets.decode(head + b"\x34\1\3\x35\1\2\xff")
    assert message.options[15] == b"abcd" and message.options[51] == b"\0\0\0\5"


def test_the_sum_of_a_udp_packet_is_right_and_checked():
    packet = frames.to_server(b"x" * 301, ADDRESS, SERVER)
    assert frames.checksum(packet[:20]) == 0
    assert frames.payload(packet, True) == b"x" * 301
    broken = packet[:-1] + b"y"
    with pytest.raises(frames.FrameError, match="checksum"):
        frames.payload(broken, True)
    # a veth passes the packet before a network card has computed the checksum
    assert frames.payload(broken, False)[-1:] == b"y"
    assert frames.payload(packet + b"padding", True) == b"x" * 301


def test_arp_shows_a_conflict():
    other = bytes.fromhex("020000000002")
    reply = struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 2, other, ADDRESS, MAC, bytes(4))
    assert frames.conflicts(reply, MAC, ADDRESS)
    assert frames.conflicts(frames.probe(other, ADDRESS), MAC, ADDRESS)     # the other host probes for the address
    assert not frames.conflicts(frames.probe(MAC, ADDRESS), MAC, ADDRESS)       # this host's own probe
    assert not frames.conflicts(frames.probe(other, SERVER), MAC, ADDRESS)


# What a lease gives a pod ----------------------------------------------------------------------------

def result(priority=0, **options):
    found = {int(name[1:]): content for name, content in options.items()}
    return result_of(Lease(ADDRESS, 24, SERVER, SERVER_MAC, found, MAC, 0.0), priority)


def test_routes_of_option_121_take_the_place_of_all_others():
    found = result(o3=SERVER, o33=bytes((9, 0, 0, 0, 10, 0, 0, 2)),
                   o121=bytes((0, 10, 0, 0, 3, 17, 172, 16, 128, 10, 0, 0, 4, 32, 1, 2, 3, 4, 0, 0, 0, 0)))
    assert found["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.0.0.3"}, {"dst": "172.16.128.0/17", "gw": "10.0.0.4"},
                               {"dst": "1.2.3.4/32", "gw": "0.0.0.0", "scope": 253}]
    assert found["ips"] == [{"address": "10.0.0.7/24", "gateway": "10.0.0.1"}]


def test_routes_of_option_33_have_classful_networks_and_come_before_the_default_route():
    found = result(o3=SERVER + ADDRESS, o33=b"".join(bytes((*first, 10, 0, 0, 2)) for first in (
        (9, 1, 1, 1), (172, 16, 1, 0), (192, 168, 7, 7), (0, 0, 0, 0))))
    assert [route["dst"] for route in found["routes"]] == ["9.0.0.0/8", "172.16.0.0/16", "192.168.7.0/24", "0.0.0.0/0"]


def test_each_route_has_the_mtu_and_the_priority():
    assert result(priority=9, o3=SERVER, o26=b"\x05\x78")["routes"] == [
        {"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400, "priority": 9}]
    assert "mtu" not in result(o3=SERVER, o26=b"\0\x10")["routes"][0]


def test_name_servers_and_domains_are_in_dns():
    search = b"\3eng\5apple\3com\0\x09marketing\xc0\x04"           # the example of RFC 3397
    assert result(o6=SERVER + ADDRESS, o15=b"example.org\0", o119=search)["dns"] == {
        "nameservers": ["10.0.0.1", "10.0.0.7"], "domain": "example.org",
        "search": ["eng.apple.com", "marketing.apple.com"]}


@pytest.mark.parametrize("content", [b"\xc0\x00", b"\xc0", b"\3ab", b"\0", b"\x80a\0", b"\1a\xc0\2\0"])
def test_a_bad_domain_ends_the_list(content):
    assert packets.domains(content) == []
    assert packets.domains(b"\1a\0" + content)[:1] == ["a"]


def test_the_host_bits_of_a_route_are_zero():
    route = bytes((20, 10, 1, 31, 10, 0, 0, 1))
    assert list(packets.classless_routes(route)) == [(b"\x0a\1\x10\0", 20, b"\x0a\0\0\1")]


def test_a_bad_route_ends_the_list():
    assert list(packets.classless_routes(bytes((33, 1, 2, 3, 4, 5, 6, 7, 8, 9)))) == []
    assert list(packets.classless_routes(bytes((24, 1, 2, 3, 10, 0)))) == []


@pytest.mark.parametrize("mask", [b"\xff\0\xff\0", b"\xff\xff", bytes(16)])
def test_a_netmask_that_is_none_is_refused(mask):
    with pytest.raises(packets.PacketError):
        read_lease(packets.Message(2, 1, MAC, {53: b"\5", 1: mask}, yiaddr=ADDRESS), MAC, 0.0)
