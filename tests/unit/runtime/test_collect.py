"""GC by the runtime with real plugins. It releases all addresses and rules of deleted pods, and reports them."""

import io
import json
import os

import pytest
from conftest import PEER, needs_peer
from lab.node import cid_of, elements

from fastcni.launcher.install import install
from fastcni.runtime import CNI, Exec, InProcess, RuntimeConf, collect, parse_list
from fastcni.testing.namespaces import ip
from fastcni.testing.witnesses import eventually

FOREIGN_IPAM = """#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.22.0.77/16"}]}'
echo "$CNI_COMMAND" >> "$0.calls"
"""


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory)
    return directory


class Runtime:
    def __init__(self, node, cni, version, *plugins, **keys):
        self.node, self.cni = node, cni
        first = node.conf("10.22.0.0/16", ipMasq=True, isGateway=True) | keys
        chain = [first, *({"type": kind} for kind in plugins)]
        self.net = parse_list(json.dumps({"cniVersion": version, "name": "net-a", "plugins": chain}).encode())

    def add(self, pod, container=""):
        result = self.cni.add(self.net, RuntimeConf(container or cid_of(pod), f"/run/netns/{pod}", "eth0"))
        return next(ip["address"].partition("/")[0] for ip in result["ips"])

    def forget(self, pod):
        """Remove the cached result and the pod, so that no DEL will ever release the pod's address."""
        self.cni.cache.remove("net-a", RuntimeConf(cid_of(pod), "", "eth0"))
        ip("netns", "del", pod)

    def collect(self):
        return collect.run(self.cni, self.net, collect.make_plan(self.cni.attachments(), "net-a"))


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("in_process", [True, False])
def test_gc_releases_and_reports_a_leak_in_every_version(node, bin_dir, tmp_path, pod_netns, version, in_process):
    """Once, below version 1.1.0, the runtime called no plugin and reported the network as cleaned up. The address was
    never released."""
    runner = InProcess() if in_process else Exec()
    it = Runtime(node, CNI([bin_dir], cache_dir=tmp_path / "cni", runner=runner), version, "firewall")
    alive, dead, leaked = pod_netns(), pod_netns(), pod_netns()
    kept, _, lost = it.add(alive), it.add(dead), it.add(leaked)
    ip("netns", "del", dead)
    it.forget(leaked)
    report = it.collect()
    assert report.errors == []
    assert [each.attachment.container_id for each in report.kept] == [cid_of(alive)]
    assert [each.attachment.container_id for each in report.deleted] == [cid_of(dead)]
    output = {(one.plugin, one.what, cid_of(leaked) in one.of) for each in report.plugins for one in each.released}
    assert ("host-local", f"address {lost}", True) in output
    assert ("bridge", "element of nftables fastcni pods4", True) in output
    assert any(plugin == "firewall" for plugin, _, _ in output)
    assert list(node.held()) == [kept]
    assert len(elements("pods4")) == 1


def test_gc_releases_a_pod_whose_namespace_s_path_another_pod_has(node, bin_dir, tmp_path, pod_netns):
    """Once, gc kept the address of a pod that ended without a DEL while the path of its namespace existed."""
    it = Runtime(node, CNI([bin_dir], cache_dir=tmp_path / "cni", runner=InProcess()), "1.1.0")
    pod = pod_netns()
    it.add(pod)
    ip("netns", "del", pod)
    assert eventually(lambda: "veth" not in ip("-br", "link"))
    ip("netns", "add", pod)
    kept = it.add(pod, "later")
    report = it.collect()
    (deleted,) = report.deleted
    assert (deleted.attachment.container_id, deleted.why, deleted.error) == (
        cid_of(pod), f"/run/netns/{pod} is now the namespace of later", None)
    assert [each.attachment.container_id for each in report.kept] == ["later"]
    assert list(node.held()) == [kept] and f" {kept}/" in ip("-n", pod, "-br", "addr", "show", "eth0")
    assert it.collect().deleted == ()


def test_gc_keeps_a_pod_that_runs_without_the_path_that_another_pod_has(node, bin_dir, tmp_path, pod_netns):
    """If libcni's GC deletes a pod, the DEL has the path of the namespace, which another pod may have now. Once, such a
    DEL of fastcni, too, deleted the other pod's interface."""
    it = Runtime(node, CNI([bin_dir], cache_dir=tmp_path / "cni", runner=InProcess()), "1.1.0")
    pod = pod_netns()
    first = it.add(pod)
    process = os.open(f"/run/netns/{pod}", os.O_RDONLY)         # a descriptor, in place of a process in the namespace
    try:
        ip("netns", "del", pod)
        ip("netns", "add", pod)
        kept = it.add(pod, "later")
        assert it.collect().deleted == () and {*node.held()} == {first, kept}
        it.cni.gc(it.net, [("later", "eth0")])
        assert list(node.held()) == [kept] and f" {kept}/" in ip("-n", pod, "-br", "addr", "show", "eth0")
    finally:
        os.close(process)


@needs_peer
def test_foreign_plugins_below_1_1_0_are_skipped_and_named(node, bin_dir, tmp_path, pod_netns):
    (tmp_path / "bin").mkdir()
    for kind in ("bridge", "host-local"):
        os.link(bin_dir / kind, tmp_path / "bin" / kind)
    os.symlink(f"{PEER}/tuning", tmp_path / "bin" / "tuning")
    it = Runtime(node, CNI([tmp_path / "bin"], cache_dir=tmp_path / "cni"), "1.0.0", "tuning")
    leaked = pod_netns()
    lost = it.add(leaked)
    it.forget(leaked)
    first, second = it.collect().plugins
    assert f"address {lost}" in [one.what for one in first.released]
    assert second.released is None
    assert second.skipped.startswith('cniVersion "1.0.0" has no GC')


def test_a_foreign_ipam_plugin_below_1_1_0_is_skipped_with_a_warning(node, bin_dir, tmp_path, pod_netns):
    """In that version, the foreign plugin and bridge would both reject the command GC. bridge must still do its own
    GC."""
    (tmp_path / "bin").mkdir()
    os.link(bin_dir / "bridge", tmp_path / "bin" / "bridge")
    script = tmp_path / "bin" / "theirs"
    script.write_text(FOREIGN_IPAM)
    script.chmod(0o755)
    stderr = io.BytesIO()
    cni = CNI([tmp_path / "bin"], cache_dir=tmp_path / "cni", runner=Exec(stderr=stderr))
    it = Runtime(node, cni, "1.0.0", ipam={"type": "theirs"}, isGateway=False)
    leaked = pod_netns()
    it.add(leaked)
    it.forget(leaked)
    [first] = it.collect().plugins
    assert first.error is None
    assert [one.what for one in first.released] == ["element of nftables fastcni pods4"]
    assert b'is not asked for GC: cniVersion "1.0.0" has none' in stderr.getvalue()
    assert script.with_suffix(".calls").read_text().split() == ["ADD"]
