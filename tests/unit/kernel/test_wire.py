"""Batches, dumps and notifications. The socket reads each reply, and rejects a message that answers no request."""

import os
import struct
import weakref
from errno import EEXIST, EINTR, ENOBUFS, ENOENT, ENOTSUP, EPERM

import pytest
from modes import show_wire

from fastcni._netlink import Batch, messages
from fastcni.kernel import nft, rtnl, uapi, wire
from fastcni.kit.call.undo import every
from fastcni.testing.fake_sockets import FakeKernel, Socket, ack, done, message

pytestmark = pytest.mark.usefixtures("fake_sockets")
LINK = rtnl.ifinfomsg(7)
DUMP_INTR = uapi.NLM_F_DUMP_INTR


class Scripted(Socket):
    """A socket that receives prepared replies. `sent` contains the datagrams that were sent."""

    def __init__(self, *queue):
        super().__init__(queue)
        self.sent = []

    def send(self, data):
        self.sent.append(data)
        return len(data)


def three():
    """Return a batch of three requests, numbered 1 to 3."""
    batch = Batch()
    for what in ("one", "two", "three"):
        batch.begin(uapi.RTM_NEWLINK, uapi.NLM_F_ACK, LINK, what)
    return batch


def dump(sock):
    return wire.dump(sock, uapi.RTM_GETLINK, LINK, "list links")


# -- exchange and attempt ----------------------------------------------------------------------------------

def test_a_batch_goes_out_in_one_send_and_comes_back_empty():
    sock, batch = Scripted(ack(1), ack(2), ack(3)), three()
    assert wire.exchange(sock, batch) == []
    assert len(sock.sent) == 1
    assert len(messages(sock.sent[0])) == 3
    assert not batch
    assert batch.asked == {}


def sent_and_raised(sock):
    _, refused = wire.attempt(sock, three())
    wire.raise_first(refused)


@pytest.mark.parametrize("fail", [
    lambda: wire.exchange(Scripted(ack(1), ack(2, EEXIST), ack(3, EPERM)), three()),
    lambda: wire.exchange(Scripted(ack(1, EEXIST), ack(2, EPERM), ack(3)), three(), (EEXIST,)),
    lambda: sent_and_raised(Scripted(ack(1), ack(2, EEXIST), ack(3, EPERM))),
    lambda: wire.look_up(Scripted(ack(1), ack(2, EEXIST), ack(3, EPERM)), three()),
    lambda: dump(Scripted(ack(1, EPERM))),
    lambda: every((wire.exchange, Scripted(ack(1), ack(2), ack(3, EPERM)), three()), (int, "none"), (int, "none"))])
def test_an_error_ends_with_its_handler(collector_off, fail):
    """Once, the error's traceback and one of its frames referred to each other. Until a garbage collection, they kept
    the request's objects, for example sockets."""
    def called():
        held = Scripted()
        kept.append(weakref.ref(held))
        fail()

    kept = []
    try:
        called()
    except wire.NetlinkError:
        failed = True
    assert failed and kept[0]() is None


def test_every_reply_is_read_before_the_first_refusal_is_raised():
    sock = Scripted(ack(1), ack(2, EEXIST), ack(3, EPERM))
    with pytest.raises(wire.NetlinkError) as caught:
        wire.exchange(sock, three())
    assert (caught.value.what, caught.value.errno) == ("two", EEXIST)
    assert sock.queue == []


def test_errors_that_are_harmless_are_ignored_and_the_first_other_one_is_raised():
    assert wire.exchange(Scripted(ack(1), ack(2, EEXIST), ack(3, ENOENT)), three(), (ENOENT, EEXIST)) == []
    with pytest.raises(wire.NetlinkError) as caught:
        wire.exchange(Scripted(ack(1, ENOENT), ack(2, EPERM), ack(3, EEXIST)), three(), (ENOENT,))
    assert caught.value.what == "two"


def test_attempt_returns_what_was_refused_in_the_order_of_the_replies():
    replies, refused = wire.attempt(Scripted(ack(1, EPERM), ack(2, EEXIST) + ack(3)), three())
    assert replies == []
    assert [(e.what, e.errno) for e in refused] == [("one", EPERM), ("two", EEXIST)]


