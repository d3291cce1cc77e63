"""Start, restore and end the etcd that the tests of this directory use."""

import os
import signal
import urllib.error
import urllib.request

import pytest
from cluster.etcd import Etcd, encoded

from fastcni.kit.ipam.cluster.contract import log_restored, restored
from fastcni.kit.ipam.cluster.stores import open_store


def put(etcd, key, value):
    return etcd.call("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})


def test_a_restored_backup_has_the_old_keys_and_a_lower_revision(etcd_alone):
    put(etcd_alone, "/t/a", "1")
    saved = etcd_alone.backup()
    newest = int(put(etcd_alone, "/t/a", "2")["header"]["revision"])
    etcd_alone.restore(saved)
    assert etcd_alone.keys("/t/") == {"/t/a": "1"}
    assert int(etcd_alone.call("/v3/kv/range", {"key": encoded("/t/a")})["header"]["revision"]) < newest


def test_the_log_shows_a_restored_backup_when_the_revision_has_grown_again(etcd_alone):
    """A node that joins the cluster also sees the restore in the log, until settle() says that the store is complete
    again."""
    def joined(node):
        return store.join_space(node, "boot", "s", {"4": 26}, True)

    store = open_store(etcd_alone.conf())
    me = joined("a").node
    for i in range(10):
        store.claim(me, [("s", f"10.1.{i}.0/26")])
    store.log()
    before, saved = store.history(), etcd_alone.backup()
    etcd_alone.restore(saved)
    for i in range(20):
        store.claim(me, [("s", f"10.0.{i}.0/26")])
    assert not restored(before, store.history()) and log_restored(before, store.log())
    assert joined("b").restored
    store.settle()
    assert not joined("c").restored
    again = store.history()
    store.claim(me, [("s", "10.2.0.0/26")])
    assert not log_restored(again, store.log())
    store.close()


def test_a_client_without_a_certificate_is_refused(etcd_tls):
    context = etcd_tls.trusting()
    with pytest.raises(OSError):
        urllib.request.urlopen(etcd_tls.endpoints[0] + "/version", timeout=10, context=context)
    context.load_cert_chain(etcd_tls.conf()["cert"], etcd_tls.conf()["key"])
    assert urllib.request.urlopen(etcd_tls.endpoints[0] + "/version", timeout=10, context=context).status == 200


def test_a_client_without_a_token_is_refused(etcd_user):
    with pytest.raises(urllib.error.HTTPError):
        etcd_user.keys("/fastcni/")
    assert etcd_user.keys("/fastcni/", etcd_user.token()) == {}


def test_nothing_of_a_server_is_left(etcd_member):
    with Etcd() as etcd:
        pid, directory = etcd.members[0].popen.pid, etcd.directory
        etcd.members[0].pause()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
    assert not directory.exists() and etcd_member.members[0].healthy()
