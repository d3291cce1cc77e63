"""Kernel features that some tests need: the kernel option of each, and the mark that names them.

    @pytest.mark.needs("8021q", "dummy")

skips where the kernel lacks one of them. Two lanes run the tests on two kernels, `make test` and `make test-vm`, and
`make test-toolchains` those that need another compiler or library. Each writes down which tests it ran, so that one
which no lane runs is seen, whatever it was skipped for (tests/vm/count.py).

As a program it prints the names of what this kernel lacks.
"""

import functools
import json
import os
import platform
import subprocess

import pytest

# {feature: (the kernel's option, what ip(8) can do where it is there)}
FEATURES = {
    "8021q": ("CONFIG_VLAN_8021Q", "link add probe link base type vlan id 5"),
    "bridge": ("CONFIG_BRIDGE", "link add probe type bridge"),
    "bridge-vlan-filtering": ("CONFIG_BRIDGE_VLAN_FILTERING", "link add probe type bridge vlan_filtering 1"),
    "dummy": ("CONFIG_DUMMY", "link add probe type dummy"),
    "ifb": ("CONFIG_IFB", "link add probe type ifb"),
    "ipvlan": ("CONFIG_IPVLAN", "link add probe link base type ipvlan mode l2"),
    "macvlan": ("CONFIG_MACVLAN", "link add probe link base type macvlan mode bridge"),
    "tun": ("CONFIG_TUN", "tuntap add probe mode tap"),
    "vrf": ("CONFIG_NET_VRF", "link add probe type vrf table 5"),
    "vxlan": ("CONFIG_VXLAN", "link add probe type vxlan id 5 dstport 4789"),
}

# {how the reason of a skip begins: why it is no fault that no lane runs the test}
ALLOWED = {
    "no package index": "The test builds a wheel in a fresh environment; an offline machine has no setuptools for it.",
    "needs firewalld": "Where systemd runs, installing firewalld would start it, with the machine's own network behind "
                       "it; tests/setup-peer.sh leaves it out there.",
    "systemd-analyze is too old": "Before systemd 250 it cannot judge a unit that is not installed.",
    "SELinux is on here": "The test is about a node without SELinux; with it the same key is another test's.",
    "no /dev/cpu_dma_latency": "A container without that device: the server says so and goes on, which is tested.",
}

LEFT = "left to the other lane"
# What a lane runs, too, that leaves the rest to the other one: an ADD of each common kind, to its end and back.
BASE = {f"real_kernel/test_{name}.py" for name in (
    "bridge_lifecycle", "devices", "loopback", "masquerade", "ptp")}


@functools.cache
def has(feature):
    """Return whether this kernel has the feature: try it in a temporary namespace. Needs root."""
    command = f"ip link add base type veth peer name other && ip {FEATURES[feature][1]}"
    return subprocess.run(["unshare", "--net", "sh", "-c", command], capture_output=True).returncode == 0


def needed(item):
    return [feature for mark in item.iter_markers("needs") for feature in mark.args]


def reason_to_skip(features):
    """Return the reason to skip a test that needs these features, "" if it can run."""
    if os.geteuid() != 0:
        return "needs root: makes network namespaces"
    lacks = [FEATURES[feature][0] for feature in features if not has(feature)]
    return f"needs {', '.join(lacks)}, which this kernel lacks" if lacks else ""


class Lane:
    """A plugin of pytest: skips by mark, and writes {"kernel", "ran": [test], "not run": {test: why}}.

    record: that file's path; None for a run that is no lane, of one test, say.
    other_lacks: features that the other lane's kernel lacks: only tests that need one of them are run, and BASE; None:
    all tests.
    """

    def __init__(self, record=None, other_lacks=None):
        self.record, self.other_lacks, self.ran, self.not_run = record, other_lacks, set(), {}

    def pytest_collection_modifyitems(self, config, items):
        if self.other_lacks is None:
            return
        left = {item for item in items if not self.other_lacks.intersection(needed(item))
                and "/".join(item.path.parts[-2:]) not in BASE}
        self.not_run.update((item.nodeid, LEFT) for item in left)
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]

    def pytest_collection_finish(self, session):
        for item in session.items:
            self.not_run[item.nodeid] = "the run did not come to it"
            if unknown := set(needed(item)) - set(FEATURES):
                raise pytest.UsageError(f"{item.nodeid} needs {', '.join(unknown)}: not in tests/features.py")
            if (features := needed(item)) and (reason := reason_to_skip(features)):
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logreport(self, report):
        """Also of those that workers of pytest-xdist ran: their reports come to the process that started them."""
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
        """A worker has ended: only workers collect, and each knows of all tests, of which it ran some."""
        for test, why in getattr(node, "workeroutput", {}).get("not run", {}).items():
            if test not in self.ran:
                self.not_run.setdefault(test, why)


if __name__ == "__main__":
    print(*(feature for feature in FEATURES if not has(feature)))
