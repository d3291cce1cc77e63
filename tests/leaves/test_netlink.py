"""Netlink messages byte for byte: against pyroute2, against what ip(8) and nft(8) sent, and against garbage."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaves import captured
from pyroute2.netlink.nfnetlink.nftsocket import nft_set_elem_list_msg, nft_set_msg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from fastcni._netlink import Batch, BatchFull, attribute_list, attributes, messages, read_ack, setns
from fastcni.kernel import nft, rtnl, uapi
from fastcni.kit.firewall import masquerade_nft, spoofcheck

NESTED = 0x8000
CAPACITY = 32768
HOST_MAC, POD_MAC = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
ERROR, DONE = 2, 3
CAPPED, TLVS = 0x100, 0x200


def rows(data):
    """Rows of four, as both sides of a comparison are shown."""
    return [data[i:i + 4].hex(" ") for i in range(0, len(data), 4)]


def golden(text):
    """Rows of four in a test, without the words behind '#'."""
    return [row.partition("#")[0].strip() for row in text.strip().splitlines()]


def one_message(batch):
    """The payload of the only message in a batch, as the kernel would be given it."""
    (_, _, _, _, payload), = messages(batch.finish())
    return payload


# -- golden bytes ------------------------------------------------------------------------------------------

def test_a_message_is_its_header_its_family_header_and_padded_attributes():
    batch = Batch(41).begin(16, uapi.NLM_F_ACK, b"\1\2\3\4", "try").text(3, "eth0").u8(4, 7).u16(5, 0x1234)
    batch.u32(6, 0x12345678).be16(7, 0x1234).be32(8, 0x12345678).be64(9, 0x123456789ABCDEF0).raw(10, b"\xaa\xbb\xcc")
    assert rows(batch.finish()) == golden("""
        5c 00 00 00             # length of all
        10 00 05 00             # type 16, flags REQUEST and ACK
        2a 00 00 00             # sequence 42
        00 00 00 00             # port: the kernel's
        01 02 03 04
        09 00 03 00             # text with its NUL, padded
        65 74 68 30
        00 00 00 00
        05 00 04 00             # u8
        07 00 00 00
        06 00 05 00             # u16, this machine's order
        34 12 00 00
        08 00 06 00             # u32
        78 56 34 12
        06 00 07 00             # u16, network order
        12 34 00 00
        08 00 08 00             # u32, network order
        12 34 56 78
        0c 00 09 00             # u64, network order
        12 34 56 78
        9a bc de f0
        07 00 0a 00
        aa bb cc 00
        """)


def test_a_nest_gets_its_length_and_its_mark_when_it_ends():
    batch = Batch().begin(16, 0, b"").nest(18).text(1, "veth").nest(2).u8(1, 1).end().end().u8(3, 2)
    assert rows(batch.finish())[4:] == golden("""
        1c 00 12 80             # 28 bytes: everything up to the last row but two
        09 00 01 00
        76 65 74 68
        00 00 00 00
        0c 00 02 80
        05 00 01 00
        01 00 00 00
        05 00 03 00
        02 00 00 00
        """)


def test_padding_is_zero_also_where_an_older_message_was():
    batch = Batch().begin(16, 0, b"").raw(1, b"\xff" * 400)
    batch.finish()
    batch.clear().begin(16, 0, b"").raw(1, b"\1")
    assert rows(batch.finish())[-1] == "01 00 00 00"


def test_messages_follow_each_other_with_their_own_lengths_and_sequences():
    batch = Batch(6).begin(16, 0, b"abcd").u8(1, 1).begin(17, 0, b"").begin(18, 0, b"").u32(1, 1)
    assert [(kind, sequence, len(payload)) for kind, _, sequence, _, payload in messages(batch.finish())] == [
        (16, 7, 12), (17, 8, 0), (18, 9, 8)]


# -- against pyroute2 --------------------------------------------------------------------------------------

def encoded_by_pyroute2(message, flags, kind=uapi.RTM_NEWLINK):
    message["header"].update({"type": kind, "flags": flags | 1, "sequence_number": 1, "pid": 0})
    message.encode()
    return bytes(message.data)


def without_nest_marks(data):
    """pyroute2 leaves NLA_F_NESTED out; ours of a veth are at fixed places."""
    data = bytearray(data)
    for at in (83, 99, 103):
        assert data[at] == 0x80
        data[at] = 0
    return bytes(data)


def test_a_veth_request_is_what_pyroute2_encodes():
    batch = rtnl.new_veth(Batch(), "veth01234567", "eth0", 9, host_mac=HOST_MAC, peer_mac=POD_MAC, mtu=1400, master=4)
    peer = {"attrs": [("IFLA_IFNAME", "eth0"), ("IFLA_ADDRESS", POD_MAC.hex(":")), ("IFLA_NET_NS_FD", 9),
                      ("IFLA_MTU", 1400)]}
    link = ifinfmsg()
    link["flags"] = link["change"] = 1
    link["attrs"] = [("IFLA_IFNAME", "veth01234567"), ("IFLA_ADDRESS", HOST_MAC.hex(":")), ("IFLA_MTU", 1400),
                     ("IFLA_MASTER", 4), ("IFLA_LINKINFO", {"attrs": [
                         ("IFLA_INFO_KIND", "veth"),
                         ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]})]
    theirs = encoded_by_pyroute2(link, rtnl.CREATE | uapi.NLM_F_ECHO)
    assert rows(without_nest_marks(batch.finish())) == rows(theirs)


def test_an_address_request_is_what_pyroute2_encodes():
    batch = rtnl.new_address(Batch(), 7, bytes((10, 22, 0, 5)), 16, broadcast=bytes((10, 22, 255, 255)))
    address = ifaddrmsg()
    address.update({"family": 2, "prefixlen": 16, "index": 7})
    address["attrs"] = [("IFA_LOCAL", "10.22.0.5"), ("IFA_ADDRESS", "10.22.0.5"), ("IFA_BROADCAST", "10.22.255.255")]
    assert rows(batch.finish()) == rows(encoded_by_pyroute2(address, rtnl.CREATE, uapi.RTM_NEWADDR))


@pytest.mark.parametrize("table", [254, 5000])
def test_a_route_request_is_what_pyroute2_encodes(table):
    batch = rtnl.route(Batch(), bytes((10, 9, 0, 0)), 24, index=7, gateway=bytes((10, 22, 0, 1)), metric=5, table=table,
                       source=bytes((10, 22, 0, 5)))
    route = rtmsg()
    route.update({"family": 2, "dst_len": 24, "table": table if table < 256 else 0, "proto": 3, "scope": 0, "type": 1})
    route["attrs"] = [("RTA_DST", "10.9.0.0"), ("RTA_GATEWAY", "10.22.0.1"), ("RTA_PREFSRC", "10.22.0.5"),
                      ("RTA_PRIORITY", 5), *([("RTA_TABLE", table)] if table > 255 else []), ("RTA_OIF", 7)]
    theirs = encoded_by_pyroute2(route, uapi.NLM_F_ACK | uapi.NLM_F_CREATE, uapi.RTM_NEWROUTE)
    assert rows(batch.finish()) == rows(theirs)


def test_pyroute2_reads_our_map_and_its_elements():
    batch = nft.add_set(Batch(), nft.NFPROTO_INET, "t", "pods4", key_type=nft.TYPE_IPADDR, key_size=4, set_id=1,
                        verdicts=True)
    found = nft_set_msg(batch.finish())
    found.decode()
    assert found.get_attr("NFTA_SET_TABLE") == "t"
    assert found.get_attr("NFTA_SET_NAME") == "pods4"
    assert found.get_attr("NFTA_SET_KEY_TYPE") == 7
    assert found.get_attr("NFTA_SET_KEY_LEN") == 4

    batch = nft.add_element(Batch(), nft.NFPROTO_INET, "t", "pods4", bytes((10, 22, 0, 5)), "c", "subnet")
    found = nft_set_elem_list_msg(batch.finish())
    found.decode()
    element, = found.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS")
    assert element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE") == bytes((10, 22, 0, 5))
    verdict = element.get_attr("NFTA_SET_ELEM_DATA").get_attr("NFTA_DATA_VERDICT")
    assert verdict.get_attr("NFTA_VERDICT_CHAIN") == "subnet"


# -- against ip(8) and nft(8) ------------------------------------------------------------------------------

def plain(message):
    """A decoded pyroute2 message as dicts, attributes in no order."""
    if isinstance(message, dict):
        fields = {key: value for key, value in message.items() if key not in ("attrs", "header", "__align")}
        return fields | {name: plain(value) for name, value in message.get("attrs", ())}
    return message


def test_ip_link_add_says_the_same_about_a_veth():
    ours = ifinfmsg(rtnl.new_veth(Batch(), "veth01234567", "eth0", 1, host_mac=HOST_MAC, peer_mac=POD_MAC,
                                  mtu=1400).finish())
    theirs = ifinfmsg(captured.IP_LINK_ADD)
    ours.decode()
    theirs.decode()
    ours, theirs = plain(ours), plain(theirs)
    peer = theirs["IFLA_LINKINFO"]["IFLA_INFO_DATA"]["VETH_INFO_PEER"]
    peer["IFLA_NET_NS_FD"] = peer.pop("IFLA_NET_NS_PID")       # we name a descriptor where it named process 1
    assert ours == theirs


def tree(data):
    """Attributes as [(type, bytes or tree)], read by nothing of fastcni's."""
    found = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        value = data[4:length]
        found.append((kind & 0x3FFF, tree(value) if kind & NESTED else value))
        data = data[length + 3 & ~3:]
    return found


