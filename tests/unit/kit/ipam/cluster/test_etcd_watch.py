"""The watch of the etcd store continues after the last change that it has read. The revision in a message's header may
be higher."""

from types import SimpleNamespace

import pytest

from fastcni.clients.errors import Away
from fastcni.clients.etcd import Pair, encode
from fastcni.kit.ipam.cluster.contract import Block
from fastcni.kit.ipam.cluster.stores.etcd_keys import Keys
from fastcni.kit.ipam.cluster.stores.etcd_watch import REOPEN_S, Copy, EtcdWatch
from fastcni.spec import json

KEYS = Keys("/t")


def block(number, revision, node="a"):
    value = json.write({"node": node}).decode()
    return Pair(KEYS.block("s", f"10.0.{number}.0/26"), value, revision)


def message(header, *pairs, **more):
    """Return a message of the watch. header: etcd's revision at the time of the message."""
    events = [{"kv": {"key": encode(pair.key), "value": encode(pair.value), "mod_revision": str(pair.revision)}}
              for pair in pairs]
    return {"result": {"header": {"revision": str(header)}, **({"events": events} if events else {}), **more}}


class Etcd:
    """A Client. Its lists are empty and have revision 10. Each watch gets the next item of `answers`.

    answers: lists of messages. "leave" instead of a message moves requests to another endpoint, "lose" ends the
    connection. started: the revision after which each watch began. lists: the number of list requests.
    """

    def __init__(self, *answers):
        self.answers, self.started, self.lists, self.token = list(answers), [], 0, None
        self.http = SimpleNamespace(endpoints=["http://one", "http://two"], good=0)

    def read_range(self, first, end):
        self.lists += 1
        return [], 10

    def watch(self, first, end, revision, stop):
        self.started.append(revision - 1)
        return Stream(self, self.answers.pop(0), stop)


class Stream:
    def __init__(self, etcd, answer, stop):
        self.etcd, self.answer, self.stop, self.endpoint = etcd, answer, stop, etcd.http.endpoints[etcd.http.good]

    def over(self):
        return self.stop() or self.etcd.http.endpoints[self.etcd.http.good] != self.endpoint

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __iter__(self):
        for each in self.answer:
            if each == "lose":
                raise Away("lost")
            if each == "leave":
                self.etcd.http.good = 1 - self.etcd.http.good
            else:
                yield each
            if self.over():
                return


def run(*answers, monkeypatch):
    """Watch until all answers have been read. Return (the Etcd, the events)."""
    etcd, events = Etcd(*answers), []
    # each watch has lasted so long that the next one may begin immediately
    clock = iter(range(0, 1000, int(REOPEN_S) + 1))
    monkeypatch.setattr("fastcni.kit.ipam.cluster.stores.etcd_watch.monotonic", lambda: float(next(clock)))
    EtcdWatch(etcd, KEYS).run(events.append, lambda: not etcd.answers)
    return etcd, events


CREATED = message(99, created=True)         # etcd has changes up to revision 99; messages with 11 to 99 follow


@pytest.mark.parametrize("end", ["leave", "lose"])
@pytest.mark.parametrize(("messages", "last"), [
    ([CREATED], 10),
    ([CREATED, message(99, block(1, 11))], 11),
    ([CREATED, message(99, block(1, 11), block(2, 12)), message(99, block(3, 99))], 99),
    ([message(10, created=True), message(50)], 50),
], ids=["no change", "some of the changes", "all changes", "progress"])
def test_a_watch_goes_on_after_the_last_change_that_was_seen(messages, last, end, monkeypatch):
    """The first message's header has the revision of changes that later messages contain. Once, the watch took this
    revision as its own. If it then moved to another endpoint, it missed these changes. If the connection was lost, the
    watch began again at its first revision, and reported old records."""
    etcd, _ = run([*messages, end], [message(100, created=True)], monkeypatch=monkeypatch)
    assert etcd.started == [10, last]
    assert etcd.lists == 1


def test_a_lost_watch_reports_no_former_owner_again(monkeypatch):
    etcd, events = run([CREATED, message(99, block(1, 11, "a")), message(99, block(1, 12, "b")), "lose"],
                       [message(99, created=True), "lose"], [message(99, created=True)], monkeypatch=monkeypatch)
    assert [(event.record.node, event.gone) for event in events] == [("a", False), ("b", False)]
    assert etcd.started == [10, 12, 12]


@pytest.mark.parametrize("first", [message(99, created=True, compact_revision="60", canceled=True), message(7)],
                         ids=["compacted", "restored from a backup"])
def test_without_the_changes_all_is_listed(first, monkeypatch):
    etcd, _ = run([first], [message(10, created=True)], monkeypatch=monkeypatch)
    assert etcd.lists == 2


def test_a_deleted_key_counts_as_a_change():
    events = []
    copy = Copy(KEYS, events.append)
    gone = message(99, block(1, 20))["result"]
    gone["events"][0]["type"] = "DELETE"
    copy.follow(message(99, block(1, 15))["result"])
    copy.follow(gone)
    assert copy.revision == 20
    assert [(type(event.record), event.gone) for event in events] == [(Block, False), (Block, True)]
