"""Functions of rtnl and nft write the correct messages and read the kernel's answers."""

import struct

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from fastcni._netlink import Batch, attributes, messages
from fastcni.kernel import conntrack, nft, nft_elements, nft_rules, rtnl, uapi
from fastcni.testing.fake_links import Link
from fastcni.testing.fake_messages import attr
from fastcni.testing.fake_node import Node
from fastcni.testing.fake_sockets import FakeKernel

pytestmark = pytest.mark.usefixtures("fake_sockets")
ACK, CREATE, EXCL, ECHO = 0x4, 0x400, 0x200, 0x8
ADDRESS, GATEWAY = bytes((10, 22, 0, 5)), bytes((10, 22, 0, 1))


def sent(batch, reader):
    """Return (type, flags without NLM_F_REQUEST, decoded message) of the batch's only message. reader: the class of
    pyroute2 that decodes it."""
    data = batch.finish()
    (kind, flags, *_), = messages(data)
    found = reader(data)
    found.decode()
    return kind, flags & ~1, plain(found)


def plain(message):
    if isinstance(message, dict):
        fields = {key: value for key, value in message.items() if key not in ("attrs", "header", "__align")}
        return fields | {name: plain(value) for name, value in message.get("attrs", ())}
    return message


def attrs(message, *names):
    return {name: message[name] for name in names}


# -- links -------------------------------------------------------------------------------------------------

def test_a_bridge_is_made_up_and_echoed():
    kind, flags, message = sent(rtnl.new_bridge(Batch(), "cni0", mtu=1400, vlan_filtering=True), ifinfmsg)
    assert (kind, flags) == (uapi.RTM_NEWLINK, ACK | CREATE | EXCL | ECHO)
    assert attrs(message, "IFLA_IFNAME", "IFLA_MTU") == {"IFLA_IFNAME": "cni0", "IFLA_MTU": 1400}
    assert message["IFLA_LINKINFO"] == {"IFLA_INFO_KIND": "bridge", "IFLA_INFO_DATA": {"IFLA_BR_VLAN_FILTERING": 1}}


def test_a_bridge_of_the_kernels_own_mtu_names_none():
    _, _, message = sent(rtnl.new_bridge(Batch(), "cni0"), ifinfmsg)
    assert "IFLA_MTU" not in message
    assert message["IFLA_LINKINFO"] == {"IFLA_INFO_KIND": "bridge"}


@pytest.mark.parametrize("keys, flags, change", [
    ({"up": True}, 1, 1), ({"up": False}, 0, 1), ({"promisc": True}, 0x100, 0x100),
    ({"up": True, "promisc": False}, 1, 0x101), ({"address": b"\2\0\0\0\0\1"}, 0, 0),
])
def test_only_the_given_flags_of_a_link_change(keys, flags, change):
    kind, asked, message = sent(rtnl.set_link(Batch(), 7, **keys), ifinfmsg)
    assert (kind, asked) == (uapi.RTM_NEWLINK, ACK)
    assert attrs(message, "index", "flags", "change") == {"index": 7, "flags": flags, "change": change}
    assert message.get("IFLA_ADDRESS") == ("02:00:00:00:00:01" if "address" in keys else None)


def test_a_bridge_port_is_set_by_name():
    wanted = {uapi.IFLA_BRPORT_MODE: True, uapi.IFLA_BRPORT_ISOLATED: False}
    _, flags, message = sent(rtnl.set_bridge_port(Batch(), "veth0", wanted), ifinfmsg)
    assert flags == ACK
    assert message["IFLA_IFNAME"] == "veth0"
    assert message["IFLA_LINKINFO"]["IFLA_INFO_SLAVE_KIND"] == "bridge"
    assert message["IFLA_LINKINFO"]["IFLA_INFO_SLAVE_DATA"] == {"IFLA_BRPORT_MODE": 1, "IFLA_BRPORT_ISOLATED": 0}


@pytest.mark.parametrize("keys", [{"name": "veth0"}, {"index": 7}])
def test_a_link_is_deleted_and_looked_up_by_name_or_index(keys):
    for verb, *expected in ((rtnl.del_link, uapi.RTM_DELLINK, ACK),
                            (rtnl.get_link, uapi.RTM_GETLINK, 0)):
        kind, flags, message = sent(verb(Batch(), **keys), ifinfmsg)
        assert [kind, flags, message["index"]] == [*expected, keys.get("index", 0)]
        assert message.get("IFLA_IFNAME") == keys.get("name")


def test_a_lookup_leaves_the_counters_out():
    _, _, message = sent(rtnl.get_link(Batch(), index=7), ifinfmsg)
    assert message["IFLA_EXT_MASK"] == 8


def test_the_error_text_of_a_request_is_stored_with_it():
    batch = rtnl.get_link(Batch(), name="cni0")
    rtnl.del_link(batch, index=7)
    rtnl.set_link(batch, 7, up=True, what="set eth0 up")
    assert list(batch.asked.values()) == ['look up "cni0"', 'delete "7"', "set eth0 up"]


