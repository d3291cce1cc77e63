"""Netlink messages, byte by byte. Tests compare them with literal bytes and with messages of pyroute2, ip(8) and
nft(8), and decode them again."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroute2.netlink.nfnetlink.nftsocket import nft_set_elem_list_msg, nft_set_msg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from unit.kernel import captured

from fastcni._netlink import Batch, attribute_list, messages
from fastcni.kernel import nft, nft_elements, rtnl, uapi
from fastcni.kit.firewall.masquerade import nftables
from fastcni.kit.firewall.spoofcheck import mac as spoofcheck

NESTED = 0x8000
HOST_MAC, POD_MAC = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"


def rows(data):
    """Return bytes as rows of four, which a failed comparison prints."""
    return [data[i:i + 4].hex(" ") for i in range(0, len(data), 4)]


def golden(text):
    """Return the rows of four bytes in a test's text, without comments."""
    return [row.partition("#")[0].strip() for row in text.strip().splitlines()]


def one_message(batch):
    """Return the payload of the only message in a batch."""
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
    """Return the message without NLA_F_NESTED, as pyroute2 writes it. In this veth message, the flag is at fixed
    offsets."""
    data = bytearray(data)
    for at in (99, 115, 119):
        assert data[at] == 0x80
        data[at] = 0
    return bytes(data)


