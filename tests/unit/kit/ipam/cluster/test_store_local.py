"""The local store fulfils the contract. A bad directory gives an error that names the cause."""

import json

import pytest
from unit.kit.ipam.cluster.store_contract import StoreContract

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster.contract import ALIVE, LOST, NODE_TTL_S
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.local import LocalStore, key_of


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return open_store({"type": "local", "path": str(tmp_path / "store")})

    @pytest.fixture
    def other(self, tmp_path, store):
        return LocalStore({"path": str(tmp_path / "store")})

    @pytest.fixture
    def lose(self, tmp_path):
        def lose(node):
            path = tmp_path / "store" / "store.json"
            data = json.loads(path.read_text())
            data["nodes"][node]["seen"] -= 2 * NODE_TTL_S
            path.write_text(json.dumps(data))
        return lose

    @pytest.fixture
    def put(self, store):
        def put(block):
            with store.open() as doc:
                doc.put("blocks", key_of(block), block)
        return put


def test_a_directory_that_cannot_be_made_is_a_store_that_is_away(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Away, match="file/store: Not a directory"):
        LocalStore({"path": str(tmp_path / "file/store")}).nodes()


def test_a_damaged_file_is_a_store_that_is_away(tmp_path):
    store = LocalStore({"path": str(tmp_path)})
    store.join("a", "boot")
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(Away, match=r"store\.json is damaged"):
        store.nodes()


def test_the_configuration_says_how_long_a_node_lives_without_a_sign_of_life(tmp_path):
    store = LocalStore({"path": str(tmp_path)})
    store.join("a", "boot")
    strict = LocalStore({"path": str(tmp_path), "node_ttl": 0})
    assert (store.nodes()[0].state, strict.nodes()[0].state) == (ALIVE, LOST)
