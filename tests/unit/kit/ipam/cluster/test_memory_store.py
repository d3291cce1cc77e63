"""The store in memory fulfils the contract, so the model's results are valid for other stores."""

import time

import pytest
from unit.kit.ipam.cluster.memory_store import Memory, MemoryStore
from unit.kit.ipam.cluster.store_contract import StoreContract

from fastcni.kit.ipam.cluster.contract import NODE_TTL_S


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def memory(self):
        return Memory(time.time)

    @pytest.fixture
    def store(self, memory):
        return MemoryStore(memory)

    @pytest.fixture
    def other(self, memory):
        return MemoryStore(memory)

    @pytest.fixture
    def lose(self, memory):
        def lose(node):
            memory.nodes[node].seen -= 2 * NODE_TTL_S
        return lose

    @pytest.fixture
    def put(self, memory):
        return lambda block: memory.put(memory.blocks, (block.space, block.cidr), block)