@pytest.mark.parametrize("answers, refused", [
    ([ack(3)], []),
    ([ack(2, EEXIST), ack(3)], ["two"]),
    ([ack(3, EPERM)], ["three"]),
    ([ack(1, EPERM) + ack(2, EEXIST) + ack(3, EPERM)], ["one", "two", "three"])])
def test_the_last_request_alone_is_acknowledged(answers, refused):
    """The kernel sends errors of the other requests before this acknowledgement. Once, an ADD read an acknowledgement
    of each address and route."""
    sock = Scripted(*answers)
    assert [e.what for e in wire.attempt(sock, three())[1]] == refused
    assert [flags & uapi.NLM_F_ACK for _, flags, *_ in messages(sock.sent[0])] == [0, 0, uapi.NLM_F_ACK]
    assert sock.queue == []


def test_replies_besides_acks_are_returned():
    echo = message(uapi.RTM_NEWLINK, 0, 2, LINK)
    assert wire.exchange(Scripted(ack(1), echo + ack(2), message(1, 0, 3), ack(3)), three()) == [(16, LINK)]


def of_one_link(*names):
    batch = Batch()
    for name in names:
        rtnl.get_link(batch, name=name)
    return batch


def test_an_object_is_the_answer_to_its_request():
    """Once, the kernel sent an ACK after the object, so a request needed one more receive."""
    sock = Scripted(message(16, 0, 1, LINK), message(16, 0, 2, LINK))
    assert wire.exchange(sock, of_one_link("eth0")) == [(16, LINK)]
    (_, flags, _, _, _), = messages(sock.sent[0])
    assert flags == uapi.NLM_F_REQUEST and len(sock.queue) == 1


@pytest.mark.parametrize("answers, found", [([message(16, 0, 1, LINK), message(16, 0, 2, LINK)], 2),
                                            ([message(16, 0, 1, LINK) + message(16, 0, 2, LINK)], 2),
                                            ([ack(1, ENOENT), message(16, 0, 2, LINK)], 1),
                                            ([message(16, 0, 1, LINK), ack(2, ENOENT)], 1)])
def test_each_of_several_objects_is_read(answers, found):
    sock = Scripted(*answers)
    replies, refused = wire.attempt(sock, of_one_link("one", "two"))
    assert len(replies) == found and len(refused) == 2 - found and not sock.queue


def test_a_refusal_has_the_request_and_the_kernels_text():
    text = struct.pack("=HH", 32, 1) + b"ipv4: Invalid prefix length\0"
    body = struct.pack("=i", -22) + struct.pack("=IHHII", 16, 0, 0, 1, 0) + text
    with pytest.raises(wire.NetlinkError) as caught:
        wire.exchange(Scripted(message(2, 0x300, 1, body)), Batch().begin(20, uapi.NLM_F_ACK, LINK, "add 10.0.0.1/33"))
    assert str(caught.value) == "add 10.0.0.1/33: ipv4: Invalid prefix length (errno 22)"
    assert str(wire.NetlinkError(17, "create veth v0")) == "create veth v0: File exists (errno 17)"


def test_a_refusal_stays_a_netlink_error():
    """Python's OSError(17) would be a FileExistsError. Callers compare errno, so NetlinkError stays one class."""
    assert type(wire.NetlinkError(17, "x")) is wire.NetlinkError


def test_a_with_statement_closes_the_socket_when_its_body_fails():
    with pytest.raises(OSError, match="no such link"), wire.open_socket() as sock:
        assert sock.fileno() >= 0
        raise OSError("no such link")
    assert sock.fileno() == -1


@pytest.mark.parametrize("stray", [message(16, 0, 9, LINK), ack(9), ack(4), ack(0), done(9)])
def test_a_stray_reply_raises(stray):
    with pytest.raises(wire.ProtocolError, match="which was not sent here"):
        wire.exchange(Scripted(stray, ack(1), ack(2), ack(3)), three())


def test_a_late_reply_to_the_batch_before_is_noticed():
    sock = Scripted(ack(1), ack(1), ack(2))
    wire.exchange(sock, Batch().begin(16, uapi.NLM_F_ACK, LINK, "before"))
    with pytest.raises(wire.ProtocolError, match="request 1"):
        wire.exchange(sock, Batch().begin(16, uapi.NLM_F_ACK, LINK, "now"))


