"""Run the contract tests of stores on the store in the Kubernetes API."""

import time

import pytest
from unit.kit.ipam.cluster.store_contract import StoreContract

from fastcni.kit.ipam.cluster.contract import NODE_TTL_S
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