def said_by_nft(ours, theirs, path=()):
    """Each of our attributes is among nft's with the same value; lists have the same entries in the same order."""
    if not isinstance(ours, list):
        assert ours == theirs, path
        return
    if all(kind == nft.NFTA_LIST_ELEM and isinstance(value, list) for kind, value in ours) and ours:
        assert len(ours) == len(theirs), path
        for i, ((_, a), (_, b)) in enumerate(zip(ours, theirs, strict=True)):
            said_by_nft(a, b, (*path, i))
        return
    theirs = dict(theirs)
    for kind, value in ours:
        if kind not in theirs:                  # flags that we write as zero and nft leaves out
            assert value == bytes(4), (*path, kind)
            continue
        said_by_nft(value, theirs[kind], (*path, kind))


def transaction(data):
    """{type: [attributes]} of what makes things; nft makes everything anew, so it flushes nothing."""
    found = {}
    for kind, _, _, _, payload in messages(data):
        if kind >> 8 == nft.NFNL_SUBSYS_NFTABLES and kind != nft.NFT_MSG_DELRULE:
            found.setdefault(kind, []).append((payload[:4], tree(payload[4:])))
    return found


def test_nft_says_the_same_about_masquerade():
    item = ("pods4", bytes((10, 22, 0, 5)), "subnet-10.16.0.0/12")
    batch = masquerade_nft.set_up(nft.start(Batch()), [item])
    name, key, chain = item
    nft.add_element(batch, nft.NFPROTO_INET, "fastcni", name, key, "net: a, if: eth0", chain)
    compare_transactions(nft.stop(batch).finish(), captured.NFT_INET)


