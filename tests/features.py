"""Kernel features that some tests need: the kernel option of each feature, and the mark of these tests. The mark

    @pytest.mark.needs("8021q", "dummy")

skips a test that runs without root, or on a kernel that lacks one of the features. Each test with the fixture
host_netns or pod_netns has the mark needs("root").

A lane is a run of many tests. `make test` and `make test-vm` are lanes on two kernels. `make test-toolchains` is a lane
for the tests that need another compiler or library. Each lane records its tests, and tests/vm/count.py reports a test
that no lane has run.

As a program, this file prints the features that the kernel lacks.
"""

import json
import os
import platform
import subprocess
import sys

import pytest

NFT_OWNED_TABLE = """
from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi, wire

wire.exchange(wire.open_socket(uapi.NETLINK_NETFILTER), nft.stop(nft.add_table(
    nft.start(Batch()), nft.NFPROTO_INET, "probe", "", nft.NFT_TABLE_F_OWNER | nft.NFT_TABLE_F_PERSIST)))
"""
NFT_FLOWTABLE = """
from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_flowtables, uapi, wire

batch = nft.add_table(nft.start(Batch()), nft.NFPROTO_INET, "probe", "")
nft_flowtables.add_flowtable(batch, nft.NFPROTO_INET, "probe", "f")
wire.exchange(wire.open_socket(uapi.NETLINK_NETFILTER), nft.stop(batch))
"""
BPF_REDIRECT = """
from fastcni.kernel import wire
from fastcni.kernel.bpf import objects, redirect_programs
from fastcni.kit.datapath import pins

maps = {name: objects.create_hash(*sizes) for name, sizes in pins.MAPS.items()}
for program in redirect_programs.PROGRAMS.values():
    objects.load(*program, maps)
pins.directory(wire.open_socket())
"""
OVS_DATAPATH = """
from fastcni.kernel import genl, uapi, wire

raise SystemExit(not genl.family_id(wire.open_socket(uapi.NETLINK_GENERIC), "ovs_datapath"))
"""
SYSTEM_CALLS = """
import sys, tempfile
sys.path.insert(0, "tests")
from unit.server.system_calls import Counter, tracepoint

with tempfile.TemporaryDirectory() as directory:
    Counter(tracepoint(directory)).close()
"""
# {feature: (the kernel's option, a probe that succeeds only if the kernel has the feature)}. A probe is a command of
# ip(8), or lines of Python.
FEATURES = {
    "8021q": ("CONFIG_VLAN_8021Q", "link add probe link base type vlan id 5"),
    "bpf-redirect": ("CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF (Linux 5.14)", BPF_REDIRECT),
    "bridge": ("CONFIG_BRIDGE", "link add probe type bridge"),
    "bridge-vlan-filtering": ("CONFIG_BRIDGE_VLAN_FILTERING", "link add probe type bridge vlan_filtering 1"),
    "dummy": ("CONFIG_DUMMY", "link add probe type dummy"),
    "ifb": ("CONFIG_IFB", "link add probe type ifb"),
    "ipip": ("CONFIG_NET_IPIP", "link add probe type ipip local 192.0.2.1"),
    "ipvlan": ("CONFIG_IPVLAN", "link add probe link base type ipvlan mode l2"),
    "macvlan": ("CONFIG_MACVLAN", "link add probe link base type macvlan mode bridge"),
    "nft-flowtable": ("CONFIG_NFT_FLOW_OFFLOAD, CONFIG_NF_FLOW_TABLE_INET", NFT_FLOWTABLE),
    "nft-owned-tables": ("Linux 6.9 (NFT_TABLE_F_PERSIST)", NFT_OWNED_TABLE),
    "openvswitch": ("CONFIG_OPENVSWITCH", OVS_DATAPATH),
    "root": ("CONFIG_NET_NS", "link show base"),
    "system-call-tracepoint": ("CONFIG_FTRACE_SYSCALLS, CONFIG_PERF_EVENTS", SYSTEM_CALLS),
    "tun": ("CONFIG_TUN", "tuntap add probe mode tap"),
    "vrf": ("CONFIG_NET_VRF", "link add probe type vrf table 5"),
    "wireguard": ("CONFIG_WIREGUARD", "link add probe type wireguard"),
    "vxlan": ("CONFIG_VXLAN", "link add probe type vxlan id 5 dstport 4789"),
}