def test_a_socket_counts_its_requests_whatever_the_batch():
    sock, batch = Scripted(ack(1), ack(2), ack(3), ack(4)), three()
    wire.exchange(sock, batch)
    wire.exchange(sock, batch.begin(16, uapi.NLM_F_ACK, LINK, "four"))
    assert [sequence for data in sock.sent for _, _, sequence, _, _ in messages(data)] == [1, 2, 3, 4]
    sock.sequence, sock.queue = wire.MAX_SEQUENCE - 1, [ack(wire.MAX_SEQUENCE)]
    wire.exchange(sock, Batch().begin(16, uapi.NLM_F_ACK, LINK, "last"))
    assert sock.sequence == 0


def to_port(port, data):
    """Return a datagram's message, addressed to another netlink port."""
    return data[:12] + struct.pack("=I", port) + data[16:]


def test_a_reply_to_another_port_is_noticed():
    sock = Scripted(to_port(7, ack(1)), to_port(7, ack(2)), to_port(8, ack(3)), to_port(7, ack(3)))
    with pytest.raises(wire.ProtocolError, match="request 3, which was not sent here"):
        wire.exchange(sock, three())
    assert sock.port == 7 and sock.queue == []


def test_a_datagram_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="stray bytes"):
        wire.exchange(Scripted(ack(1) + b"xyz"), three())


def test_an_error_of_the_socket_is_let_through():
    with pytest.raises(OSError) as caught:
        wire.exchange(Scripted(OSError(ENOBUFS, "No buffer space available")), three())
    assert caught.value.errno == ENOBUFS


# -- transactions ------------------------------------------------------------------------------------------

def transaction():
    """Return a transaction. BEGIN is request 1, the two requests that get answers are 2 and 3, END is 4."""
    batch = nft.start(Batch())
    nft.add_table(batch, nft.NFPROTO_INET, "t", "")
    nft.add_chain(batch, nft.NFPROTO_INET, "t", "c")
    return nft.stop(batch)


def test_only_the_messages_of_a_transaction_are_answered():
    assert wire.exchange(Scripted(ack(2) + ack(3)), transaction()) == []


@pytest.mark.parametrize("before", [(), (2,), (2, 3)], ids=["no reply", "one reply", "all replies"])
def test_a_transaction_is_refused_in_the_name_of_its_begin(before):
    """Without permission, the kernel sends only this error. If the commit fails, the kernel sends the error after all
    answers."""
    sock = Scripted(ack(1, EPERM), *(ack(sequence) for sequence in before))
    with pytest.raises(wire.NetlinkError, match="commit transaction") as caught:
        wire.exchange(sock, transaction())
    assert caught.value.errno == EPERM
    assert sock.queue == []


def test_received_replies_are_read_when_a_transaction_is_refused():
    _, refused = wire.attempt(Scripted(ack(1, EPERM), ack(2, ENOENT)), transaction())
    assert [e.what for e in refused] == ["commit transaction", "add nftables table t"]


def test_only_an_error_may_come_in_the_name_of_a_begin():
    with pytest.raises(wire.ProtocolError):
        wire.exchange(Scripted(message(16, 0, 1, LINK)), transaction())


# -- dumps -------------------------------------------------------------------------------------------------

def test_a_dump_comes_in_many_datagrams():
    sock = Scripted(message(16, 2, 1, LINK) + message(16, 2, 1, LINK), message(16, 2, 1, LINK), done(1))
    assert dump(sock) == [(16, LINK)] * 3


def interrupted(attempt=1):
    return [message(16, 2 | DUMP_INTR, attempt, LINK), done(attempt, 2 | DUMP_INTR)]


def test_an_interrupted_dump_is_asked_for_again():
    sock = Scripted(*interrupted(), message(16, 2, 2, LINK), done(2))
    assert dump(sock) == [(16, LINK)]
    assert len(sock.sent) == 2


def test_a_dump_interrupted_five_times_is_an_error_not_half_a_list():
    sock = Scripted(*(each for attempt in range(1, 6) for each in interrupted(attempt)))
    with pytest.raises(wire.NetlinkError) as caught:
        dump(sock)
    assert caught.value.errno == EINTR
    assert str(caught.value) == "list links: the kernel's table kept changing while it was read (errno 4)"
    assert len(sock.sent) == 5
    assert sock.queue == []


