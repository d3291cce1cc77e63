"""Netlink messages as text. The tests use fastcni's own messages and the kernel's answers."""

import errno
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi
from fastcni.kernel.sockets import inet_sockets
from fastcni.node.activity.netlink_text import lines

IFINFO = struct.Struct("=BxHiII")


def sent(fill):
    batch = Batch()
    fill(batch)
    return batch.finish()


def answer(code, explanation=b"", sequence=1):
    """Return an NLMSG_ERROR with the header of its request. explanation: text of an extended acknowledgement."""
    body = struct.pack("=i", -code) + struct.pack("=IHHII", 16, uapi.RTM_NEWLINK, 0, sequence, 0)
    flags = 0x100               # NLM_F_CAPPED: the answer lacks the request's payload
    if explanation:
        flags |= 0x200          # NLM_F_ACK_TLVS
        attribute = struct.pack("=HH", 4 + len(explanation) + 1, 1) + explanation + b"\0"
        body += attribute.ljust((len(attribute) + 3) & ~3, b"\0")
    return struct.pack("=IHHII", 16 + len(body), uapi.NLMSG_ERROR, flags, sequence, 0) + body


def link(batch, index=0, flags=0, change=0):
    return batch.begin(uapi.RTM_NEWLINK, 0, IFINFO.pack(0, 0, index, flags, change), "x")


def test_a_link_has_its_names():
    data = sent(lambda b: link(b).text(uapi.IFLA_IFNAME, "veth1").u32(uapi.IFLA_MTU, 1400).nest(
        uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "veth").end())
    assert lines(data) == ["RTM_NEWLINK index 0 ifname veth1 kind veth mtu 1400"]


def test_sockets_are_no_addresses():
    """SOCK_DIAG_BY_FAMILY has the same number as RTM_NEWADDR."""
    request = inet_sockets.request(uapi.AF_INET, inet_sockets.TCP)
    assert lines(sent(lambda b: b.begin(uapi.SOCK_DIAG_BY_FAMILY, 0, request, "x"))) == [
        "SOCK_DIAG_BY_FAMILY inet protocol 6"]
    for family, packed, shown in ((uapi.AF_INET, bytes(4), "0.0.0.0"), (uapi.AF_INET6, bytes(15) + b"\1", "::1")):
        reply = bytes((family, 10, 0, 0)) + (8080).to_bytes(2, "big") + bytes(2) + packed
        data = sent(lambda b: b.begin(uapi.SOCK_DIAG_BY_FAMILY, 0, reply.ljust(72, b"\0"), "x"))      # noqa: B023
        assert lines(data) == [f"SOCK_DIAG_BY_FAMILY {shown} port 8080"]


@pytest.mark.parametrize("flags, change, expected", [(1, 1, " up"), (0, 1, " down"), (1, 0, "")])
def test_a_link_goes_up_or_down_only_if_that_changes(flags, change, expected):
    assert lines(sent(lambda b: link(b, 7, flags, change))) == [f"RTM_NEWLINK index 7{expected}"]


def test_addresses_and_routes_have_theirs():
    address = struct.pack("=BBBBI", 2, 16, 0, 0, 3)
    route = struct.pack("=BBBBBBBBI", 10, 0, 0, 0, 254, 3, 0, 1, 0)
    assert lines(sent(lambda b: b.begin(uapi.RTM_NEWADDR, 0, address, "x").raw(
        uapi.IFA_LOCAL, bytes([10, 22, 0, 5])))) == ["RTM_NEWADDR index 3 local 10.22.0.5 prefixlen 16"]
    assert lines(sent(lambda b: b.begin(uapi.RTM_NEWROUTE, 0, route, "x").raw(
        uapi.RTA_GATEWAY, bytes(15) + b"\1").u32(uapi.RTA_OIF, 3))) == [
        "RTM_NEWROUTE inet6 default via ::1 oif 3 prefixlen 0"]


def test_a_transaction_of_nftables_is_read():
    def fill(batch):
        nft.start(batch)
        nft.add_table(batch, nft.NFPROTO_INET, "fastcni", "")
        nft.stop(batch)
    assert lines(sent(fill)) == ["begin transaction", "NFT_MSG_NEWTABLE table inet fastcni", "commit transaction"]


def test_an_error_has_its_name_and_the_kernels_text():
    assert lines(answer(errno.EEXIST)) == ["EEXIST"]
    assert lines(answer(errno.EINVAL, b"Invalid prefix length")) == ['EINVAL: "Invalid prefix length"']
    assert lines(answer(4095)) == ["error 4095"]


def test_acknowledgements_in_a_row_are_one_line():
    assert lines(answer(0) * 3 + answer(errno.ENOENT) + answer(0) * 2) == ["done", "ENOENT", "done"]


def test_a_name_cannot_write_to_the_terminal():
    assert "\x1b" not in "".join(lines(sent(lambda b: link(b).text(uapi.IFLA_IFNAME, "\x1b[2Jx"))))


@given(st.binary(max_size=200))
def test_no_bytes_but_lines(data):
    assert all(isinstance(text, str) for text in lines(data))


@example(2, bytes(4))            # an acknowledgement without its request's header
@given(st.integers(0, 0xFFFF), st.binary(max_size=80))
def test_no_message_but_a_line(kind, payload):
    assert len(lines(struct.pack("=IHHII", 16 + len(payload), kind, 0, 1, 0) + payload)) == 1