def test_a_link_message_is_read():
    link = Link(7, "veth0", "veth", b"\2\0\0\0\0\1")
    link.peer, link.master, link.flags, link.promiscuity, link.mtu = ("pod", Link(9, "eth0", "veth")), 4, 1, 2, 9000
    found = rtnl.read_link(Node().encoded("host", link))
    assert (found.name, found.index, found.kind, found.mtu) == ("veth0", 7, "veth", 9000)
    assert (found.mac, found.address) == ("02:00:00:00:00:01", b"\2\0\0\0\0\1")
    assert (found.master, found.peer, found.peer_elsewhere, found.up, found.promiscuity) == (4, 9, True, True, 2)
    assert found.hairpin is found.isolated is found.vlan_filtering is None


def test_flags_of_a_bridge_port_are_read():
    port = attr(uapi.IFLA_BRPORT_MODE, b"\1") + attr(uapi.IFLA_BRPORT_ISOLATED, b"\0")
    info = attr(uapi.IFLA_INFO_SLAVE_KIND, b"bridge\0") + attr(uapi.IFLA_INFO_SLAVE_DATA, port)
    found = rtnl.read_link(rtnl.ifinfomsg(7) + attr(uapi.IFLA_LINKINFO, info))
    assert (found.hairpin, found.isolated) == (True, False)


def test_the_vlans_of_a_bridge_message_are_read():
    data = attr(uapi.IFLA_BR_VLAN_FILTERING, b"\1") + attr(uapi.IFLA_BR_VLAN_DEFAULT_PVID, b"\7\0")
    info = attr(uapi.IFLA_INFO_KIND, b"bridge\0") + attr(uapi.IFLA_INFO_DATA, data)
    found = rtnl.read_link(rtnl.ifinfomsg(7) + attr(uapi.IFLA_LINKINFO, info))
    assert (found.kind, found.vlan_filtering, found.default_pvid, found.data) == ("bridge", True, 7, data)
    assert found.hairpin is found.isolated is None


def test_a_name_in_bytes_that_are_no_utf8_comes_back_as_it_was():
    found = rtnl.read_link(rtnl.ifinfomsg(7) + attr(uapi.IFLA_IFNAME, b"eth\xff\0"))
    assert found.name.encode("utf-8", "surrogateescape") == b"eth\xff"


def test_the_first_link_of_the_replies_is_taken():
    replies = [(uapi.RTM_NEWADDR, b""), (uapi.RTM_NEWLINK, rtnl.ifinfomsg(7)), (uapi.RTM_NEWLINK, rtnl.ifinfomsg(8))]
    assert rtnl.first_link(replies).index == 7
    assert rtnl.first_link(replies[:1]) is None


# -- addresses and routes ----------------------------------------------------------------------------------

def test_an_address_is_deleted():
    kind, flags, message = sent(rtnl.del_address(Batch(), 7, ADDRESS, 16), ifaddrmsg)
    assert (kind, flags) == (uapi.RTM_DELADDR, ACK)
    assert attrs(message, "family", "prefixlen", "index", "IFA_LOCAL") == {
        "family": 2, "prefixlen": 16, "index": 7, "IFA_LOCAL": "10.22.0.5"}


@pytest.mark.parametrize("flags, expected", [(b"", 0x80), (attr(uapi.IFA_FLAGS, struct.pack("=I", 0x240)), 0x240)])
def test_an_address_message_is_read(flags, expected):
    payload = struct.pack("=BBBBI", 2, 16, 0x80, 253, 7) + attr(uapi.IFA_ADDRESS, GATEWAY) + flags
    found = rtnl.Address(payload + attr(uapi.IFA_LOCAL, ADDRESS))
    assert (found.index, found.packed, found.prefix, found.scope, found.flags) == (7, ADDRESS, 16, 253, expected)
    assert rtnl.Address(payload).packed == GATEWAY


def test_a_default_route_has_no_destination():
    kind, flags, message = sent(rtnl.route(Batch(), bytes(4), 0, index=7, gateway=GATEWAY), rtmsg)
    assert (kind, flags) == (uapi.RTM_NEWROUTE, ACK | CREATE)
    assert "RTA_DST" not in message
    assert message["dst_len"] == 0
    assert attrs(message, "RTA_GATEWAY", "RTA_OIF", "table", "proto", "type", "scope") == {
        "RTA_GATEWAY": "10.22.0.1", "RTA_OIF": 7, "table": 254, "proto": 3, "type": 1, "scope": 0}


def test_the_kernels_own_route_is_deleted():
    kind, flags, message = sent(rtnl.route(Batch(), bytes((10, 22, 0, 0)), 16, index=7, scope=253, delete=True), rtmsg)
    assert (kind, flags) == (uapi.RTM_DELROUTE, ACK)
    assert attrs(message, "RTA_DST", "dst_len", "proto", "scope") == {
        "RTA_DST": "10.22.0.0", "dst_len": 16, "proto": 2, "scope": 253}


