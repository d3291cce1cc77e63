"""fastcni doctor --bundle: what the bundle contains, and which data it must never contain."""

import json
import tarfile

import pytest
from unit.node.conftest import LIST

from fastcni.node.checks.bundle import own_lines
from fastcni.server.records.secrets import HIDDEN, hide


def read(path):
    """Return {name: text} of the files in a bundle."""
    with tarfile.open(path) as bundle:
        return {it.name.removeprefix("fastcni-doctor/"): bundle.extractfile(it).read().decode() for it in bundle}


@pytest.fixture
def bundle(directories, fastcni, tmp_path):
    """Return (answer, files) of `fastcni doctor --bundle` on a node whose files contain secrets."""
    secret = {"type": "other", "kubernetes": {"kubeconfig": "/root/SECRET"}, "apiToken": "SECRET", "list": [
        {"password": "SECRET"}], "endpoint": "https://me:SECRET@etcd:2379", "mtu": 1400}
    directories.configure({**LIST, "plugins": [*LIST["plugins"], secret]})
    (directories.conf / "05-broken.conf").write_text('{"token": "SECRET"')
    directories.cached("c1", netns="/proc/self/ns/net", cniArgs=[["K8S_TOKEN", "SECRET"]],
                       result={"cniVersion": "1.0.0"})
    answer = fastcni("doctor", "--socket", "", "--bundle", tmp_path / "b.tar.gz")
    return answer, read(tmp_path / "b.tar.gz")


def test_the_bundle_has_no_secret(bundle, tmp_path):
    _, contents = bundle
    assert not [name for name, text in contents.items() if "SECRET" in text]
    kept = json.loads(contents["net.d/10-net1.conflist"])["plugins"][2]
    assert kept["mtu"] == 1400
    assert kept["apiToken"] == HIDDEN
    assert kept["endpoint"] == f"https://{HIDDEN}@etcd:2379"
    assert "left out" in contents["net.d/05-broken.conf"]
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600


def test_the_bundle_has_what_a_report_needs_and_the_list_is_printed(bundle):
    answer, contents = bundle
    assert set(contents) >= {"doctor.json", "attachments.json", "sysctls.txt", "links.json", "plugins.json",
                             "nft-inet-fastcni.txt", "net.d/10-net1.conflist"}
    assert all(f"  {name}\n" in answer.out for name in contents)
    assert json.loads(contents["attachments.json"])["attachments"][0]["containerID"] == "c1"
    assert json.loads(contents["doctor.json"])["facts"]["fastcni"]


def test_an_existing_file_is_not_replaced(directories, fastcni, tmp_path):
    (tmp_path / "mine").write_text("mine")
    answer = fastcni("doctor", "--socket", "", "--bundle", tmp_path / "mine")
    assert answer.status == 1
    assert "File exists" in answer.err
    assert (tmp_path / "mine").read_text() == "mine"


def test_rules_of_other_programs_are_left_out():
    lines = ["*nat", ":KUBE-X - [0:0]", ":CNI-DN-0266 - [0:0]", "-A POSTROUTING -s 10.0.0.1 -j CNI-02ad",
             "-A POSTROUTING -s 192.0.2.7 -j SNAT"]
    assert list(own_lines(lines)) == ["*nat", ":CNI-DN-0266 - [0:0]", "-A POSTROUTING -s 10.0.0.1 -j CNI-02ad"]


def test_secrets_below_a_secret_key_are_removed_and_flags_stay():
    assert hide({"auth": {"user": "u", "on": True}, "name": "net"}) == {
        "auth": {"user": HIDDEN, "on": True}, "name": "net"}
