"""Run the contract tests of stores on the store in the Kubernetes API."""

import time

import pytest
from unit.kit.ipam.cluster.store_contract import StoreContract

from fastcni.clients.errors import Rejected
from fastcni.kit.ipam.cluster.contract import NODE_TTL_S, Use
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import BASE, NODES, node_name, to_time


class TestKubernetesStore(StoreContract):
    @pytest.fixture
    def other(self, other):
        return other

    @pytest.fixture
    def lose(self, store):
        def lose(node):
            past = {"status": {"heartbeat": to_time(time.time() - NODE_TTL_S - 1)}}
            store.api.patch(f"{BASE}/{NODES}/{node_name(node)}/status", past)

        return lose

    @pytest.fixture
    def put(self, store):
        def put(block):
            if found := store.get_block(block.space, block.cidr):
                store.set_block(found, node=block.node, epoch=block.epoch, state=block.state)
            else:
                store._make(block)

        return put

    def test_a_rejected_use_keeps_no_other_from_being_written(self, store, monkeypatch):
        """The store stopped at the first IPUse that a webhook rejects. The uses of all later blocks became out of
        date."""
        node, patch = store.join("a", "boot"), store.api.patch
        cidrs = ["10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26"]
        store.grid("s", {"4": 26})
        store.claim(node, [("s", cidr) for cidr in cidrs])

        def reject(path, changes):
            if changes["spec"]["cidr"] == cidrs[0]:
                raise Rejected("status 403: denied by a webhook")
            return patch(path, changes)

        monkeypatch.setattr(store.api, "patch", reject)
        with pytest.raises(Rejected, match="denied by a webhook"):
            store.write_uses(node, [Use("s", cidr, "a", node.epoch, "boot", [], 1.0) for cidr in cidrs])
        assert [use.cidr for use in store.uses()] == cidrs[1:]
