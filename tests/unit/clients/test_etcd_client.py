"""etcd's JSON gateway and the encoding of keys, without an etcd."""

import json

import pytest
from unit.clients.http_service import Service

from fastcni.clients.errors import Away
from fastcni.clients.etcd import Client, encode, revision_is
from fastcni.kit.ipam.cluster.contract import Use
from fastcni.kit.ipam.cluster.stores import etcd_keys
from fastcni.kit.ipam.cluster.stores.etcd import batches

pytest.importorskip("urllib3")


def header(revision, cluster="7"):
    return {"header": {"cluster_id": cluster, "revision": str(revision)}}


def test_an_older_gateway_is_found_once():
    with Service({"/v3beta/kv/txn": lambda body: (200, header(3) | {"succeeded": True})}) as service:
        client = Client({"endpoints": [service.url]})
        for _ in range(2):
            assert client.txn([], []).done
        assert [path for path, _, _ in service.asked] == ["/v3/kv/txn", "/v3beta/kv/txn", "/v3beta/kv/txn"]


def test_without_any_gateway_the_error_says_so():
    with Service({}) as service, pytest.raises(Away, match="Not Found"):
        Client({"endpoints": [service.url]}).txn([], [])


def test_a_transaction_is_json_with_base64(monkeypatch):
    def answer(body):
        assert json.loads(body)["compare"] == [
            {"key": "L2E=", "target": "MOD", "result": "EQUAL", "mod_revision": 0}]
        pair = {"key": encode("/a"), "value": encode("é"), "mod_revision": "17"}
        return 200, header(18) | {"responses": [{"response_range": {"kvs": [pair]}}, {"response_put": {}}]}

    with Service({"/v3/kv/txn": answer}) as service:
        outcome = Client({"endpoints": [service.url]}).txn([revision_is("/a", 0)], [], [])
    assert (outcome.done, outcome.revision, outcome.answers[1]) == (False, 18, [])
    assert [(pair.key, pair.value, pair.revision) for pair in outcome.answers[0]] == [("/a", "é", 17)]


def test_the_history_goes_back_only_for_an_answer_that_was_asked_for_later():
    client = Client({"endpoints": ["http://127.0.0.1:1"]})
    client._note(header(5), 1.0)
    noted = client._noted
    # the client sent this request before revision 5 arrived, and its answer took longer
    client._note(header(4), noted - 1)
    assert client.history == ("7", 5)
    client._note(header(4), noted + 1)
    assert client.history == ("7", 4)
    client._note(header(9, "8"), client._noted + 1)
    assert client.history == ("8", 9)


def test_the_log_is_what_the_status_says():
    with Service({"/v3/maintenance/status": lambda body: (200, header(7) | {"raftIndex": "12"})}) as service:
        assert Client({"endpoints": [service.url]}).log() == (12, 7)


@pytest.mark.parametrize("answers", [{}, {"/v3/maintenance/status": lambda body: (
    403, {"code": 7, "message": "etcdserver: permission denied"})}], ids=["a proxy without this path", "denied"])
def test_a_status_that_etcd_does_not_give_is_no_error(answers):
    with Service(answers) as service:
        assert Client({"endpoints": [service.url]}).log() is None


def test_a_status_without_an_answer_is_an_error():
    answer = 503, {"code": 14, "message": "etcdserver: no leader"}
    with Service({"/v3/maintenance/status": lambda body: answer}) as service, pytest.raises(Away, match="no leader"):
        Client({"endpoints": [service.url]}).log()


def test_a_token_is_asked_for_once_and_again_when_it_is_refused():
    tokens, valid = iter(["t1", "t2"]), ["t1"]

    def answer(body):
        if dict(service.asked[-1][1]).get("Authorization") != valid[-1]:
            return 401, {"error": "etcdserver: invalid auth token", "code": 16}
        return 200, header(1)

    def authenticate(body):
        assert "Authorization" not in service.asked[-1][1]
        assert json.loads(body) == {"name": "me", "password": "secret"}
        return 200, {"token": next(tokens)}

    with Service({"/v3/kv/txn": answer, "/v3/auth/authenticate": authenticate}) as service:
        client = Client({"endpoints": [service.url], "username": "me", "password": "secret"})
        client.txn([], [])
        client.txn([], [])
        valid.append("t2")
        client.txn([], [])
        assert len(service.asked) == 6
        valid.append("t3")
        tokens = iter(["wrong"])
        with pytest.raises(Away, match="invalid auth token"):
            client.txn([], [])


def test_a_password_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(Away, match=r"read .*/none for etcd: No such file"):
        Client({"endpoints": ["http://127.0.0.1:1"], "username": "me", "password_file": f"{tmp_path}/none"}).txn([], [])


@pytest.mark.parametrize("cidr, inside, outside", [
    ("10.0.0.64/26", ("10.0.0.64", "10.0.0.127"), ("10.0.0.63", "10.0.0.128", "a00:40::1")),
    ("10.0.0.7/32", ("10.0.0.7",), ("10.0.0.6", "10.0.0.8")),
    ("0.0.0.0/1", ("0.0.0.0", "127.255.255.255"), ("128.0.0.0", "::1")),
    ("fd00::40/122", ("fd00::40", "fd00::7f"), ("fd00::3f", "fd00::80", "253.0.0.1")),
    ("fd00:1::/48", ("fd00:1::", "fd00:1:0:ffff:ffff:ffff:ffff:ffff"), ("fd00:2::",)),
    ("fd00::1/128", ("fd00::1",), ("fd00::", "fd00::2")),
])
def test_the_ip_claims_of_a_block_are_a_range_of_keys(cidr, inside, outside):
    keys = etcd_keys.Keys("/p/")
    first, end = keys.ip_claims_in("s", cidr)
    assert all(first <= keys.ip_claim("s", each) < end for each in inside)
    assert not any(first <= keys.ip_claim("s", each) < end for each in outside)
    assert not first <= keys.ip_claim("s2", inside[0]) < end


def test_index_keys_lead_to_their_records():
    keys = etcd_keys.Keys("/p")
    assert keys.indexed(keys.own("a/b", "s/t", "10.0.0.0/26"), "blk") == keys.block("s/t", "10.0.0.0/26")
    assert etcd_keys.unescape(etcd_keys.escape("a%2F/%")) == "a%2F/%"


def test_uses_are_written_as_many_at_a_time_as_etcd_takes():
    uses = [(Use("s", "10.0.0.0/26"), "x" * (600_000 if number % 100 == 0 else 10)) for number in range(300)]
    assert [len(batch) for batch in batches(uses)] == [100, 100, 100]
    assert [len(batch) for batch in batches([(use, "") for use, _ in uses])] == [127, 127, 46]
    assert list(batches([])) == [[]]
