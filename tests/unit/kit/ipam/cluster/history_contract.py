"""A store's history and log, by which a node notices that the store was restored from a backup."""

from fastcni.kit.ipam.cluster.contract import log_restored, restored


class HistoryContract:
    def test_the_history_grows(self, store, other):
        name, before, _ = store.history()
        store.join("a", "boot")
        assert name and other.history()[0] == name
        assert store.history()[1] >= before

    def test_a_store_without_a_restore_shows_none(self, store, other, a, b):
        store.log()
        for me, cidr in ((a, "10.0.0.64/26"), (b, "10.0.0.128/26")):
            store.claim(me, [("s", cidr)])
        before = store.history()
        for block in store.blocks():
            other.give_back(block)
            other.claim(a, [("s", block.cidr)])
        assert not restored(before, other.history())
        for each in (store, other):
            assert not log_restored(before, each.log())
