"""The plugin `chain`: DEL deletes the links of all plugins together, and a failed plugin leaves nothing."""

import pytest

from fastcni import plugins
from fastcni.spec.errors import CniError
from fastcni.testing.fake_messages import HOST
from fastcni.testing.fake_runtime import AtOnceMode

pytestmark = pytest.mark.usefixtures("fake_sockets")
RATES = {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}


class Noting(AtOnceMode):
    """A mode that records the link names of each delete_links()."""

    __slots__ = ()
    seen: list = []

    def delete_links(self, *links):
        self.seen.append([name[:3] for _, name in links])
        super().delete_links(*links)


@pytest.fixture
def conf(calls):
    calls.mode, Noting.seen = Noting, []
    ipam = calls.conf("")["ipam"]
    return calls.conf("chain", plugins=[{"type": "bridge", "ipam": ipam}, {"type": "tuning"},
                                        {"type": "bandwidth", **RATES}])


def kinds(calls):
    return {link.kind for link in calls.node.links[HOST].values()} - {"", "bridge"}


def test_del_deletes_the_ifb_together_with_the_veth_pair(calls, conf):
    status, result = calls("ADD", conf)
    assert status == 0, result
    assert kinds(calls) == {"veth", "ifb"}
    assert calls("DEL", {**conf, "prevResult": result}) == (0, None)
    assert Noting.seen == [["vet", "bwp"]]
    assert kinds(calls) == set() and calls.held() == []


def test_a_failed_del_of_a_plugin_before_the_link_leaves_no_ifb(calls, conf, monkeypatch):
    def refuse(req, conf):
        raise CniError(11, "not now")

    _, result = calls("ADD", conf)
    monkeypatch.setattr(plugins.load("tuning"), "delete", refuse)
    status, document = calls("DEL", {**conf, "prevResult": result})
    assert (status, document["msg"]) == (1, 'plugin type="tuning" (index 1) failed (delete): not now')
    assert Noting.seen == [["bwp"]]
    assert kinds(calls) == {"veth"} and len(calls.held()) == 1


def test_bandwidth_by_itself_deletes_its_ifb_at_once(calls, conf):
    _, result = calls("ADD", conf)
    assert calls("DEL", {**conf, "type": "bandwidth", "prevResult": result}) == (0, None)
    assert Noting.seen == [["bwp"]]
