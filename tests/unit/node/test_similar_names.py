"""An error about an unknown name suggests a similar name. `list` and `inspect` hide a pod's loopback interface."""

import json

import pytest

from fastcni.cli import entry_point
from fastcni.kit.call import search
from fastcni.kit.call.similar import meant_id
from fastcni.node.attachments import topology
from fastcni.runtime import NotFound, PodNetworks
from fastcni.spec.errors import CniError


def details(capsys, *words):
    assert entry_point.run([*words, "--json"]) == 1
    return json.loads(capsys.readouterr().out).get("details", "")


@pytest.mark.parametrize("words", [("add", "ne1", "/x"), ("status", "net2"), ("netconf", "NET1"), ("gc", "nett1")])
def test_a_network_that_does_not_exist(directories, capsys, words):
    directories.configure()
    assert details(capsys, *words, "--conf-dir", str(directories.conf)) == 'did you mean "net1"?'


def test_a_network_of_pod_up(directories):
    directories.configure()
    with pytest.raises(NotFound, match='did you mean "net1"'):
        PodNetworks(directories.cni).directory.listing().named("net11")


def test_a_plugin_that_is_not_installed(tmp_path):
    (tmp_path / "bridge").write_text("")
    with pytest.raises(CniError) as caught:
        search.find("bridg", [str(tmp_path), "/nowhere"])
    assert caught.value.details == 'did you mean "bridge"?'
    with pytest.raises(CniError) as caught:
        search.find("sriov", [str(tmp_path)])
    assert caught.value.details == ""


def test_the_error_of_an_add_names_the_similar_plugin(directories, tmp_path, capsys):
    directories.configure({"cniVersion": "1.0.0", "name": "net1", "plugins": [{"type": "bridg"}]})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bridge").write_text("")
    assert details(capsys, "add", "net1", "/x", "--conf-dir", str(directories.conf), "--bin-dir", str(tmp_path / "bin"),
                   "--cache-dir", str(directories.cache)) == 'did you mean "bridge"?'


@pytest.mark.parametrize("text, suggested", [
    ("8e4g2a", "8e4f2a1b3c4d"), ("web-2", "web-1"), ("8e4f2a1b3c4e", "8e4f2a1b3c4d"), ("zzz", "")])
def test_a_container_id_or_its_beginning(text, suggested):
    found = meant_id(text, ["8e4f2a1b3c4d", "web-1"])
    assert found == (f'did you mean "{suggested}"?' if suggested else "")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_network_of_a_list(directories, fastcni, form):
    directories.configure()
    answer = fastcni("list", "--network", "nett1", *form)
    assert answer.status == 0 and 'has the network nett1; did you mean "net1"?' in answer.err
    assert fastcni("list", "--network", "net1").err == ""


@pytest.mark.parametrize("command, status", [("status", 1), ("down", 0)])
def test_a_pod_of_pod_status_and_pod_down(directories, capsys, command, status):
    directories.cached("web-1")
    words = ["pod", command, "wep-1", "--conf-dir", str(directories.conf), "--cache-dir", str(directories.cache)]
    assert entry_point.run(words) == status
    said = capsys.readouterr()
    assert said.err == 'did you mean "web-1"?\n' and "detached" not in said.out


@pytest.mark.needs("root")
@pytest.mark.parametrize("text, suggested", [("wep-1", "web-1"), ("shop/wep", "shop/web")])
def test_a_pod_of_why(directories, fastcni, text, suggested):
    directories.cached("web-1", cniArgs=[["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"]])
    answer = fastcni("why", text, "192.0.2.1:80")
    assert answer.status == 1 and f'did you mean "{suggested}"?' in answer.err


@pytest.mark.parametrize("command", ["inspect", "explain"])
def test_a_container_that_does_not_exist(directories, fastcni, command):
    directories.cached("web-1")
    answer = fastcni(command, "wep-1")
    assert answer.status == 1 and 'did you mean "web-1"?' in answer.err


def test_the_loopback_interface_of_a_pod_is_hidden(directories, fastcni):
    """containerd attaches lo to each pod. Once, each pod had two rows, and `fastcni inspect ID` was ambiguous."""
    directories.cached("c1")
    directories.cached("c1", network="cni-loopback", ifname="lo")
    assert [it["ifname"] for it in fastcni("list", "--json").document["attachments"]] == ["eth0"]
    assert "\n1 attachment: 1 unknown; --all also shows 1 loopback interface" in fastcni("list").out
    assert sorted(it["ifname"] for it in fastcni("list", "--all", "--json").document["attachments"]) == ["eth0", "lo"]
    assert fastcni("inspect", "c1", "--json").document["ifname"] == "eth0"
    assert fastcni("inspect", "c1/lo", "--json").document["ifname"] == "lo"
    assert "c1/lo" not in fastcni("explain", "c1").out
    assert [it["ifname"] for it in topology.document(directories.places)["attachments"]] == ["eth0"]
