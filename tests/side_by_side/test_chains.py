"""Common chains of plugins (conflists in examples/net.d): podman's, Kubernetes' with bandwidth, the spec's dbnet. The
runtime library adds two pods with each, at every CNI version that all plugins of the chain support. Both
implementations give the same results and the same packets, and leave nothing. Only fastcni runs version 1.1.0, which Go
1.1.1 lacks.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from lab.node import eventually, sysctl
from lab.traffic import ask, listen
from side_by_side.sides import Inside, addresses
from side_by_side.test_masquerade import NODE, OUTSIDE, add_external

from fastcni.runtime import CNI, RuntimeConf, parse_list
from fastcni.runtime.fusing import fused
from fastcni.spec import result as results
from fastcni.spec import version

pytestmark = pytest.mark.skipif(not (shutil.which("iptables-save") and shutil.which("ip6tables-save")),
                                reason="needs iptables: the Go plugins of this version have no other backend")
EXAMPLES = Path(__file__).parents[2] / "examples" / "net.d"
PODS = "pod-0", "pod-1"
RATE = {"ingressRate": 10**8, "ingressBurst": 10**6, "egressRate": 10**8, "egressBurst": 10**6}
MAC = "02:00:00:00:00:05"
CHAINS = {  # conflist: (oldest version, subnet, whether the node has an address in the subnet, capabilities)
    "20-podman": ("0.4.0", "10.88", True, {}),
    "30-kubernetes": ("0.3.0", "10.85", True, {"bandwidth": RATE}),
    "40-dbnet": ("0.1.0", "10.1", False, {"mac": MAC}),
}
CASES = [pytest.param(name, each, marks=[pytest.mark.needs("ifb")] if "kubernetes" in name else [])
         for name, (oldest, *_) in CHAINS.items() for each in version.ALL[version.ALL.index(oldest):]]


class Chain:
    """A conflist at one CNI version, on the host of one implementation."""

    def __init__(self, side, name, cni_version):
        self.side, self.version = side, cni_version
        _, self.subnet, self.reached, capabilities = CHAINS[name]
        self.net = parse_list(self.text(name).encode())
        self.cni = CNI([side.bin_dir], cache_dir=f"{side.directory}/cache")
        self.external = add_external(side)
        self.attached = {cid: RuntimeConf(cid, side.pod(quick_dad=True), "eth0", capability_args={
            **capabilities, "portMappings": [{"hostPort": 8080 + i, "containerPort": 80, "protocol": "tcp"}]})
            for i, cid in enumerate(PODS)}

    def text(self, name):
        conf = json.loads((EXAMPLES / f"{name}.conflist").read_text())
        for plugin in conf["plugins"]:
            if "ipam" in plugin:
                plugin["ipam"]["dataDir"] = self.side.directory
            if plugin["type"] == "tuning":
                plugin["dataDir"] = f"{self.side.directory}/tuning"
        return json.dumps({**conf, "cniVersion": self.version})

    def do(self, command, *args):
        with Inside(self.side.host):
            return getattr(self.cni, command)(self.net, *args)

    def answers(self):
        """Return the source addresses that two servers see: the first pod's server, asked by its host port, and a
        server outside."""
        pod = Path(self.attached["pod-0"].netns).name
        if not self.reached:
            return None
        with listen(pod, 80), listen(self.external, 80):
            return ask(self.external, NODE[4], 8080), ask(self.side.host, NODE[4], 8080), ask(pod, OUTSIDE[4], 80)

    def state(self):
        """Return the pods' nftables rules and qdiscs, without the parts that differ with each ADD."""
        text = self.side.on_host("nft", "list", "ruleset") + self.side.on_host("tc", "qdisc")
        return sorted(re.sub(r"link: \d+|veth\w+|counter .*|[0-9a-f]+: ", "", text).splitlines())

    def left(self):
        """Return traces of deleted pods that are left."""
        links = self.side.on_host("ip", "-o", "link")
        rules = self.side.on_host("nft", "list", "ruleset")
        traces = *PODS, f"{self.subnet}.0.2", f"{self.subnet}.0.3", "CNI-DN", "bwp", "veth"
        return [word for word in traces if word in rules or word in links] + [
            *addresses(self.side.held(self.net.name))]


def without_chance(result):
    """Return an ADD's result without random names and MACs."""
    text = {**result}
    for interface in text.get("interfaces", ()):
        if interface.get("sandbox"):
            interface["sandbox"] = "a pod"
        if interface["name"].startswith("veth"):
            interface["name"] = "veth"
        if interface.get("mac") != MAC:
            interface.pop("mac", None)
    return text


def story(side, name, cni_version):
    chain = Chain(side, name, cni_version)
    outputs = [without_chance(chain.do("add", rt)) for rt in chain.attached.values()]
    outputs.append(chain.answers())
    if name == "40-dbnet":
        outputs.append(sysctl("net/core/somaxconn", Path(chain.attached["pod-0"].netns).name))
    if cni_version >= "0.4.0" and side.name != "go":  # CHECK of Go's portmap searches the IPv6 chain for IPv4 rules
        for rt in chain.attached.values():
            chain.do("check", rt)
    chain.do("gc", [("pod-0", "eth0")])
    assert {*addresses(side.held(chain.net.name)).values()} == {"pod-0\r\neth0"}
    assert chain.answers() == outputs[2], "GC removed state of the pod that stays"
    for _ in range(2):
        chain.do("delete", chain.attached["pod-0"])
    assert eventually(lambda: not chain.left()), chain.left()
    return outputs


@pytest.mark.parametrize(("name", "cni_version"), CASES)
def test_both_run_the_chain_with_the_same_results_and_packets(name, cni_version, three_sides, monkeypatch):
    outputs = []
    for side in three_sides[:2] if cni_version == "1.1.0" else three_sides:
        monkeypatch.setenv("FASTCNI_SOCKET", side.socket)
        outputs.append(story(side, name, cni_version))
    if CHAINS[name][2]:
        assert all(outputs[0][2])
    assert all(each == outputs[0] for each in outputs), outputs


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.needs("ifb")] if "kubernetes" in name else []) for name in CHAINS])
def test_a_fused_list_gives_the_same_bytes_and_each_deletes_the_others_pods(name, sides, monkeypatch):
    """The test runs warm at every version. One-shot, where each call takes longer, it runs the oldest version and two
    others."""
    fastcni, _ = sides
    monkeypatch.setenv("FASTCNI_SOCKET", fastcni.socket)
    spoken = version.starting_from(CHAINS[name][0])
    chain = Chain(fastcni, name, spoken[0])
    rt = chain.attached["pod-0"]
    for chain.version in spoken if fastcni.socket else (spoken[0], "0.4.0", "1.1.0"):
        apart, seen = parse_list(chain.text(name).encode()), []
        together = parse_list(fused(apart))
        for added, other in ((apart, together), (together, apart)):
            chain.net = added
            seen.append([results.encode(without_chance(chain.do("add", rt))), chain.state()])
            for chain.net in (added, other):
                if chain.version >= "0.4.0":
                    chain.do("check", rt)
            for _ in range(2):
                chain.do("delete", rt)
            assert eventually(lambda: not chain.left()), chain.left()
            for file in (Path(fastcni.directory) / apart.name).glob("last_reserved_ip.*"):
                file.unlink()           # so that both lists get the first address
        assert seen[0] == seen[1], chain.version
