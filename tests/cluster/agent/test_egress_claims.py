"""Claims of egress addresses in a real etcd and in the API mock: one node at a time has an address, even if a node
hangs."""

import contextlib
import threading
import time

import pytest
import yaml
from cluster.kubernetes.api_server import ROOT, Running, kubeconfig

from fastcni.agent.egress.claims import TABLE, open_claims
from fastcni.agent.egress.claims.contract import LEASE_S
from fastcni.agent.egress.claims.kubernetes import name_of
from fastcni.clients.errors import Away, Rejected
from fastcni.spec.address import read_ip
from fastcni.testing.witnesses import eventually

ADDRESSES = FOUR, SIX = read_ip("192.0.2.50"), read_ip("2001:db8::50")


class Store:
    """Claims of nodes, each with its watch in a thread."""

    def __init__(self, kind, settings):
        self.kind, self.settings, self.stopped, self.opened = kind, settings, threading.Event(), []

    def node(self, name):
        claims = open_claims(self.kind, self.settings, name)
        listed = threading.Event()
        thread = threading.Thread(target=claims.watch, args=(listed.set, self.stopped.is_set))
        thread.start()
        self.opened.append((claims, thread))
        assert listed.wait(30)
        return claims

    def close(self):
        self.stopped.set()
        for claims, _ in self.opened:
            claims.close()
        for _, thread in self.opened:
            thread.join()


@pytest.fixture(params=["etcd", "kubernetes"])
def store(request, tmp_path):
    with contextlib.ExitStack() as opened:
        if request.param == "etcd":
            settings = request.getfixturevalue("etcd")
        else:
            server = opened.enter_context(Running())
            documents = yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text())
            rules = [{**rule, "namespace": it["metadata"].get("namespace")} for it in documents
                     if it["kind"] in ("ClusterRole", "Role") for rule in it["rules"]]
            server.do(lambda api: setattr(api, "rules", rules))
            (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
            settings = {"kubeconfig": str(tmp_path / "kubeconfig")}
        found = Store(request.param, settings)
        opened.callback(found.close)
        yield found


def test_each_registry_has_claims():
    from fastcni.agent.registries import TABLE as REGISTRIES

    assert TABLE.keys() == REGISTRIES.keys()


def test_of_two_nodes_one_holds_an_address_and_both_know_which(store):
    one, two = store.node("one"), store.node("two")
    for address in ADDRESSES:
        before = time.monotonic()
        assert before < one.claim(address) <= time.monotonic() + LEASE_S
        assert eventually(lambda address=address: two.free_at(address) > time.monotonic())
        assert two.claim(address) == 0.0
    assert eventually(lambda: all(each.holders() == dict.fromkeys(ADDRESSES, "one") for each in (one, two)))
    assert one.renew(ADDRESSES).keys() == set(ADDRESSES)


def test_a_claim_that_is_given_up_is_free_for_others_without_a_wait(store):
    one, two = store.node("one"), store.node("two")
    one.claim(FOUR)
    assert eventually(lambda: FOUR in two.holders())
    one.release([FOUR])
    assert eventually(lambda: two.free_at(FOUR) == 0.0)
    assert two.claim(FOUR)


@pytest.mark.parametrize("store", ["kubernetes"], indirect=True)
def test_a_lease_that_the_api_rejects_costs_the_node_no_other_address(store, monkeypatch):
    """The renewal ended at the first error, so after LEASE_S the node also lost the addresses of its other Leases."""
    one = store.node("one")
    assert all(map(one.claim, ADDRESSES))
    patch = one.api.patch

    def reject(path, changes):
        if path.endswith(name_of(FOUR)):
            raise Rejected("status 403: denied")
        return patch(path, changes)

    monkeypatch.setattr(one.api, "patch", reject)
    assert one.renew(ADDRESSES).keys() == {SIX}
    with pytest.raises(Rejected):
        one.renew([FOUR])


def test_a_claim_that_is_not_renewed_ends_and_its_node_learns_that_it_has_lost_it(store):
    one, two = store.node("one"), store.node("two")
    end = one.claim(FOUR)
    assert eventually(lambda: FOUR in two.holders())
    assert eventually(lambda: two.free_at(FOUR) <= time.monotonic() and two.claim(FOUR))
    assert time.monotonic() > end               # no earlier, because the other node may use the address until then
    assert FOUR not in one.renew([FOUR])


def test_while_it_is_renewed_no_other_node_gets_it(store):
    one, two = store.node("one"), store.node("two")
    end = one.claim(FOUR)
    assert eventually(lambda: FOUR in two.holders())
    until = end + LEASE_S
    while time.monotonic() < until:
        end = one.renew([FOUR]).get(FOUR, 0.0)
        assert end, "another node has it"
        if two.free_at(FOUR) <= time.monotonic() < end:
            assert two.claim(FOUR) == 0.0
        time.sleep(0.2)


def test_a_restarted_node_goes_on_with_its_claim(store):
    store.node("one").claim(FOUR)
    again = store.node("one")
    assert again.free_at(FOUR) == 0.0
    assert again.claim(FOUR)


def test_a_store_that_does_not_answer_is_away_before_the_lease_ends(store):
    one = store.node("one")
    one.claim(FOUR)
    if store.kind == "etcd":
        one.client.http.endpoints = ["http://192.0.2.99:9"]
    else:
        one.api._open()[1].endpoints = ["http://192.0.2.99:9"]
    began = time.monotonic()
    with pytest.raises(Away):
        one.renew([FOUR])
    assert time.monotonic() - began < LEASE_S