@pytest.mark.parametrize("refusal", [ack(1, EPERM), done(1, 2, EPERM)])
def test_a_refused_dump_is_not_asked_for_again(refusal):
    sock = Scripted(refusal)
    with pytest.raises(wire.NetlinkError) as caught:
        dump(sock)
    assert caught.value.errno == EPERM
    assert len(sock.sent) == 1


def test_a_dump_may_carry_a_filter():
    sock = FakeKernel()
    wire.dump(sock, uapi.RTM_GETLINK, LINK, "list ports", lambda batch: batch.u32(uapi.IFLA_MASTER, 4))
    (kind, flags, payload), = sock.sent
    assert (kind, flags, payload) == (uapi.RTM_GETLINK, 0x301, LINK + struct.pack("=HHI", 8, uapi.IFLA_MASTER, 4))


# -- notifications -----------------------------------------------------------------------------------------

def test_watch_returns_received_messages():
    sock = Scripted(message(16, 0, 0, LINK) + message(17, 0, 0, LINK))
    assert [kind for kind, *_ in wire.watch(sock, 0.5)] == [16, 17]
    assert sock.waits == [501]                  # milliseconds


def test_watch_returns_nothing_when_the_time_is_over():
    assert wire.watch(Scripted(), 0.01) == []


def test_watch_reports_dropped_messages():
    with pytest.raises(OSError) as caught:
        wire.watch(Scripted(OSError(ENOBUFS, "")), 1)
    assert caught.value.errno == ENOBUFS


# -- the socket --------------------------------------------------------------------------------------------

class Recorder:
    """A stub of wire.Socket that records its calls."""

    def __init__(self, refuse=()):
        self.calls, self.refuse = [], refuse

    def __call__(self, *arguments):
        self.calls.append(("socket", *arguments))
        return self

    def setsockopt(self, level, option, value):
        if option in self.refuse:
            raise OSError(ENOTSUP, "")
        self.calls.append(("option", option, value))

    def bind(self, address):
        self.calls.append(("bind", address))


def test_a_socket_is_strict(monkeypatch):
    sock = Recorder()
    monkeypatch.setattr(wire, "Socket", sock)
    wire.open_socket(uapi.NETLINK_NETFILTER)
    assert sock.calls == [("socket", 12), ("option", 11, 1), ("option", 10, 1), ("option", 12, 1)]


def test_a_socket_is_raw_and_closed_on_exec():
    sock = wire.Socket(uapi.NETLINK_ROUTE)
    assert (sock.family, sock.type, os.get_inheritable(sock.fileno())) == (16, 3, False)
    sock.close()


def test_a_socket_works_on_a_kernel_without_strict_checking(monkeypatch):
    sock = Recorder(refuse=[uapi.NETLINK_GET_STRICT_CHK])
    monkeypatch.setattr(wire, "Socket", sock)
    assert wire.open_socket() is sock


def test_a_socket_that_watches_is_bound_before_it_joins(monkeypatch):
    """An unbound socket has port 0, like the kernel. The kernel does not send a notification to its sender, so the
    socket would get none."""
    sock = Recorder()
    monkeypatch.setattr(wire, "Socket", sock)
    wire.open_socket(groups=(1, 9))
    assert sock.calls[-3:] == [("bind", (0, 0)), ("option", 1, 1), ("option", 1, 9)]


def test_the_wire_can_be_shown(monkeypatch):
    shown, batch = [], Batch().begin(16, uapi.NLM_F_ACK, LINK, "x")
    show_wire(monkeypatch, lambda direction, data: shown.append((direction, data)))
    request = batch.finish()
    wire.exchange(Scripted(ack(1)), batch)
    wire.watch(Scripted(ack(5)), 1)
    assert shown == [(">", request), ("<", ack(1)), ("<", ack(5))]


def test_a_refused_subscription_names_the_group():
    """`fastcni flows --follow` of a user who is not root said only "[Errno 1] Operation not permitted"."""
    with wire.open_socket() as sock, pytest.raises(wire.NetlinkError, match="notifications of group 1048576: "):
        wire.join(sock, 1 << 20)