def test_a_veth_request_is_what_pyroute2_encodes():
    batch = rtnl.new_veth(Batch(), "veth01234567", "eth0", 9, host_mac=HOST_MAC, peer_mac=POD_MAC, mtu=1400, master=4)
    alike = [("IFLA_MTU", 1400), ("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1)]
    peer = {"attrs": [("IFLA_IFNAME", "eth0"), ("IFLA_ADDRESS", POD_MAC.hex(":")), *alike, ("IFLA_NET_NS_FD", 9)]}
    link = ifinfmsg()
    link["flags"] = link["change"] = 1
    link["attrs"] = [("IFLA_IFNAME", "veth01234567"), ("IFLA_ADDRESS", HOST_MAC.hex(":")), *alike,
                     ("IFLA_MASTER", 4), ("IFLA_LINKINFO", {"attrs": [
                         ("IFLA_INFO_KIND", "veth"),
                         ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]})]
    expected = encoded_by_pyroute2(link, rtnl.CREATE | uapi.NLM_F_ECHO)
    assert rows(without_nest_marks(batch.finish())) == rows(expected)


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
    expected = encoded_by_pyroute2(route, uapi.NLM_F_ACK | uapi.NLM_F_CREATE, uapi.RTM_NEWROUTE)
    assert rows(batch.finish()) == rows(expected)


def test_pyroute2_reads_our_map_and_its_elements():
    batch = nft_elements.add_set(Batch(), nft.NFPROTO_INET, "t", "pods4", (nft_elements.TYPE_IPADDR,), set_id=1,
                        verdicts=True)
    found = nft_set_msg(batch.finish())
    found.decode()
    assert found.get_attr("NFTA_SET_TABLE") == "t"
    assert found.get_attr("NFTA_SET_NAME") == "pods4"
    assert found.get_attr("NFTA_SET_KEY_TYPE") == 7
    assert found.get_attr("NFTA_SET_KEY_LEN") == 4

    batch = nft_elements.add_element(Batch(), nft.NFPROTO_INET, "t", "pods4", bytes((10, 22, 0, 5)), "c", "subnet")
    found = nft_set_elem_list_msg(batch.finish())
    found.decode()
    element, = found.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS")
    assert element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE") == bytes((10, 22, 0, 5))
    verdict = element.get_attr("NFTA_SET_ELEM_DATA").get_attr("NFTA_DATA_VERDICT")
    assert verdict.get_attr("NFTA_VERDICT_CHAIN") == "subnet"


# -- against ip(8) and nft(8) ------------------------------------------------------------------------------

def plain(message):
    """Return a pyroute2 message as dicts, so that comparisons ignore the order of attributes."""
    if isinstance(message, dict):
        fields = {key: value for key, value in message.items() if key not in ("attrs", "header", "__align")}
        return fields | {name: plain(value) for name, value in message.get("attrs", ())}
    return message


def test_ip_link_add_says_the_same_about_a_veth():
    actual = ifinfmsg(rtnl.new_veth(Batch(), "veth01234567", "eth0", 1, host_mac=HOST_MAC, peer_mac=POD_MAC,
                                  mtu=1400).finish())
    expected = ifinfmsg(captured.IP_LINK_ADD)
    actual.decode()
    expected.decode()
    actual, expected = plain(actual), plain(expected)
    # ip(8) does not send these attributes
    for end in (actual, actual["IFLA_LINKINFO"]["IFLA_INFO_DATA"]["VETH_INFO_PEER"]):
        assert (end.pop("IFLA_NUM_TX_QUEUES"), end.pop("IFLA_NUM_RX_QUEUES")) == (1, 1)
    peer = expected["IFLA_LINKINFO"]["IFLA_INFO_DATA"]["VETH_INFO_PEER"]
    peer["IFLA_NET_NS_FD"] = peer.pop("IFLA_NET_NS_PID")       # ip(8) named process 1, fastcni names a descriptor
    assert actual == expected


def tree(data):
    """Return attributes as [(type, bytes or tree)]. This decoder uses no code of fastcni."""
    found = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        value = data[4:length]
        found.append((kind & 0x3FFF, tree(value) if kind & NESTED else value))
        data = data[length + 3 & ~3:]
    return found


def check_attributes(actual, expected, path=()):
    """Check that nft's message has each of fastcni's attributes with the same value. Lists must have the same entries
    in the same order."""
    if not isinstance(actual, list):
        assert actual == expected, path
        return
    if all(kind == nft.NFTA_LIST_ELEM and isinstance(value, list) for kind, value in actual) and actual:
        assert len(actual) == len(expected), path
        for i, ((_, a), (_, b)) in enumerate(zip(actual, expected, strict=True)):
            check_attributes(a, b, (*path, i))
        return
    expected = dict(expected)
    for kind, value in actual:
        if kind not in expected:                  # nft omits flags whose value is 0
            assert value == bytes(4), (*path, kind)
            continue
        check_attributes(value, expected[kind], (*path, kind))


def transaction(data):
    """Return {type: [attributes]} of the messages that create objects. In the captured transaction nft creates all
    objects, so it flushes no chain."""
    found = {}
    for kind, _, _, _, payload in messages(data):
        if kind >> 8 == nft.NFNL_SUBSYS_NFTABLES and kind != nft.NFT_MSG_DELRULE:
            found.setdefault(kind, []).append((payload[:4], tree(payload[4:])))
    return found


def test_nft_says_the_same_about_masquerade():
    item = ("pods4", bytes((10, 22, 0, 5)), "subnet-10.16.0.0/12")
    batch = nftables.set_up(nft.start(Batch()), [item])
    name, key, chain = item
    nft_elements.add_element(batch, nft.NFPROTO_INET, "fastcni", name, key, "net: a, if: eth0", chain)
    compare_transactions(nft.stop(batch).finish(), captured.NFT_INET)


def test_nft_says_the_same_about_macspoofchk():
    batch, port = spoofcheck.set_up(nft.start(Batch()), ()), b"veth0a1b2c3d\0\0\0\0"
    mac = bytes.fromhex("0a580a160005")
    nft_elements.add_element(batch, nft.NFPROTO_BRIDGE, "fastcni", "guarded", port, "c")
    nft_elements.add_element(batch, nft.NFPROTO_BRIDGE, "fastcni", "allowed", port + mac + b"\0\0", "c")
    compare_transactions(nft.stop(batch).finish(), captured.NFT_BRIDGE)


def compare_transactions(actual, expected):
    actual, expected = transaction(actual), transaction(expected)
    assert actual.keys() == expected.keys()
    for kind in actual:
        assert len(actual[kind]) == len(expected[kind]), kind
        for (our_family, a), (family, b) in zip(actual[kind], expected[kind], strict=True):
            assert our_family == family
            check_attributes(a, b, (kind,))


# -- sequence numbers and what was asked -------------------------------------------------------------------

def test_only_what_the_kernel_will_answer_is_asked():
    batch = Batch().begin(16, uapi.NLM_F_ACK, b"", "one").begin(0x10, 0, b"").begin(18, uapi.NLM_F_DUMP, b"", "three")
    assert batch.asked == {1: "one", 3: "three"}


def test_an_exclusive_creation_without_an_acknowledgement_is_no_dump():
    """NLM_F_EXCL is one of the bits of NLM_F_DUMP. Once, the sender waited for an answer that the kernel does not
    send."""
    assert Batch().begin(16, uapi.NLM_F_CREATE | uapi.NLM_F_EXCL, b"", "one").asked == {}


def test_a_batch_counts_on_where_its_socket_stopped():
    batch = Batch().begin(16, uapi.NLM_F_ACK, b"1234", "one").text(3, "eth0").begin(0x10, 0, b"")
    batch.begin(18, uapi.NLM_F_DUMP, b"", "three")
    assert [sequence for _, _, sequence, _, _ in messages(batch.finish(40))] == [41, 42, 43]
    assert batch.asked == {41: "one", 43: "three"} and (batch.first, batch.last) == (40, 43)


def test_a_batch_that_was_cleared_counts_from_the_beginning():
    batch = Batch().begin(16, uapi.NLM_F_ACK, b"", "one")
    batch.finish(7)
    asked = batch.asked
    batch.clear()
    assert batch.asked == {}
    assert asked == {8: "one"}
    assert (batch.first, batch.last) == (0, 0)
    assert not batch


def test_clear_forgets_an_open_nest():
    batch = Batch().begin(16, 0, b"").nest(1)
    assert batch.clear().finish() == b""


# -- read again -------------------------------------------------------------------------------------------

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
