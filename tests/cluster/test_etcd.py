"""The etcd store keeps the contract, on a real etcd."""

import pytest
from cluster_ipam.store_contract import StoreContract

from fastcni.kit.ipam.cluster.contract import Node
from fastcni.kit.ipam.cluster.stores import open_store


class TestEtcdStore(StoreContract):
    @pytest.fixture
    def store(self, etcd):
        store = open_store(etcd)
        yield store
        store.close()

    @pytest.fixture
    def other(self, etcd, store):
        other = open_store(etcd)
        yield other
        other.close()

    @pytest.fixture
    def lose(self, store, etcd_member):
        def lose(name):
            """Its lease ends, as after NODE_TTL_S."""
            (node,) = [node for node in store.nodes() if node.name == name]
            etcd_member.call("/v3/lease/revoke", {"ID": store.keys.lease(Node(name, node.epoch))})
        return lose
