"""`fastcni restore` adds flushed rules again, of both backends, and changes nothing else."""

import json
import shutil
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from lab.node import Inside, cid_of, elements, rules, run, set_sysctl
from lab.portmap_chain import DUAL, EXTERNAL, NODE, mapping
from lab.traffic import add_external, ask, listen

from fastcni.handle import restore as restore_one
from fastcni.kernel import process
from fastcni.kit.call.mode import Mode
from fastcni.kit.firewall.elements import Store
from fastcni.runtime import CNI, InProcess, RuntimeConf, parse_list
from fastcni.runtime.restore import restore
from fastcni.spec.errors import CniError

needs_iptables = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")
real_run = process.run
BACKENDS = pytest.mark.parametrize("backend", ["nftables", pytest.param("iptables", marks=needs_iptables)])
FLUSHES = ("nft flush ruleset", "iptables -t nat -F", "ip6tables -t nat -F", "nft flush table inet fastcni",
           "nft delete table bridge fastcni", "nft add table inet fastcni { flags dormant; }",
           "nft add table bridge fastcni { flags dormant; }")


class Runtime:
    """A runtime with one network, which has the plugins bridge and portmap."""

    def __init__(self, node, tmp_path, backend, first=None):
        self.cni = CNI([], cache_dir=tmp_path / "cni", runner=InProcess())
        bridge = node.conf(*DUAL, isDefaultGateway=True, ipMasq=True, ipMasqBackend=backend, ipspoofchk=True)
        plugins = [first or bridge, {"type": "portmap", "backend": backend, "capabilities": {"portMappings": True}}]
        self.net = parse_list(json.dumps({"cniVersion": "1.0.0", "name": "net-a", "plugins": plugins}).encode())

    def rt(self, pod, *mappings, ifname="eth0"):
        return RuntimeConf(cid_of(pod), f"/run/netns/{pod}", ifname, capability_args={"portMappings": list(mappings)})

    def add(self, pod, *mappings, **more):
        self.cni.add(self.net, self.rt(pod, *mappings, **more))

    def restore(self):
        done = restore(self.cni.cache)
        assert done.failed == ()
        return done


@pytest.fixture
def runtime(node, tmp_path):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return lambda backend, **more: Runtime(node, tmp_path, backend, **more)


def firewall():
    """Return the rules of nftables and iptables, sorted, because the order of pods may differ."""
    saved = [line for program in ("iptables", "ip6tables") for line in run(f"{program}-save", check=False).splitlines()
             if line.startswith("-A")]
    own = [str(item) for item in rules() if next(iter(item.values())).get("table", "") == "fastcni"]
    return sorted(saved + own)


@BACKENDS
@pytest.mark.parametrize("how", FLUSHES)
def test_restore_restores_flushed_rules_and_traffic_passes(runtime, node, pod_netns, backend, how):
    pods, external = [pod_netns() for _ in range(2)], add_external(pod_netns)
    it = runtime(backend)
    for number, pod in enumerate(pods):
        it.add(pod, mapping(8080 + number), mapping(9080 + number, protocol="udp"))
    before = firewall()
    others = {key: value for key, value in node.left(*pods).items() if key != "rules"}
    run(*how.split(), check=False)
    done = it.restore()
    assert (done.attachments, done.plugins, done.gone) == (2, 4, 0)
    assert firewall() == before
    assert {key: value for key, value in node.left(*pods).items() if key != "rules"} == others
    with listen(pods[1], 80):
        assert ask(external, NODE[4], 8081) == EXTERNAL[4]
    for pod in pods:
        it.cni.delete(it.net, it.rt(pod))
    assert "10.22.0." not in str(node.left()["rules"])
    assert "fd00:22" not in str(node.left()["rules"])


@needs_iptables
def test_any_number_of_pods_takes_one_run_of_each_program(runtime, pod_netns, monkeypatch):
    it, ran = runtime("iptables"), []
    for number in range(4):
        it.add(pod_netns(), mapping(8080 + number))
    before = firewall()
    run("nft", "flush", "ruleset")
    monkeypatch.setattr(process, "run", lambda path, *args, **more: (
        ran.append(Path(path).name), real_run(path, *args, **more))[1])
    it.restore()
    assert sorted(ran) == ["ip6tables-restore", "ip6tables-save", "iptables-restore", "iptables-save"]
    assert firewall() == before


@needs_iptables
def test_a_pod_that_iptables_refuses_does_not_stop_the_restore_of_others(runtime, pod_netns):
    """iptables rejects the rules of all pods together. Restore then runs iptables for each pod, and its error names
    only the bad pod."""
    it, pods = runtime("iptables"), [pod_netns() for _ in range(3)]
    for number, pod in enumerate(pods):
        it.add(pod, mapping(8080 + number))
    before = firewall()
    path = it.cni.cache.path("net-a", it.rt(pods[1]))
    cached = json.loads(Path(path).read_text())
    bad = json.loads(b64decode(cached["config"]))
    bad["plugins"][1]["externalSetMarkChain"] = "NOBODY-MADE-IT"
    Path(path).write_text(json.dumps({**cached, "config": b64encode(json.dumps(bad).encode()).decode()}))
    run("nft", "flush", "ruleset")
    failed = restore(it.cni.cache).failed
    assert [failure.attachment.container_id for failure in failed] == [cid_of(pods[1])]
    assert "NOBODY-MADE-IT" in str(failed[0])
    assert [line for line in before if "8080" in line or "8082" in line] == [
        line for line in firewall() if "8080" in line or "8082" in line]


@BACKENDS
def test_restore_leaves_existing_rules_unchanged(runtime, pod, backend):
    it = runtime(backend)
    it.add(pod, mapping())
    it.add(pod, mapping(8081), ifname="eth1")
    before = firewall()
    it.restore()
    it.restore()
    assert firewall() == before