def test_nft_says_the_same_about_macspoofchk():
    batch, port = spoofcheck.set_up(nft.start(Batch()), ()), b"veth0a1b2c3d\0\0\0\0"
    mac = bytes.fromhex("0a580a160005")
    nft.add_element(batch, nft.NFPROTO_BRIDGE, "fastcni", "guarded", port, "c")
    nft.add_element(batch, nft.NFPROTO_BRIDGE, "fastcni", "allowed", port + mac + b"\0\0", "c")
    compare_transactions(nft.stop(batch).finish(), captured.NFT_BRIDGE)


def compare_transactions(ours, theirs):
    ours, theirs = transaction(ours), transaction(theirs)
    assert ours.keys() == theirs.keys()
    for kind in ours:
        assert len(ours[kind]) == len(theirs[kind]), kind
        for (our_family, a), (family, b) in zip(ours[kind], theirs[kind], strict=True):
            assert our_family == family
            said_by_nft(a, b, (kind,))


# -- what a Batch refuses ----------------------------------------------------------------------------------

def test_an_open_nest_is_an_error():
    batch = Batch().begin(16, 0, b"").nest(18)
    with pytest.raises(ValueError, match="1 nested attributes still open"):
        batch.finish()
    with pytest.raises(ValueError, match="still open"):
        batch.begin(16, 0, b"")
    assert len(batch.end().finish()) == 20


def test_an_end_without_a_nest_is_an_error():
    with pytest.raises(ValueError, match="no nested attribute is open"):
        Batch().begin(16, 0, b"").end()


def test_sixteen_nests_fit_into_each_other_and_seventeen_do_not():
    batch = Batch().begin(16, 0, b"")
    for _ in range(16):
        batch.nest(1)
    with pytest.raises(ValueError, match="more than 16"):
        batch.nest(1)
    for _ in range(16):
        batch.end()
    assert len(batch.finish()) == 16 + 16 * 4