# {beginning of a skip reason: why it is acceptable that no lane runs the test}
ALLOWED = {
    "no package index": "The test builds a wheel in a new environment, for which an offline machine has no setuptools.",
    "needs firewalld": "If systemd runs, installing firewalld would start it and change the machine's firewall. "
                       "tests/setup-peer.sh does not install it then.",
    "needs Open vSwitch": "The same holds for Open vSwitch.",
    "systemd-analyze is too old": "Before systemd 250 it cannot check a unit that is not installed.",
    "SELinux is on here": "The test is for a node without SELinux; another test has the same key with SELinux.",
    "no /dev/cpu_dma_latency": "Containers have no such device. Another test covers them.",
    "needs a kube-apiserver": "No lane builds one. real-api-server.sh does, and runs these tests.",
    "needs a kubelet": "No lane builds one. real-api-server.sh does, and runs this test.",
}

LEFT = "left to the other lane"
# Tests that both kernels' lanes run: ADD and DEL of each common plugin, the programs of the datapath ebpf, because each
# kernel's verifier has other rules, and nftables tables with and without an owner.
BASE = {f"unit/{name}.py" for name in (
    "agent/policy/test_owned_tables", "kit/datapath/test_datapath_policies", "kit/datapath/test_datapath_update",
    "kit/firewall/test_masquerade", "plugins/test_bridge_lifecycle", "plugins/test_devices", "plugins/test_loopback",
    "plugins/test_ptp")}


known = {}                      # {feature: whether this kernel has it}


def has(feature):
    """Return whether this kernel has the feature. Needs root."""
    if feature not in known:
        known[feature] = has_now(feature)
    return known[feature]


def has_now(feature):
    """Return whether the feature's probe succeeds in a temporary namespace."""
    probe = FEATURES[feature][1]
    command = [sys.executable, "-c", probe] if "\n" in probe else [
        "sh", "-c", f"ip link add base type veth peer name other && ip {probe}"]
    return subprocess.run(["unshare", "--net", *command], capture_output=True).returncode == 0


def needed(item):
    return [feature for mark in item.iter_markers("needs") for feature in mark.args]


def reason_to_skip(features):
    """Return why a test that needs these features is skipped, or "" if it can run."""
    if os.geteuid() != 0:
        return "needs root: makes network namespaces"
    lacks = [FEATURES[feature][0] for feature in features if not has(feature)]
    return f"needs {', '.join(lacks)}, which this kernel lacks" if lacks else ""


class Lane:
    """A plugin of pytest that skips tests by their marks, and records which tests ran.

    record: the path of a file with {"kernel", "ran": [test], "not run": {test: why}}, or None if the run is no lane.
    other_lacks: the features that the other lane's kernel lacks. Only BASE and the tests that need one of these
    features run. If it is None, all tests run.
    """

    def __init__(self, record=None, other_lacks=None):
        self.record, self.other_lacks, self.ran, self.not_run = record, other_lacks, set(), {}

    def pytest_collection_modifyitems(self, config, items):
        for item in items:
            if {"host_netns", "pod_netns"}.intersection(item.fixturenames):
                item.add_marker(pytest.mark.needs("root"))
        if self.other_lacks is None:
            return
        left = {item for item in items if not self.other_lacks.intersection(needed(item))
                and not any(map(item.path.match, BASE))}
        self.not_run.update((item.nodeid, LEFT) for item in left)
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]

    def pytest_collection_finish(self, session):
        for item in session.items:
            self.not_run[item.nodeid] = "the run ended before it"
            if unknown := set(needed(item)) - set(FEATURES):
                raise pytest.UsageError(f"{item.nodeid} needs {', '.join(unknown)}: not in tests/features.py")
            if (features := needed(item)) and (reason := reason_to_skip(features)):
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logreport(self, report):
        """Record whether the test of this report ran. In the main process of pytest-xdist, the reports of its workers
        arrive, too."""
        if report.nodeid in self.ran:
            return
        if report.skipped:
            self.not_run[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.when == "call" or report.failed:
            self.not_run.pop(report.nodeid, None)
            self.ran.add(report.nodeid)

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["not run"] = self.not_run
        elif self.record:
            self.record.parent.mkdir(exist_ok=True)
            record = {"kernel": platform.release(), "ran": sorted(self.ran), "not run": self.not_run}
            self.record.write_text(json.dumps(record, indent=1), encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Add the tests that a worker of pytest-xdist collected but did not run."""
        for test, why in getattr(node, "workeroutput", {}).get("not run", {}).items():
            if test not in self.ran:
                self.not_run.setdefault(test, why)


if __name__ == "__main__":
    print(*(feature for feature in FEATURES if not has(feature)))
