"""docs/ipam.md: its table lists the plugin's keys, its configuration is valid, and its commands run.
tests/cluster/test_ipam_page.py (`make test-cluster`) runs the commands for etcd and the demos."""

import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
from unit.node.test_import_whereabouts import POOL, source_of
from unit.node.test_ipam import HERE, Cluster

from fastcni.kit.ipam.cluster import conf, stores
from fastcni.node.cluster import site
from fastcni.runtime.key_recorder import KeyRecorder
from fastcni.spec.config import Section

ROOT = Path(__file__).parents[3]
PAGE, OPERATION, WHEREABOUTS = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
                                for name in ("ipam", "ipam-operation", "ipam-whereabouts"))


def section(title, level="##", page=PAGE):
    return page.partition(f"\n{level} {title}\n")[2].partition("\n## ")[0]


def commands(text):
    """Return the commands in a text's indented blocks, without comments."""
    return [line.partition("  #")[0].strip() for line in text.splitlines() if re.match(r" {4,}[a-z]", line)]


def table_keys(text):
    """Return the keys in the first column of a table."""
    return {key for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}


SHOWN = [*commands(section("See and repair", page=OPERATION)), *commands(WHEREABOUTS)]


def asked_keys(ipam):
    """Return {path of an object in the configuration: keys that the plugin reads}."""
    recorder = KeyRecorder({"cniVersion": "1.0.0", "name": "net", "ipam": ipam})
    conf.read_keys(recorder)
    return {where: set(one.asked.values()) for where, one in recorder.journal.items()}


def test_the_page_has_each_key_and_no_other():
    shown, store_shown = table_keys(section("Keys").partition("###")[0]), table_keys(section("Keys of `store`", "###"))
    ipam = {"type": "cluster", "ipRanges": [{"range": "10.0.0.0/24"}], "store": {"type": "etcd", "endpoints": ["http://x"]}}
    asked = asked_keys(ipam)
    own = asked["ipam"] | asked["ipam.ipRanges[0]"]
    assert shown - own == set()
    assert own - shown - set(conf.IGNORED) - {"enable_overlapping_ranges", "type"} == set()
    kinds = [asked_keys(ipam | {"store": {"type": kind, "endpoints": ["http://x"]}})["ipam.store"]
             for kind in stores.STORES]
    assert store_shown == set().union(*kinds)


def test_the_configuration_on_the_page_is_valid():
    (text,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    document = json.loads(text)
    (plugin,) = document["plugins"]
    keys = conf.read_keys(Section({"cniVersion": document["cniVersion"], "name": document["name"], **plugin}))
    assert [str(one) for one in keys.ranges] == ["10.20.0.0/16"] and keys.warnings == []


def test_defaults_on_the_page():
    keys = conf.read_keys(Section({"name": "net", "ipam": {"type": "cluster", "range": "10.0.0.0/16"}}))
    text = section("Keys")
    for name, value in (("cool_down", keys.cool_down), ("serve_after_loss", keys.serve_after_loss),
                        ("dataDir", f"`{keys.data_dir}`"), ("network_name", f"`{keys.space}`"),
                        ("block_size", keys.ranges[0].wanted_prefix())):
        assert re.search(rf"^\| `{name}` \| {re.escape(str(value))} \|", text, re.MULTILINE), name
    assert stores.LOCAL_PATH in text and stores.ETCD_PREFIX in text


@pytest.fixture
def page_cluster(directories):
    """Return a Cluster with this node, whose pod no longer exists, and a dead node-b."""
    cluster = Cluster(directories)
    cluster.configure("shared", range="10.20.0.0/16")
    cluster.use(HERE, "10.20.0.64/26", ("10.20.0.65", "ns/web-0", "c1"))
    cluster.use("node-b", "10.20.0.128/26", ("10.20.0.129", "ns/web-1", "c2"))
    cluster.store.share("default", "10.20.0.0/26")
    cluster.ip_claim(HERE, "10.20.0.5", block="10.20.0.0/26")
    cluster.silence("node-b")
    return cluster


def test_files_that_kubectl_gets_exist_and_have_what_the_page_names():
    text = section("On Kubernetes")
    files = re.findall(r"-f (\S+)", text)
    assert files == ["deploy/cluster-ipam-crds.yaml", "deploy/cluster-ipam.yaml"]
    found = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    assert "name: fastcni-cluster-ipam" in found and "plural: ipblocks" in found and "plural: ipnodes" in found
    (settings,) = re.findall(r"\"store\": (\{.*\})", text)
    assert stores.read_settings(Section({"store": json.loads(settings)}))["type"] == "kubernetes"


def test_the_page_shows_all_commands():
    assert {line.split()[2] for line in SHOWN} == {
        "nodes", "list", "show", "release", "forget-node", "import-whereabouts"}


def test_every_command_of_the_page_works(page_cluster, fastcni, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *text, abort: None)
    monkeypatch.setattr(site.Site, "read_whereabouts", lambda *args: source_of(POOL))
    failed = {}
    for line in SHOWN:
        answer = fastcni(*shlex.split(line)[1:])
        if answer.status:
            failed[line] = answer.out + answer.err
    assert failed == {}
    assert page_cluster.node("node-b") is None and page_cluster.store.ip_claim("default", "10.20.0.5") is None
    assert page_cluster.store.ip_claim("default", "10.5.0.1").pod == "ns/a"
