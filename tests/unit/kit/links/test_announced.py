"""Waits for kernel notifications. A wait ends at the right notification or at its time limit, even if the kernel drops
notifications."""

import struct
from errno import EBUSY, ENOBUFS, ENODEV

import pytest

from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call import deletion
from fastcni.kit.links import announced
from fastcni.spec.errors import CniError
from fastcni.testing.fake_links import Link
from fastcni.testing.fake_messages import attr
from fastcni.testing.fake_node import Node
from fastcni.testing.fake_sockets import FakeKernel, Socket, ack, message

pytestmark = pytest.mark.usefixtures("fake_sockets")


def notice(kind, index, family=uapi.AF_UNSPEC):
    return message(kind, 0, 0, rtnl.ifinfomsg(index, family=family))


def state(up, master=4):
    """Return the kernel's description of link 7. up: whether the link is operationally up. master: the index of its
    bridge."""
    link = Link(7, "veth0", "veth")
    link.master, link.flags = master, uapi.IFF_UP | uapi.IFF_LOWER_UP if up else 0
    return Node().encoded("host", link)


class Looks(FakeKernel):
    """A kernel that answers the n-th request with the n-th of `states`, and later requests with the last."""

    def __init__(self, *states):
        super().__init__()
        self.states = list(states)

    def send(self, data):
        self.answers = {uapi.RTM_GETLINK: [(uapi.RTM_NEWLINK, self.states[0])]}
        self.states = self.states[1:] or self.states
        return super().send(data)


# -- delete ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("queue", [
    [notice(uapi.RTM_DELLINK, 7)],
    [notice(uapi.RTM_NEWLINK, 7), notice(uapi.RTM_DELLINK, 8), notice(uapi.RTM_DELLINK, 7)],
    [ack(1, ENODEV)],
    [OSError(ENOBUFS, ""), ack(1)],                     # the kernel dropped the notification, the ACK follows
], ids=["announced", "after others", "gone before", "dropped"])
def test_a_delete_returns_when_the_kernel_announces_that_the_link_is_gone(queue):
    watcher = Socket(queue)
    deletion.delete(watcher, deletion.send_out, (7, "veth0"))
    assert watcher.closed


def test_each_link_is_a_request_of_its_own():
    """If one request deletes both links, the kernel deletes the second link only after the first link's grace period,
    17 ms later."""
    deferred = []
    watcher = Socket([notice(uapi.RTM_DELLINK, 8), notice(uapi.RTM_DELLINK, 7)])
    deletion.delete(watcher, lambda *args: deferred.append(args), (7, "veth0"), (8, "ifb0"))
    assert [rtnl.read_index(data[16:]) for _, data, _ in deferred] == [7, 8]


@pytest.mark.parametrize("refused", [1, 2])
def test_the_refusal_of_one_link_is_raised_after_the_others_are_gone(refused):
    gone = {1: 8, 2: 7}[refused]
    watcher = Socket([ack(refused, EBUSY), notice(uapi.RTM_DELLINK, gone)])
    with pytest.raises(wire.NetlinkError) as caught:
        deletion.delete(watcher, deletion.send_out, (7, "veth0"), (8, "ifb0"))
    assert ("veth0", "ifb0")[refused - 1] in str(caught.value) and not watcher.queue


def test_a_port_that_leaves_its_bridge_is_not_gone_yet(monkeypatch):
    """Before the kernel deletes the link, the bridge sends RTM_DELLINK with family AF_BRIDGE."""
    monkeypatch.setattr(deletion, "DELETE_TIMEOUT_S", 0.05)
    with pytest.raises(CniError) as caught:
        deletion.delete(Socket([notice(uapi.RTM_DELLINK, 7, uapi.AF_BRIDGE)]), deletion.send_out, (7, "veth0"))
    assert (caught.value.code, caught.value.msg) == (11, 'failed to delete "veth0": the link still exists after 0.05 s')


def test_a_refused_delete_is_raised():
    watcher = Socket([ack(1, EBUSY)])
    with pytest.raises(wire.NetlinkError) as caught:
        deletion.delete(watcher, deletion.send_out, (7, "veth0"))
    assert caught.value.errno == EBUSY
    assert 'failed to delete "veth0"' in str(caught.value)
    assert watcher.closed


# -- port_up -----------------------------------------------------------------------------------------------

def test_a_port_that_is_up_is_not_waited_for():
    assert announced.port_up(Looks(state(True)), 7, 4).index == 7


@pytest.mark.parametrize("queue", [[notice(uapi.RTM_NEWLINK, 9), notice(uapi.RTM_NEWLINK, 7)], [OSError(ENOBUFS, "")]],
                         ids=["announced", "dropped"])
def test_a_port_is_waited_for_until_it_is_up(queue, monkeypatch):
    monkeypatch.setattr(announced, "open_watcher", lambda: Socket(queue))
    sock = Looks(state(False), state(False), state(True))  # port_up() reads the state again after the watcher listens
    announced.port_up(sock, 7, 4)
    assert len(sock.sent) == 3


def test_a_port_that_never_comes_up_is_named_with_its_state(monkeypatch):
    monkeypatch.setattr(announced, "PORT_UP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(announced, "open_watcher", Socket)
    with pytest.raises(CniError) as caught:
        announced.port_up(Looks(state(False)), 7, 4)
    assert (caught.value.code, caught.value.msg) == (999, "bridge port in error state: down")


def test_a_port_that_lost_its_bridge_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(announced, "open_watcher", lambda: Socket([notice(uapi.RTM_NEWLINK, 7)]))
    with pytest.raises(CniError) as caught:
        announced.port_up(Looks(state(False), state(False), state(False, master=0)), 7, 4)
    assert caught.value.code == 11
    assert "has left its bridge" in caught.value.msg


# -- addresses ---------------------------------------------------------------------------------------------

class Addresses(Looks):
    """A kernel whose n-th list of addresses contains an address with the n-th of `flags`. up: whether the link is
    up."""

    def __init__(self, *flags, up=True):
        super().__init__(*flags)
        self.up = up

    def send(self, data):
        head = struct.pack("=BBBBI", 10, 64, 0, 0, 7)
        self.answers = {
            uapi.RTM_GETADDR: [(uapi.RTM_NEWADDR, head + attr(uapi.IFA_FLAGS, struct.pack("=I", self.states[0]))
                                + attr(uapi.IFA_ADDRESS, b"\xfd" + bytes(15)))],
            uapi.RTM_GETLINK: [(uapi.RTM_NEWLINK, state(self.up))]}
        self.states = self.states[1:] or self.states
        return FakeKernel.send(self, data)


def link():
    return rtnl.read_link(state(True))


@pytest.mark.parametrize("flags, queue", [([0], []), ([0x40, 0x40, 0], [message(20, 0, 0, b"")] * 2)])
def test_addresses_settle(flags, queue):
    announced.wait_for_addresses(Addresses(*flags), Socket(queue), link())


def test_a_duplicate_address_is_named():
    with pytest.raises(CniError, match=r"veth0 has address fd00:: in DADFAILED state"):
        announced.wait_for_addresses(Addresses(0x48), Socket(), link())


def test_an_address_that_never_settles_is_an_error_if_the_link_is_up(monkeypatch):
    monkeypatch.setattr(announced, "SETTLE_TIMEOUT_S", 0.05)
    with pytest.raises(CniError, match="still has tentative addresses"):
        announced.wait_for_addresses(Addresses(0x40), Socket(), link())
    announced.wait_for_addresses(Addresses(0x40, up=False), Socket(), link())
