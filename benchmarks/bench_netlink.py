"""Measure the encoding and decoding of netlink messages by the extension module, by kernel/rtnl.py, and by pyroute2.

Prints figures, asserts no time.

    .venv/bin/python -m pytest --benchmark-only --benchmark-group-by=group benchmarks/bench_netlink.py

The aim is to encode a veth request in 1 microsecond. The extension module alone shows the cost of the compiled code.
The functions of rtnl.py add Python calls. A new Batch adds 0.2 microseconds, which it needs to fill 32 KiB with zeros.
"""

import struct

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from fastcni._netlink import Batch, messages
from fastcni.kernel import rtnl, uapi

HOST_MAC, POD_MAC = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
UP = rtnl.ifinfomsg(0, uapi.IFF_UP, uapi.IFF_UP)


@pytest.fixture
def batch():
    return Batch()


def veth(batch):
    rtnl.new_veth(batch, "veth01234567", "eth0", 9, host_mac=HOST_MAC, peer_mac=POD_MAC, mtu=1500, master=4,
                  what="failed to make veth pair")
    return batch.finish()


def by_leaf(batch):
    batch.begin(uapi.RTM_NEWLINK, rtnl.CREATE | uapi.NLM_F_ECHO, UP, "failed to make veth pair")
    batch.text(3, "veth01234567").raw(1, HOST_MAC).u32(4, 1500).u32(31, 1).u32(32, 1).u32(10, 4)
    batch.nest(18).text(1, "veth").nest(2).nest(1).header(rtnl.ANY_LINK)
    batch.text(3, "eth0").raw(1, POD_MAC).u32(4, 1500).u32(31, 1).u32(32, 1).u32(28, 9).end().end().end()
    data = batch.finish()
    batch.clear()
    return data


def by_rtnl(batch):
    data = veth(batch)
    batch.clear()
    return data


def by_rtnl_in_a_new_batch(_):
    return veth(Batch())


def by_pyroute2(_):
    queues = [("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1)]
    peer = {"attrs": [("IFLA_IFNAME", "eth0"), ("IFLA_ADDRESS", POD_MAC.hex(":")), ("IFLA_MTU", 1500), *queues,
                      ("IFLA_NET_NS_FD", 9)]}
    link = ifinfmsg()
    link["flags"] = link["change"] = 1
    link["attrs"] = [("IFLA_IFNAME", "veth01234567"), ("IFLA_ADDRESS", HOST_MAC.hex(":")), ("IFLA_MTU", 1500), *queues,
                     ("IFLA_MASTER", 4), ("IFLA_LINKINFO", {"attrs": [
                         ("IFLA_INFO_KIND", "veth"),
                         ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]})]
    link["header"].update({"type": 16, "flags": 0x60D, "sequence_number": 1, "pid": 0})
    link.encode()
    return bytes(link.data)


@pytest.mark.benchmark(group="encode one veth request")
@pytest.mark.parametrize("encode", [by_leaf, by_rtnl, by_rtnl_in_a_new_batch, by_pyroute2])
def test_encode_a_veth_request(benchmark, batch, encode):
    assert len(encode(batch)) == len(veth(Batch()))
    benchmark(encode, batch)


@pytest.fixture(scope="module")
def link_reply():
    """Return the datagram with which the kernel answers RTM_GETLINK of lo. This needs no root."""
    from fastcni.kernel import wire

    sock = wire.open_socket()
    wire.send(sock, rtnl.get_link(Batch(), index=1).finish())
    data = sock.recv(65536)
    sock.close()
    return data


def read_by_leaf(data):
    return messages(data)


def read_by_rtnl(data):
    return rtnl.read_link(messages(data)[0][4])


def read_by_pyroute2(data):
    link = ifinfmsg(data)
    link.decode()
    return link.get_attr("IFLA_IFNAME")


@pytest.mark.benchmark(group="read one link")
@pytest.mark.parametrize("read", [read_by_leaf, read_by_rtnl, read_by_pyroute2])
def test_read_a_link(benchmark, link_reply, read):
    length, kind = struct.unpack_from("=IH", link_reply)
    assert kind == uapi.RTM_NEWLINK and length <= len(link_reply)
    benchmark(read, link_reply)


@pytest.mark.benchmark(group="one round trip to the kernel")
def test_exchange(benchmark):
    from fastcni.kernel import wire

    sock, batch = wire.open_socket(), Batch()
    benchmark(lambda: wire.exchange(sock, rtnl.get_link(batch, index=1)))
    sock.close()
