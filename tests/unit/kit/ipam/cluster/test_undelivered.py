"""The launcher of an ADD is killed, and the runtime's DEL runs at the same time. No address stays allocated,
whatever the order of their steps.

The server continues the ADD until it notices that its caller has left, at the latest when it cannot deliver the answer.
The runtime's DEL is one-shot, and runs while the ADD asks the store."""

import contextlib

import pytest
from unit.kit.ipam.cluster.node import NET, Node, pod
from unit.kit.ipam.cluster.watched import CALLS, WatchedMode, store_of

from fastcni.kernel import waiting
from fastcni.kit.call.undo import Undo
from fastcni.kit.ipam.cluster.contract import HELD
from fastcni.plugins import cluster
from fastcni.spec.errors import CniError

CASES = {
    "a block": (NET, ""),
    "an address of no block": ({"range": "10.0.0.0/29"}, ""),
    "a sticky address": (NET | {"sticky": "pod"}, pod("db-0")),
    "a requested address": (NET, "IP=10.0.0.77"),
}


class Undelivered(OSError):
    """Raised because the server could not deliver the ADD's answer."""


def add_undelivered(node, ipam, args):
    """Run an ADD that succeeds. Roll it back, because its caller has left."""
    req = node.request("ADD", ipam, "c1", args=args)
    conf = cluster.read(req)
    with contextlib.suppress(Undelivered, CniError), Undo() as undo:
        cluster.add(req, conf, undo)
        raise Undelivered


def delete_at(watched, step, delete):
    """Return a store that runs the DEL before call number `step`, counted from 0. With -1 the DEL never runs."""
    number = iter(range(1000))

    class Beside:
        def __getattr__(self, name):
            real = getattr(watched, name)
            if name not in CALLS:
                return real

            def call(*args, **more):
                if next(number) == step:
                    delete()
                return real(*args, **more)
            return call
    return Beside()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", range(-1, 12))
def test_an_add_that_cannot_be_answered_leaves_nothing_beside_a_del(tmp_path, monkeypatch, case, step):
    monkeypatch.setattr(waiting, "LOCK_TIMEOUT_S", 0.01)  # the DEL tries only briefly to get the ADD's lock for claims
    ipam, args = CASES[case]
    settings = {"type": "local", "path": str(tmp_path / "store")}
    server = Node(tmp_path, "a", settings, WatchedMode(settings))
    one_shot = Node(tmp_path, "a", settings, WatchedMode(settings))
    server.mode.watched = delete_at(server.mode.watched, step, lambda: one_shot.delete(ipam, "c1", args=args))
    add_undelivered(server, ipam, args)
    one_shot.add(NET | {"range": "10.77.0.0/24"}, "c9")  # with a claim, the node also reports ended pods to the store
    assert [content for content in one_shot.files().values() if content.startswith(b"c1")] == []
    assert [ip_claim for ip_claim in store_of(one_shot).ip_claims() if ip_claim.state == HELD] == []
