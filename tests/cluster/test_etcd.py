"""The etcd store keeps the contract, on a real etcd."""

import pytest
from cluster_ipam.store_contract import StoreContract

from fastcni.kit.ipam.cluster.contract import ACTIVE
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.etcd import put, value_of


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
    def lose(self, etcd, etcd_member):
        return lambda node: etcd_member.end_lease(etcd["prefix"], node)

    @pytest.fixture
    def activate(self, store):
        def activate(block):
            block.state = ACTIVE
            store.etcd.txn([], [put(store.keys.block(block.space, block.cidr), value_of(block))])

        return activate
