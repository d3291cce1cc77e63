"""Links that are deleted together. Each deletion returns after its link no longer exists, and its error fails no other
deletion."""

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from errno import ENOBUFS, ENOMEM, EOPNOTSUPP

import pytest
from lab.node import links, run
from unit.server.flushed import Log

from fastcni._abandoned import Abandoned
from fastcni.daemon.background import Background
from fastcni.kernel import netns, waiting, wire
from fastcni.kit.call import deletion
from fastcni.server.requests import grouped_deletes as module
from fastcni.server.requests.grouped_deletes import GroupedDeletes, Shared, SharedRequest
from fastcni.testing.witnesses import eventually


@pytest.fixture
def deletes(node):
    home = netns.open_own()
    made = GroupedDeletes(Background(8, home, Log()))
    yield made
    made.close()
    os.close(home)


def make(count):
    """Add `count` veth pairs. Return [(index, name)] of their first ends."""
    for n in range(count):
        run("ip", "link", "add", f"veth-{n}", "type", "veth", "peer", "name", f"peer-{n}")
    found = links()
    return [(found[f"veth-{n}"]["ifindex"], f"veth-{n}") for n in range(count)]


def everywhere(deletes, pairs):
    """Delete each link in a separate thread, all at the same time. Return {name: exception, or whether the link still
    existed afterwards}."""
    start = threading.Barrier(len(pairs))

    def delete(pair):
        start.wait()
        try:
            deletes.delete(pair)
        except OSError as e:
            return pair[1], e
        with open("/proc/thread-self/net/dev") as file:  # a thread begins in the namespace of the thread that starts it
            return pair[1], f"{pair[1]}:" in file.read()

    with ThreadPoolExecutor(len(pairs)) as pool:
        return dict(pool.map(delete, pairs))


def test_a_link_is_gone_when_its_deletion_returns(deletes):
    (pair,) = make(1)
    deletes.delete(pair)
    assert set(links()) == {"lo"}


def test_links_deleted_at_once_go_in_few_requests_and_all_are_gone(deletes, monkeypatch):
    sent, real = [], wire.send
    monkeypatch.setattr(wire, "send", lambda sock, data: (sent.append(data), real(sock, data)))
    errors = everywhere(deletes, make(40))
    assert not any(errors.values())
    assert set(links()) == {"lo"}
    assert len(sent) < 20


def test_the_links_of_one_deletion_go_in_one_request(deletes, monkeypatch):
    """A pod's ifb is deleted together with its veth pair, so the DEL waits for the kernel once."""
    sent, real, pairs = [], wire.send, make(3)
    monkeypatch.setattr(wire, "send", lambda sock, data: (sent.append(data), real(sock, data)))
    deletes.delete(*pairs)
    assert set(links()) == {"lo"} and len(sent) == 1
    assert (deletes.links, deletes.requests) == (3, 1)      # once, a deletion of three links counted as one link
    deletes.delete(*pairs)              # the links no longer exist
    (left,) = make(1)
    with pytest.raises(wire.NetlinkError, match='failed to delete "lo"'):
        deletes.delete(left, (1, "lo"))
    assert set(links()) == {"lo"}


def test_deletions_beyond_the_limit_are_the_next_request(leaving, monkeypatch):
    """The limit exists because all notifications about one request have to fit into the receive buffer."""
    monkeypatch.setattr(module, "MAX_LINKS", 2)
    pairs = make(6)
    leaving.begin(*pairs[0])
    assert eventually(lambda: leaving.held)
    for pair in pairs[1:]:
        leaving.begin(*pair)
    assert eventually(lambda: len(leaving.deletes.waiting) == 5)
    leaving.all_end()
    assert list(leaving.ended.values()) == [None] * 6 and set(links()) == {"lo"}
    assert (leaving.deletes.links, leaving.deletes.requests) == (6, 4)      # of 1, 2, 2 and 1 links


def test_the_deletion_of_a_missing_link_succeeds(deletes):
    pairs = make(6)
    run("ip", "link", "del", "veth-2")
    run("ip", "link", "del", "veth-4")
    assert not any(everywhere(deletes, pairs).values()) and set(links()) == {"lo"}
    deletes.delete(pairs[0])


