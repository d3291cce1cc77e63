"""ipMasq by iptables: the chains of the reference plugins, written by one run of iptables-restore."""

import os
import shutil

import pytest
from lab.node import cid_of, elements, rules, run, set_sysctl, source_seen

from fastcni.kernel import waiting

DUAL = ("10.22.0.0/24", "fd00:22::/64")

pytestmark = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")


@pytest.fixture
def conf(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isGateway=True, ipMasq=True, ipMasqBackend="iptables", name="net1")


def nat(program="iptables"):
    """Return the nat table's rules and user-defined chains, as `iptables -S` prints them."""
    return [line for line in run(program, "-t", "nat", "-S").splitlines() if not line.startswith("-P")]


CHAIN = "CNI-e8f6f419596f7f47b3468487"          # the chain of network net1 and container cid1
COMMENT = '-m comment --comment "name: \\"net1\\" id: \\"cid1\\""'


def test_chain_and_rules_are_those_of_the_reference_plugins(node, pod, conf):
    node.add(conf, pod, cid="cid1")
    assert nat() == [f"-N {CHAIN}", f"-A POSTROUTING -s 10.22.0.2/32 {COMMENT} -j {CHAIN}",
                     f"-A {CHAIN} -d 10.22.0.0/24 {COMMENT} -j ACCEPT",
                     f"-A {CHAIN} ! -d 224.0.0.0/4 {COMMENT} -j MASQUERADE"]
    assert nat("ip6tables") == [f"-N {CHAIN}", f"-A POSTROUTING -s fd00:22::2/128 {COMMENT} -j {CHAIN}",
                                f"-A {CHAIN} -d fd00:22::/64 {COMMENT} -j ACCEPT",
                                f"-A {CHAIN} ! -d ff00::/8 {COMMENT} -j MASQUERADE"]
    assert elements("pods4") == []
    node.delete(conf, pod, cid="cid1")
    node.delete(conf, pod, cid="cid1")
    assert nat() == nat("ip6tables") == []


def test_two_interfaces_of_one_container_share_a_chain(node, pod, conf):
    node.add(conf, pod, cid="cid1")
    node.add(conf, pod, cid="cid1", ifname="eth1")
    jumps = [line.split()[3] for line in nat() if "-j CNI-" in line]
    assert jumps == ["10.22.0.2/32", "10.22.0.3/32"]
    node.delete(conf, pod, cid="cid1")
    assert [line.split()[3] for line in nat() if "-j CNI-" in line] == ["10.22.0.3/32"]
    assert f"-N {CHAIN}" in nat()
    node.delete(conf, pod, cid="cid1", ifname="eth1")
    assert nat() == nat("ip6tables") == []


@pytest.mark.parametrize("known", ["prevResult", "nothing"])
def test_del_without_netns_leaves_no_rule(node, pod_netns, conf, known):
    # The reference plugins leave this rule: they read addresses only from the link.
    pod, other = pod_netns(), pod_netns()
    result = node.add(conf, pod)
    node.add(conf, other)
    run("ip", "netns", "del", pod)
    node.delete({**conf, "prevResult": result} if known == "prevResult" else conf, pod, cid=cid_of(pod))
    assert [line.split()[3] for line in nat() if "-j CNI-" in line] == ["10.22.0.3/32"]
    assert len([line for line in nat() if line.startswith("-N")]) == 1


def test_gc_deletes_chains_of_lost_containers_of_its_network(node, pod_netns, conf):
    other = node.conf("10.33.0.0/24", ipMasq=True, ipMasqBackend="iptables", name="net1-b", bridge="br1")
    for cid in ("kept", "lost-1", "lost-2"):
        node.add(conf, pod_netns(), cid=cid)
    node.add(other, pod_netns(), cid="lost-1")
    run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.22.0.9", "-j", "ACCEPT")
    valid = [{"containerID": "kept", "ifname": "eth0"}]
    report = node.ok("GC", {**conf, "cni.dev/valid-attachments": valid, "fastcni/report": True})
    chains = [each["what"] for each in report["released"] if "chain CNI-" in each["what"]]
    assert len(chains) >= 2
    assert {what.split()[0] for what in chains} <= {"iptables", "ip6tables"}
    jumps = [line for line in nat() if line.startswith("-A POSTROUTING")]
    assert [line.split()[3] for line in jumps] == ["10.22.0.2/32", "10.33.0.2/32", "10.22.0.9/32"]
    assert len([line for line in nat() if line.startswith("-N")]) == 2
    assert len([line for line in nat("ip6tables") if line.startswith("-N")]) == 1
    node.ok("GC", {**other, "cni.dev/valid-attachments": []})
    assert len([line for line in nat() if line.startswith("-N")]) == 1


def test_gc_starts_no_program_where_iptables_was_never_used(node, conf):
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []}, env={"PATH": "/nowhere"})
    assert rules() == []


def test_del_finds_pods_of_both_backends_whatever_the_configuration(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    later = {**conf, "ipMasqBackend": "nftables"}
    node.add(conf, one)
    node.add(later, two)
    node.delete(later, one)
    node.delete(conf, two)
    assert nat() == nat("ip6tables") == []
    assert elements("pods4") == []


def test_other_rules_stay(node, pod, conf):
    run("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.22.0.2", "-j", "ACCEPT")
    mine = nat()
    node.add(conf, pod)
    node.delete(conf, pod)
    assert nat() == mine


def test_traffic_is_masqueraded(node, pod_netns, conf):
    outside, pod = pod_netns(), pod_netns()
    run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "ext0", "netns", outside)
    run("ip", "addr", "add", "198.51.100.1/24", "dev", "up0")
    run("ip", "link", "set", "up0", "up")
    run("ip", "addr", "add", "198.51.100.9/24", "dev", "ext0", netns=outside)
    run("ip", "link", "set", "ext0", "up", netns=outside)
    node.add({**conf, "isDefaultGateway": True}, pod)
    assert source_seen(pod, outside, "198.51.100.9") == "198.51.100.1"


def test_missing_program_is_an_error_that_names_the_alternative(node, pod, conf):
    before = node.left(pod)
    error = node.refused("ADD", conf, pod, env={"PATH": "/nowhere"})
    assert "failed to locate iptables" in error["msg"]
    assert "ipMasqBackend" in error["details"]
    assert node.left(pod) == before


def test_the_error_contains_the_output_of_iptables(node, pod, conf, tmp_path):
    broken = tmp_path / "iptables-restore"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 4\n")
    broken.chmod(0o755)
    before = node.left(pod)
    error = node.refused("ADD", conf, pod, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert error["msg"] == "running iptables-restore: exit status 4: no such luck"
    assert node.left(pod) == before


@pytest.mark.parametrize("script, limit, msg", [
    ("echo Another app is currently holding the xtables lock. >&2; exit 4", 60,
     "iptables-restore: the xtables lock was not free within 30 s"),
    ("exec sleep 1000", 0.3, "iptables-restore did not end within 0.3 s, and was killed")])
def test_a_lock_or_a_program_that_hangs_is_reported_in_time(node, pod, conf, tmp_path, monkeypatch, script, limit, msg):
    """Once, fastcni waited without a limit for the lock or the program."""
    monkeypatch.setattr(waiting, "PROGRAM_TIMEOUT_S", limit)
    hangs = tmp_path / "iptables-restore"
    hangs.write_text(f"#!/bin/sh\n{script}\n")
    hangs.chmod(0o755)
    before = node.left(pod)
    error = node.refused("ADD", conf, pod, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert error["code"] == 11
    assert error["msg"].endswith(msg)
    assert "xtables.lock" in error["details"]
    assert node.left(pod) == before