@pytest.mark.parametrize("write", [lambda b: b.u8(1, 1), lambda b: b.nest(1), lambda b: b.header(b"abcd")])
def test_an_attribute_needs_a_message(write):
    with pytest.raises(ValueError, match="call begin"):
        write(Batch())


def test_a_text_with_a_nul_is_refused():
    """The kernel would stop reading there: "eth0\\0x" would be about eth0."""
    with pytest.raises(ValueError, match="NUL"):
        Batch().begin(16, 0, b"").text(3, "eth0\0x")


@pytest.mark.parametrize("write, error", [
    (lambda b: b.u8(1, 256), OverflowError), (lambda b: b.u32(1, -1), OverflowError),
    (lambda b: b.u16(1, 1 << 16), OverflowError), (lambda b: b.u32(1, "1"), TypeError),
    (lambda b: b.text(1, b"x"), TypeError), (lambda b: b.raw(1, None), TypeError), (lambda b: b.raw(1, "x"), TypeError),
    (lambda b: b.text(1, "\ud800"), ValueError),
])
def test_a_value_of_another_kind_or_size_is_refused(write, error):
    batch = Batch().begin(16, 0, b"")
    with pytest.raises(error):
        write(batch)
    assert len(batch.finish()) == 16


def fill(batch, room):
    """Messages until `room` bytes are left."""
    batch.begin(16, uapi.NLM_F_ACK, b"", "fill").raw(1, bytes(CAPACITY - room - 16 - 4))


def test_a_batch_that_is_full_holds_the_whole_messages_before():
    """A batch used to be left with half of what did not fit, or to write a length behind its buffer."""
    batch = Batch()
    fill(batch, 40)
    with pytest.raises(BatchFull, match="32768"):
        batch.begin(17, uapi.NLM_F_ACK, b"", "too long").nest(1).raw(1, bytes(17))
    assert batch.asked == {1: "fill"}
    assert [len(payload) for *_, payload in messages(batch.finish())] == [CAPACITY - 40 - 16]
    batch.clear().begin(17, uapi.NLM_F_ACK, b"", "again").nest(1).raw(1, bytes(17)).end()
    assert batch.asked == {3: "again"}


@pytest.mark.parametrize("room", [0, 4, 8, 12, 16])
def test_a_header_that_does_not_fit_leaves_the_batch_as_it_was(room):
    batch = Batch()
    fill(batch, room)
    before = batch.finish()
    with pytest.raises(BatchFull):
        batch.begin(17, uapi.NLM_F_ACK, b"abcd", "too long")
    assert batch.finish() == before
    assert batch.asked == {1: "fill"}


def test_the_last_byte_of_a_batch_can_be_used():
    batch = Batch()
    fill(batch, 0)
    assert len(batch.finish()) == CAPACITY


def test_an_attribute_cannot_be_longer_than_its_length_field():
    with pytest.raises(BatchFull):
        Batch().begin(16, 0, b"").raw(1, bytes(0x10000))


# -- sequence numbers and what was asked -------------------------------------------------------------------

def test_only_what_the_kernel_will_answer_is_asked():
    batch = Batch().begin(16, uapi.NLM_F_ACK, b"", "one").begin(0x10, 0, b"").begin(18, uapi.NLM_F_DUMP, b"", "three")
    assert batch.asked == {1: "one", 3: "three"}


def test_sequences_go_on_through_clear_so_that_a_late_reply_is_noticed():
    batch = Batch().begin(16, uapi.NLM_F_ACK, b"", "one")
    asked = batch.asked
    batch.clear()
    assert batch.asked == {} and asked == {1: "one"} and batch.first == 1 and not batch
    batch.begin(16, uapi.NLM_F_ACK, b"", "two")
    assert batch.asked == {2: "two"} and batch


def test_clear_forgets_an_open_nest():
    batch = Batch().begin(16, 0, b"").nest(1)
    assert batch.clear().finish() == b""


# -- acknowledgements --------------------------------------------------------------------------------------

def tlvs(text=b"", offset=None):
    batch = Batch().begin(0, 0, b"")
    if text:
        batch.raw(1, text + b"\0")
    if offset is not None:
        batch.u32(2, offset)
    return batch.finish()[16:]


REQUEST = struct.pack("=IHHII", 28, 20, 5, 1, 0)