def test_a_refused_deletion_raises_and_the_next_one_succeeds(deletes):
    (pair,) = make(1)
    with pytest.raises(wire.NetlinkError, match='failed to delete "lo"'):
        deletes.delete((1, "lo"))
    deletes.delete(pair)
    assert set(links()) == {"lo"}


def test_announcements_that_the_kernel_dropped_are_not_waited_for(deletes, monkeypatch):
    pairs, real, dropped = make(1), wire.watch, [OSError(ENOBUFS, "")]

    def watch(sock, seconds):
        if dropped:
            while "veth-0" in links():
                real(sock, 0.01)
            raise dropped.pop()
        return real(sock, seconds)

    monkeypatch.setattr(wire, "watch", watch)
    deletes.delete(pairs[0])
    assert set(links()) == {"lo"} and not dropped


def test_links_of_another_programs_group_stay(deletes):
    make(4)
    run("ip", "link", "set", "veth-3", "group", "7")
    pairs = [(item["ifindex"], name) for name, item in links().items() if name in ("veth-0", "veth-1", "veth-2")]
    everywhere(deletes, pairs)
    assert {name for name in links() if name.startswith("veth")} == {"veth-3"}


def together(deletes, pairs):
    """Delete all these links by one request. Return {name: its error, or None}."""
    group = [Shared([pair]) for pair in pairs]
    deletes.run(SharedRequest(group))
    return {one.name: one.error for each in group for one in each.deletions}


def test_only_the_link_that_cannot_be_deleted_is_refused(deletes):
    """The kernel rejects a whole group, and deletes no link of it, if it cannot delete one of the links. The server
    then deletes the links one by one."""
    pairs = make(5)
    run("ip", "link", "del", "veth-3")
    errors = together(deletes, [*pairs[:2], (1, "lo"), *pairs[2:]])
    assert errors.pop("lo").errno == EOPNOTSUPP
    assert not any(errors.values())
    assert set(links()) == {"lo"}
    assert not any(together(deletes, make(2)).values()) and set(links()) == {"lo"}


def test_a_deletion_without_an_announcement_fails_in_time(deletes, monkeypatch):
    monkeypatch.setattr(deletion, "DELETE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(wire, "send", lambda *_: None)
    for pairs in (make(1), [(7, "veth-x"), (8, "veth-y")]):
        errors = together(deletes, pairs)
        assert {name: (e.code, e.msg) for name, e in errors.items()} == {
            name: (11, f'failed to delete "{name}": the link still exists after 0.1 s') for _, name in pairs}


def test_a_failed_leader_passes_its_role_to_a_waiting_deletion(deletes, monkeypatch):
    """If a request fails, no deletion may wait forever for the next request."""
    faults = [RuntimeError("made up")]

    def write_group(batch, group):
        if faults:
            raise faults.pop()
        return real(batch, group)

    real = module.write_group
    monkeypatch.setattr(module, "write_group", write_group)
    pairs, errors = make(12), []

    def delete(pair):
        try:
            deletes.delete(pair)
        except RuntimeError as e:
            errors.append(e)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(delete, pairs))
    assert 1 <= len(errors) <= 12 and len(links()) - 1 == 2 * len(errors)
    deletes.delete(make_named("veth-last"))


@pytest.mark.parametrize("count", [1, 3])
def test_a_request_that_cannot_be_sent_fails_all_its_deletions_at_once(deletes, monkeypatch, count):
    """Once, the thread that sent the request dropped the error (ENOMEM, EPERM). This DEL and later ones then waited
    until their time limit."""
    def refuse(sock, data):
        raise OSError(ENOMEM, "Cannot allocate memory")

    pairs = make(count)
    with monkeypatch.context() as patch:
        patch.setattr(wire, "send", refuse)
        patch.setattr(deletion, "DELETE_TIMEOUT_S", 1000)
        assert [e.errno for e in together(deletes, pairs).values()] == [ENOMEM] * count
        assert [e.errno for e in everywhere(deletes, pairs).values()] == [ENOMEM] * count
    assert not any(everywhere(deletes, pairs).values()) and set(links()) == {"lo"}


