"""The servers that the tests of this lane start."""

import os
import signal
import urllib.error
import urllib.request

import pytest
from cluster.etcd import Etcd, encoded


def put(etcd, key, value):
    return etcd.call("/v3/kv/put", {"key": encoded(key), "value": encoded(value)})


def test_a_restored_backup_has_the_old_keys_and_a_lower_revision(etcd_alone):
    put(etcd_alone, "/t/a", "1")
    saved = etcd_alone.backup()
    newest = int(put(etcd_alone, "/t/a", "2")["header"]["revision"])
    etcd_alone.restore(saved)
    assert etcd_alone.keys("/t/") == {"/t/a": "1"}
    assert int(etcd_alone.call("/v3/kv/range", {"key": encoded("/t/a")})["header"]["revision"]) < newest


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