@pytest.mark.parametrize("flags, body", [
    (CAPPED | TLVS, REQUEST),                       # the request's header alone, whatever its length says
    (TLVS, REQUEST + b"x" * 12),                    # the whole request
], ids=["capped", "whole"])
def test_a_refusal_carries_the_kernels_text_and_the_offset(flags, body):
    payload = struct.pack("=i", -22) + body + tlvs(b"ipv4: Invalid prefix length", 17)
    assert read_ack(ERROR, flags, payload) == (22, "ipv4: Invalid prefix length", 17)


def test_an_ack_may_carry_a_warning():
    assert read_ack(ERROR, CAPPED | TLVS, bytes(4) + REQUEST + tlvs(b"deprecated")) == (0, "deprecated", 0)


def test_an_old_kernels_refusal_is_a_number():
    assert read_ack(ERROR, 0, struct.pack("=i", -17) + REQUEST + b"x" * 12) == (17, "", 0)


def test_the_end_of_a_dump_is_read_like_an_ack():
    assert read_ack(DONE, 2, bytes(4)) == (0, "", 0)
    assert read_ack(DONE, 2, b"") == (0, "", 0)
    assert read_ack(DONE, 2 | TLVS, struct.pack("=i", -22) + tlvs(b"Invalid header")) == (22, "Invalid header", 0)


@pytest.mark.parametrize("payload", [b"", b"abc", bytes(4), bytes(19)])
def test_an_ack_cut_short_is_never_taken_for_success(payload):
    with pytest.raises(ValueError, match="error message"):
        read_ack(ERROR, 0, payload)


def test_the_length_of_the_repeated_request_is_not_trusted():
    payload = bytes(4) + struct.pack("=IHHII", 0xFFFFFFFF, 20, 5, 1, 0) + tlvs(b"text")
    with pytest.raises(ValueError):
        read_ack(ERROR, TLVS, payload)


def test_the_smallest_number_is_a_refusal_too():
    assert read_ack(ERROR, CAPPED, struct.pack("=i", -(1 << 31)) + REQUEST)[0] == 1 << 31


# -- truncated and hostile input ---------------------------------------------------------------------------

@pytest.mark.parametrize("data, words", [
    (b"\x0f\0\0\0" + bytes(12), "message of 15 bytes at 0 in a datagram of 16"),        # shorter than a header
    (b"\x11\0\0\0" + bytes(12), "message of 17 bytes at 0 in a datagram of 16"),        # longer than the datagram
    (b"\xff\xff\xff\xff" + bytes(12), "message of 4294967295 bytes"),
    (bytes(16), "message of 0 bytes"),                                                  # would never come to an end
    (b"\x10\0\0\0" + bytes(12) + b"xyz", "3 stray bytes"),
    (b"abc", "3 stray bytes"),
])
def test_a_datagram_with_a_wrong_length_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        messages(data)


@pytest.mark.parametrize("data, words", [
    (b"\x03\0\1\0", "attribute of 3 bytes at 0 in 4"),
    (b"\x05\0\1\0", "attribute of 5 bytes at 0 in 4"),
    (bytes(4), "attribute of 0 bytes"),
    (b"\x04\0\1\0\x09\0\1\0abcd", "attribute of 9 bytes at 4 in 12"),
    (b"\x04\0\1\0ab", "2 stray bytes"),
])
def test_an_attribute_with_a_wrong_length_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        attribute_list(data)
    with pytest.raises(ValueError, match=words):
        attributes(data)


@pytest.mark.parametrize("offset", [5, -1, 1 << 40, (1 << 63) - 1])
def test_attributes_begin_within_the_bytes(offset):
    with pytest.raises(ValueError, match="in 4 bytes"):
        attributes(b"\x04\0\1\0", offset)


def test_the_last_attribute_may_lack_its_padding():
    assert attribute_list(b"\x05\0\1\0x") == [(1, b"x")]
    assert messages(b"\x11\0\0\0" + bytes(12) + b"x") == [(0, 0, 0, 0, b"x")]


def test_flags_are_stripped_and_of_twins_the_last_one_counts():
    data = b"\x05\0\1\x80x\0\0\0\x05\0\1\x40y\0\0\0"
    assert attribute_list(data) == [(1, b"x"), (1, b"y")]
    assert attributes(data) == {1: b"y"}


@pytest.mark.parametrize("function", [messages, attributes, attribute_list])
def test_only_bytes_are_read(function):
    for wrong in (None, "text", bytearray(16), memoryview(b"")):
        with pytest.raises(TypeError):
            function(wrong)