def test_an_abandoned_leader_reports_no_success_to_other_deletions(deletes, monkeypatch):
    """Once, the other deletions of the group were woken without an error, as if the kernel had deleted their links."""
    def abandon(*_):
        raise Abandoned

    monkeypatch.setattr(GroupedDeletes, "receive", abandon)
    monkeypatch.setattr(wire, "send", lambda *_: None)
    group = [Shared([pair]) for pair in make(2)]
    group[0].leads, group[0].request = True, SharedRequest(group)
    with pytest.raises(Abandoned):
        deletes._lead(group[0])
    assert group[1].gate.wait(0) and group[1].deletions[0].error.code == 11


def make_named(name):
    run("ip", "link", "add", name, "type", "veth", "peer", "name", f"p-{name}")
    return links()[name]["ifindex"], name


# -- callers that leave -------------------------------------------------------------------------------------------

class Leaving:
    """A GroupedDeletes that sends a request only when the test calls go_on(). Each deletion runs in a thread that has a
    caller."""

    def __init__(self):
        self.held, self.threads, self.callers, self.ended = [], {}, {}, {}
        self.deletes = GroupedDeletes(lambda *job: self.held.append(job))

    def begin(self, index, name):
        sock, self.callers[name] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def delete():
            request = waiting.here.request = waiting.Request()
            request.caller = sock.fileno()
            try:
                self.deletes.delete((index, name))
                self.ended[name] = None
            except Exception as e:
                self.ended[name] = e
            finally:
                sock.close()

        self.threads[name] = threading.Thread(target=delete)
        self.threads[name].start()

    def leave(self, name):
        self.callers[name].close()
        self.threads[name].join(20)
        assert isinstance(self.ended[name], waiting.CallerGone)

    def go_on(self):
        while self.held:
            fn, *args = self.held.pop(0)
            fn(*args)

    def all_end(self):
        """Send the requests until all deletions have ended."""
        assert eventually(lambda: self.go_on() or not any(each.is_alive() for each in self.threads.values()))


@pytest.fixture
def leaving(node):
    made = Leaving()
    yield made
    made.all_end()
    for conn in made.callers.values():
        conn.close()
    made.deletes.close()


def test_a_leader_whose_caller_leaves_loses_no_other_deletion(leaving):
    """The first deletion has its own request. The other deletions are the next group, and the caller of this group's
    leader leaves, too."""
    first, *others = make(5)
    leaving.begin(*first)
    assert eventually(lambda: leaving.held)
    for pair in others:
        leaving.begin(*pair)
    assert eventually(lambda: len(leaving.deletes.waiting) == 4)
    leaders = [each.deletions[0].name for each in leaving.deletes.waiting]
    leaving.leave(first[1])
    assert eventually(lambda: len(leaving.held) == 2)   # the second is the request for the other deletions
    leaving.leave(leaders[0])
    leaving.leave(leaders[1])                           # the next leader, or any other deletion of the group
    leaving.all_end()
    assert [leaving.ended[name] for name in leaders[2:]] == [None, None] and set(links()) == {"lo"}
    leaving.begin(*make_named("veth-last"))
    leaving.all_end()
    assert leaving.ended["veth-last"] is None


def test_a_deletion_abandoned_before_its_request_is_not_waited_for(leaving):
    pairs = make(3)
    leaving.begin(*pairs[0])
    assert eventually(lambda: leaving.held)
    leaving.begin(*pairs[1])
    assert eventually(lambda: leaving.deletes.waiting)
    leaving.leave(pairs[1][1])
    assert leaving.deletes.waiting == []
    leaving.all_end()
    leaving.begin(*pairs[2])
    leaving.all_end()
    assert leaving.ended[pairs[0][1]] is None and leaving.ended[pairs[2][1]] is None
    assert {name for name in links() if name.startswith("veth")} == {pairs[1][1]}
