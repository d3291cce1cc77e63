"""The library with real plugins: the reference plugin host-local, if it is installed, and fastcni's own plugins
in-process."""

import os

import pytest

from fastcni.kit.call import search
from fastcni.runtime import CNI, CniError, InProcess, PluginError, RuntimeConf, parse_list
from fastcni.spec import json

GO = "/usr/lib/cni"
RT = RuntimeConf("ctr", "/nonexistent/ns", "eth0")


def is_go(name):
    return os.path.isfile(f"{GO}/{name}") and not search.is_own(f"{GO}/{name}")


needs_go = pytest.mark.skipif(not is_go("host-local"), reason=f"the Go host-local is not in {GO}")


def network(where, subnet="10.9.0.0/29", version="1.0.0"):
    return parse_list(json.write({"name": "net", "cniVersion": version, "plugins": [{
        "type": "host-local", "ipam": {"type": "host-local", "dataDir": str(where / "ipam"),
                                       "ranges": [[{"subnet": subnet}]]}}]}))


def held(where):
    return sorted(name for name in os.listdir(where / "ipam" / "net") if name[0].isdigit())


@needs_go
def test_the_go_plugin_is_called_as_it_expects(tmp_path):
    cni = CNI([GO], cache_dir=tmp_path / "cache")
    net = network(tmp_path)
    result = cni.add(net, RT)
    assert result == {"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/29", "gateway": "10.9.0.1"}]}
    assert cni.cached_result(net, RT) == result
    assert held(tmp_path) == ["10.9.0.2"]
    cni.check(net, RT)
    cni.delete(net, RT)
    cni.delete(net, RT)
    assert held(tmp_path) == []
    assert cni.attachments() == []
    assert "0.4.0" in cni.version_info("host-local")


@needs_go
def test_the_error_of_the_go_plugin_is_raised(tmp_path):
    cni = CNI([GO], cache_dir=tmp_path / "cache")
    with pytest.raises(PluginError, match=r'^plugin type="host-local" \(index 0\) failed \(add\): ') as caught:
        cni.add(network(tmp_path, subnet="10.9.0.0/31"), RT)
    assert caught.value.code != 0


@needs_go
def test_gc_deletes_attachments_of_go(tmp_path):
    cni = CNI([GO], cache_dir=tmp_path / "cache")
    net = network(tmp_path)
    for ifname in ("eth0", "eth1", "eth2"):
        cni.add(net, RuntimeConf("ctr", "/nonexistent/ns", ifname))
    cni.gc(net, [("ctr", "eth1")])
    assert held(tmp_path) == ["10.9.0.3"]
    assert [it.ifname for it in cni.attachments("ctr")] == ["eth1"]


@needs_go
def test_fastcni_in_process_deletes_pods_of_go_and_the_reverse(tmp_path):
    go = CNI([GO], cache_dir=tmp_path / "cache")
    own = CNI([], cache_dir=tmp_path / "cache", runner=InProcess())
    net = network(tmp_path)
    for adds, deletes in ((go, own), (own, go)):
        result = adds.add(net, RT)
        assert result["ips"][0]["gateway"] == "10.9.0.1"
        assert deletes.cached_result(net, RT) == result
        deletes.check(net, RT)
        deletes.delete(net, RT)
        assert held(tmp_path) == []


def test_an_in_process_add_needs_no_directories(tmp_path):
    cni = CNI([], cache_dir=tmp_path / "cache", runner=InProcess())
    net = network(tmp_path, version="1.1.0")
    assert cni.add(net, RT)["ips"][0]["address"] == "10.9.0.2/29"
    cni.check(net, RT)
    cni.status(net)
    cni.gc(net, [])
    assert held(tmp_path) == []
    with pytest.raises(CniError) as caught:
        cni.add(network(tmp_path, subnet="10.9.0.0/33"), RT)
    assert "10.9.0.0/33" in str(caught.value)