ATTRIBUTE = st.builds(lambda kind, value, short: struct.pack("=HH", len(value) + 4 - short, kind) + value
                      + bytes(-len(value) % 4), st.integers(0, 50) | st.integers(0, 0xFFFF),
                      st.binary(max_size=40), st.sampled_from([0, 0, 0, 0, 1, -1]))
NESTS = st.recursive(ATTRIBUTE, lambda inner: st.builds(
    lambda kind, items: struct.pack("=HH", 4 + len(b"".join(items)), kind | NESTED) + b"".join(items),
    st.integers(0, 50), st.lists(inner, max_size=5)), max_leaves=12)
# Garbage, and what comes close enough to a message to be read further than its first length.
HOSTILE = st.binary(max_size=200) | st.builds(lambda head, items: head + b"".join(items), st.binary(max_size=20),
                                              st.lists(NESTS, max_size=8))


@settings(max_examples=200, deadline=None)
@given(HOSTILE, st.integers(-5, 300))
def test_readers_of_the_leaf_refuse_garbage_with_a_value_error_or_read_it(data, offset):
    for function in (lambda: messages(data), lambda: attributes(data, offset), lambda: attribute_list(data, offset),
                     lambda: attribute_list(data)):
        try:
            function()
        except ValueError:
            pass


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 0xFFFF), st.sampled_from([0, CAPPED, TLVS, CAPPED | TLVS, 2]), HOSTILE)
def test_acks_of_garbage_are_a_value_error_or_three_plain_values(kind, flags, payload):
    for kind_of in (kind, ERROR, DONE):
        try:
            code, text, offset = read_ack(kind_of, flags, payload)
        except ValueError:
            continue
        assert isinstance(code, int) and isinstance(text, str) and isinstance(offset, int)


@pytest.mark.parametrize("read, header", [
    (rtnl.read_link, 16), (rtnl.read_address, 8), (rtnl.read_route, 12),
    (nft.read_elements, 4), (nft.read_rule, 4), (nft.read_chain, 4),
], ids=lambda value: getattr(value, "__name__", None))
def test_readers_of_verbs_refuse_garbage_with_a_value_error_or_read_it(read, header):
    @settings(max_examples=100, deadline=None)
    @given(st.binary(min_size=header, max_size=header), st.lists(NESTS, max_size=8), HOSTILE)
    def fuzz(head, items, garbage):
        for payload in (head + b"".join(items), garbage, head[1:]):
            try:
                read(payload)
            except ValueError:
                pass

    fuzz()


WRITERS = {"u8": st.integers(0, 0xFF), "u16": st.integers(0, 0xFFFF), "u32": st.integers(0, 0xFFFFFFFF),
           "be16": st.integers(0, 0xFFFF), "be32": st.integers(0, 0xFFFFFFFF), "be64": st.integers(0, (1 << 64) - 1),
           "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
           "raw": st.binary(max_size=300)}
SHAPES = {"u8": "=B", "u16": "=H", "u32": "=I", "be16": ">H", "be32": ">I", "be64": ">Q"}
LEAVES = st.one_of([st.tuples(st.just(verb), st.integers(0, 0x3FFF), values) for verb, values in WRITERS.items()])
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.just("nest"), st.integers(0, 0x3FFF),
                                                     st.lists(inner, max_size=4)), max_leaves=20)


def expected(item):
    verb, kind, value = item
    if verb == "nest":
        return kind, [expected(inner) for inner in value]
    if verb == "text":
        return kind, value.encode() + b"\0"
    return kind, value if verb == "raw" else struct.pack(SHAPES[verb], value)


def write(batch, item):
    verb, kind, value = item
    if verb != "nest":
        getattr(batch, verb)(kind, value)
        return
    batch.nest(kind)
    for inner in value:
        write(batch, inner)
    batch.end()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 0xFFFF), st.sampled_from([b"", b"abcd", bytes(16)]), st.lists(TREES, max_size=6))
def test_what_is_written_is_read_again(kind, header, items):
    batch = Batch().begin(kind, 0, header)
    for item in items:
        write(batch, item)
    (found, flags, sequence, port, payload), = messages(batch.finish())
    assert (found, flags, sequence, port) == (kind, 1, 1, 0)
    assert payload[:len(header)] == header
    assert tree(payload[len(header):]) == [expected(item) for item in items]
    assert [kind for kind, _ in attribute_list(payload, len(header))] == [kind for _, kind, _ in items]


# -- the stranger ------------------------------------------------------------------------------------------

def test_setns_says_why_it_cannot():
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        setns(fd)
    os.close(fd)
    assert caught.value.errno == 22