def test_a_route_message_is_read():
    head = struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 3, 0, 1, 0)
    body = attr(uapi.RTA_DST, bytes((10, 22, 0, 0))) + attr(uapi.RTA_OIF, struct.pack("=I", 7))
    found = rtnl.read_route(head + body)
    assert (found.dst, found.prefix, found.gateway) == (bytes((10, 22, 0, 0)), 16, b"")
    assert (found.index, found.table) == (7, 254)
    assert rtnl.read_route(head + attr(uapi.RTA_TABLE, struct.pack("=I", 5000))).table == 5000
    assert rtnl.read_route(head[:8] + struct.pack("=I", uapi.RTM_F_CLONED)) is None


# -- nftables ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text", ["", "short", "ü" * 100, "x" * 300])
def test_a_comment_is_cut_to_what_nft_accepts(text):
    data = nft.comment_data(text)
    assert data[0] == 0
    assert data[1] == len(data) - 2 <= nft.COMMENT_MAX
    assert data[-1] == 0
    found = nft.read_comment(data)
    assert text.startswith(found)
    assert len(found.encode()) >= min(len(text.encode()), nft.COMMENT_MAX - 2)


@pytest.mark.parametrize("data", [b"", b"\0", b"\1\2xx", b"\1\xffxx"])
def test_user_data_without_a_comment_has_none(data):
    assert nft.read_comment(data) == ""


def test_a_comment_behind_other_user_data_is_found():
    assert nft.read_comment(b"\1\2xx" + nft.comment_data("here")) == "here"


def test_a_transaction_is_framed_and_its_frame_is_not_answered():
    batch = nft.stop(nft.add_chain(nft.start(Batch()), nft.NFPROTO_INET, "t", "c"))
    found = messages(batch.finish())
    assert [(kind, flags, payload[:4].hex()) for kind, flags, _, _, payload in found] == [
        (0x10, 1, "0000000a"), (nft.NFT_MSG_NEWCHAIN, 1 | ACK | CREATE, "01000000"), (0x11, 1, "0000000a")]
    assert batch.asked == {2: "add nftables chain t c"}


def test_a_rule_is_deleted_by_its_handle():
    (kind, _, _, _, payload), = messages(nft_rules.del_rule(Batch(), nft.NFPROTO_INET, "t", "c", 0x1122334455).finish())
    assert kind == nft.NFT_MSG_DELRULE
    assert attributes(payload, 4)[nft_rules.NFTA_RULE_HANDLE] == bytes.fromhex("0000001122334455")


def test_elements_rules_and_chains_are_read():
    node = Node()
    where = (nft.NFPROTO_INET, "t", "s")
    node.firewall.sets[where] = {b"abcd": (nft.comment_data("mine"), "c"), b"efgh": (b"", "")}
    node.firewall.chains[nft.NFPROTO_INET, "t", "c"] = 2
    assert nft_elements.read_elements(node.firewall.encoded_element(where, b"abcd")) == [(b"abcd", "mine")]
    assert nft_elements.read_elements(node.firewall.encoded_element(where, b"efgh")) == [(b"efgh", "")]
    assert nft.read_chain(node.firewall.encoded_chain(nft.NFPROTO_INET, "t", "c")) == ("t", "c", 3)
    rule = (attr(nft_rules.NFTA_RULE_HANDLE, (7).to_bytes(8, "big"))
            + attr(nft_rules.NFTA_RULE_USERDATA, nft.comment_data("mine")))
    assert nft_rules.read_rule(bytes(4) + rule) == (7, "mine")
    with pytest.raises(ValueError, match="without a handle"):
        nft_rules.read_rule(bytes(4))


def test_a_connection_in_a_flowtable_counts_if_both_ends_are_among_the_pods():
    """conntrack marks the connections in all flowtables, including those of other programs."""
    pods, other = (b"\n\0\0\2", b"\n\0\0\3"), b"\n\0\0\4"

    def entry(ends, status):
        batch = Batch().begin(conntrack.IPCTNL_MSG_CT_NEW, 0, nft.nfgenmsg(uapi.AF_INET))
        conntrack.add_tuple(batch, conntrack.CTA_TUPLE_ORIG, 6, ends, (50000, 80))
        conntrack.add_tuple(batch, conntrack.CTA_TUPLE_REPLY, 6, ends[::-1], (80, 50000))
        (kind, _, _, _, payload), = messages(batch.be32(conntrack.CTA_STATUS, status).finish())
        return kind, payload

    sock = FakeKernel(answers={conntrack.IPCTNL_MSG_CT_GET: [
        entry(pods, conntrack.IPS_OFFLOAD), entry(pods, conntrack.IPS_CONFIRMED),
        entry((pods[0], other), conntrack.IPS_OFFLOAD), entry((other, pods[1]), conntrack.IPS_OFFLOAD)]})
    assert conntrack.count_offloaded(sock, pods) == 1
