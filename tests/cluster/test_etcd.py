"""Run the contract tests of stores on the etcd store, with a real etcd."""

import pytest
from unit.kit.ipam.cluster.store_contract import StoreContract

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
    def lose(self, etcd, etcd_member):
        return lambda node: etcd_member.end_lease(etcd["prefix"], node)

    @pytest.fixture
    def put(self, store):
        return lambda block: store.etcd.txn([], store._put_block(block))