@needs_iptables
def test_restore_restores_both_interfaces_that_share_an_iptables_chain(runtime, pod):
    it = runtime("iptables")
    it.add(pod)
    it.add(pod, ifname="eth1")
    before = set(firewall())
    run("iptables", "-t", "nat", "-F")
    it.restore()
    assert set(firewall()) == before


def test_restore_leaves_an_address_to_its_new_pod(runtime, pod_netns, node):
    it, one, two = runtime("nftables"), pod_netns(), pod_netns()
    it.add(one)
    run("rm", "-r", node.data_dir)  # the node has lost its address files, so IPAM gives the same address again
    it.add(two)
    done = restore(it.cni.cache)
    assert [failure.attachment.container_id for failure in done.failed] == [cid_of(one)]
    assert "element of another attachment" in str(done.failed[0])
    assert cid_of(two) in run("nft", "list", "map", "inet", "fastcni", "pods4")


def test_an_element_restored_at_the_same_time_is_not_a_conflict(runtime, pod, monkeypatch):
    """A server adds the element between restore's read and restore's change. Once, restore rejected this element as
    another attachment's."""
    it = runtime("nftables")
    it.add(pod, mapping())
    before = firewall()
    monkeypatch.setattr(Store, "missing", lambda self, req, items: items)
    it.restore()
    assert firewall() == before


def test_restore_calls_flannels_delegate(runtime, node, pod):
    flannel = {"type": "flannel", "subnetFile": node.subnet_file("10.22.0.0/24"), "dataDir": f"{node.data_dir}/flannel",
               "ipam": {"dataDir": node.data_dir}, "delegate": {"ipMasq": True, "isDefaultGateway": True}}
    it = runtime("nftables", first=flannel)
    it.add(pod, mapping())
    before = firewall()
    run("nft", "flush", "ruleset")
    it.restore()
    assert firewall() == before
    assert elements("pods4")


def test_restore_wakes_a_dormant_table_that_lacks_a_chain_with_a_hook(runtime, pod):
    """The kernel rejects a new base chain in the transaction that removes the table's flag `dormant`."""
    net = runtime("nftables")
    net.add(pod, mapping())
    before = firewall()
    run("nft", "add table inet fastcni { flags dormant; }; flush chain inet fastcni postrouting; "
               "delete chain inet fastcni postrouting")
    net.restore()
    assert firewall() == before
    assert "dormant" not in run("nft", "list", "ruleset")


def test_restore_restores_the_masquerade_of_ptp(runtime, node, pod):
    it = runtime("nftables", first=node.conf("10.22.0.0/24", type="ptp", ipMasq=True))
    it.add(pod)
    before = firewall()
    run("nft", "flush", "ruleset")
    it.restore()
    assert firewall() == before
    assert elements("pods4")


@pytest.mark.parametrize(("conf", "msg"), [
    ({"type": "bridge", "ipMasq": True, "ipam": {"type": "host-local"}}, "Required prevResult missing"),
    ({"type": "bridge", "ipMasq": "yes"}, "ipMasq"),
    ({"type": "nobody"}, "unknown plugin type"),
    ({"type": "bridge", "macspoofchk": True, "prevResult": {"cniVersion": "1.0.0"}}, "does not name the pod's port"),
], ids=["no prevResult", "bad key", "unknown plugin", "no interfaces"])
def test_restore_reports_attachments_that_it_cannot_restore(host_netns, conf, msg):
    env = {"CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"}
    with pytest.raises(CniError, match=msg):
        restore_one(conf["type"], env, json.dumps({"cniVersion": "1.0.0", "name": "net-a", **conf}).encode(), Mode())


def test_a_runtime_cannot_send_restore_as_a_command(node, pod):
    assert "unknown CNI_COMMAND" in node.refused("RESTORE", node.conf(), pod)["msg"]


def test_a_pod_is_restored_only_in_the_namespace_that_it_is_linked_to(runtime, node, pod, host_netns, pod_netns):
    """Two namespaces share a cache. Once, a restore in namespace B added the rules of A's pods."""
    it, other = runtime("nftables"), pod_netns()
    it.add(pod, mapping())
    with Inside(other):
        done = restore(it.cni.cache)
        assert (done.attachments, done.elsewhere, done.failed) == (0, 1, ())
        assert run("nft", "list", "ruleset") == ""
        run("ip", "link", "add", "br0", "type", "bridge")      # the result contains the name br0, but the veth decides
        assert restore(it.cni.cache).elsewhere == 1
    run("nft", "flush", "ruleset")
    assert it.restore().attachments == 1
    assert elements("pods4")


def test_a_pod_that_has_lost_its_link_is_not_restored(runtime, pod):
    it = runtime("nftables")
    it.add(pod, mapping())
    run("ip", "link", "del", "eth0", netns=pod)
    run("nft", "flush", "ruleset")
    assert it.restore().elsewhere == 1
    assert run("nft", "list", "ruleset") == ""


def test_a_pod_of_a_macvlan_is_restored_where_its_master_is(node, pod, pod_netns, tmp_path):
    """The result names no link of the host. In the pod's namespace, the macvlan has the index of its link on the
    host."""
    run("ip", "link", "add", "up0", "type", "veth", "peer", "ext0")
    it = Runtime(node, tmp_path, "nftables", first={"type": "macvlan", "master": "up0", "ipam": node.host_local()})
    it.add(pod, mapping())
    run("nft", "flush", "ruleset")
    with Inside(pod_netns()):
        assert restore(it.cni.cache).elsewhere == 1
    assert it.restore().attachments == 1
    assert elements("hostports4")
