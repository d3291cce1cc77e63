"""ipMasq of both implementations: an outside host sees the same source addresses. With the same backend, the rules are
the same."""

import re
import shutil

import pytest
from lab.node import source_seen
from side_by_side.sides import at_once, run
from side_by_side.stories import DEFAULT4, DEFAULT6, V4, V6, bridge, ptp

pytestmark = pytest.mark.skipif(not (shutil.which("iptables-save") and shutil.which("ip6tables-save")),
                                reason="needs iptables: the Go plugins of this version masquerade by nothing else")
OUTSIDE, NODE = {4: "198.51.100.9", 6: "2001:db8::9"}, {4: "198.51.100.1", 6: "2001:db8::1"}
MULTICAST = {4: "239.1.2.3", 6: "ff0e::123"}
CONFS = {"bridge": bridge(V4, V6, isGateway=True, ipMasq=True, routes=[DEFAULT4, DEFAULT6]),
         "ptp": ptp(V4, V6, ipMasq=True, routes=[DEFAULT4, DEFAULT6])}


def add_external(side):
    """Add a network namespace outside the host, with routes to the pods. Return the namespace's name."""
    name = side.netns("external")
    side.on_host("ip", "link", "add", "up0", "type", "veth", "peer", "name", "ext0", "netns", name)
    for family, length in ((4, 24), (6, 64)):
        side.on_host("ip", "addr", "add", f"{NODE[family]}/{length}", "dev", "up0")
        run("ip", "addr", "add", f"{OUTSIDE[family]}/{length}", "dev", "ext0",
            *(["nodad"] if family == 6 else []), netns=name)
    side.on_host("ip", "link", "set", "up0", "up")
    run("ip", "link", "set", "ext0", "up", netns=name)
    for family, subnet in ((4, V4), (6, V6)):
        run("ip", "route", "add", subnet, "via", NODE[family], netns=name)
    return name


def saved(side):
    """Return iptables-save of both families without counters and times."""
    text = "".join(side.on_host(f"{program}-save", "-t", "nat") for program in ("iptables", "ip6tables"))
    return sorted(re.sub(r" \[\d+:\d+\]", "", line) for line in text.splitlines() if line[:1] in ("-", ":"))


def private(side):
    """Return the lines of iptables-save that name the chain of a pod."""
    return [line for line in saved(side) if "CNI-" in line]


@pytest.mark.parametrize("backend", [None, "nftables", "iptables"])
@pytest.mark.parametrize("plugin", CONFS)
def test_packets_of_both_have_the_same_source_outside(plugin, backend, three_sides):
    """The Go plugins of this version ignore ipMasqBackend and use iptables."""
    conf = {**CONFS[plugin], **({"ipMasqBackend": backend} if backend else {})}

    def story(side):
        external, pods = add_external(side), [side.pod(quick_dad=True), side.pod(quick_dad=True)]
        first, second = (pod.rpartition("/")[2] for pod in pods)
        results = [side.add(conf, pod, cid=f"pod-{i}") for i, pod in enumerate(pods)]
        addresses = [ip["address"].split("/")[0] for ip in results[1]["ips"]]
        seen = {}
        for family, address in zip((4, 6), addresses, strict=True):
            seen[family, "to outside"] = source_seen(first, external, OUTSIDE[family])
            seen[family, "to another pod"] = source_seen(first, second, address)
            seen[family, "from outside"] = source_seen(external, second, address)
            seen[family, "to the host"] = source_seen(first, side.host, NODE[family])
        side.delete(conf, pods[0], cid="pod-0")
        seen["to outside, after another pod's DEL"] = source_seen(second, external, OUTSIDE[4])
        return seen

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert (go[4, "to outside"], go[6, "to outside"]) == (NODE[4], NODE[6])
    assert go[4, "to another pod"].startswith("10.22.0.")


@pytest.mark.parametrize("plugin", CONFS)
def test_the_iptables_backend_adds_and_deletes_the_rules_of_go(plugin, three_sides):
    conf = {**CONFS[plugin], "ipMasqBackend": "iptables"}

    def story(side):
        seen, pods = [], [side.pod(quick_dad=True), side.pod(quick_dad=True)]
        for i, pod in enumerate(pods):
            side.add(conf, pod, cid=f"pod-{i}")
            seen.append(saved(side))
        side.delete(conf, pods[0], cid="pod-0")
        seen.append(saved(side))
        side.delete(conf, pods[1], cid="pod-1")
        seen.append(private(side))
        return seen

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert len(go[0]) < len(go[1]) > len(go[2])
    assert go[-1] == []
