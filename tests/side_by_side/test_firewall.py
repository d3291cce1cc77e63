"""The plugin firewall of both implementations, on a host that drops forwarded packets. The same packets get through.
With iptables the rules are the same, except that fastcni's rules match a set of addresses. Each implementation deletes
the other's iptables rules.

Go 1.1.1 supports same-bridge but not isolated, so its comments name only same-bridge.
"""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.traffic import ask, listen
from side_by_side.sides import at_once, seen_at_each_delete
from side_by_side.stories import V4, V6, bridge
from side_by_side.test_across import Handover
from side_by_side.test_masquerade import NODE, OUTSIDE, add_external
from side_by_side.test_portmap import name_of

pytestmark = pytest.mark.skipif(not all(map(shutil.which, ("iptables-save", "ip6tables-save", "ipset"))),
                                reason="needs iptables and ipset: this version of the Go plugin has no other backend")
WAIT = 2                        # seconds for an answer: time for one more SYN
FIRST = bridge(V4, V6, isDefaultGateway=True)
SECOND = {**bridge("10.33.0.0/24", "fd00:33::/64", isDefaultGateway=True), "name": "net-b", "bridge": "br1"}


def firewall(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "firewall", **keys}


def drop(side, by="iptables"):
    if by == "nftables":
        side.on_host("nft", "add table inet admin; add chain inet admin forward "
                            "{ type filter hook forward priority filter; policy drop; }")
    else:
        for program in ("iptables", "ip6tables"):
            side.on_host(program, "-P", "FORWARD", "DROP")


def add(side, conf, first=FIRST, cid="pod-0"):
    """Add a pod by both plugins. Return (its path, firewall's configuration with prevResult)."""
    pod = side.pod(quick_dad=True)
    conf = {**conf, "prevResult": side.add(first, pod, cid=cid)}
    assert side.add(conf, pod, cid=cid) == conf["prevResult"]
    return pod, conf


def saved(side):
    """Return the lines of the filter table of both families, in order, with comments as Go 1.1.1 writes them."""
    text = "".join(side.on_host(f"{program}-save", "-t", "filter") for program in ("iptables", "ip6tables"))
    text = re.sub(r" \[\d+:\d+\]", "", text).replace("same-bridge|isolated", "same-bridge")
    return [line for line in text.splitlines() if line[:1] in ("-", ":")]


def members(side):
    """Return the addresses in fastcni's ipsets, in the format of iptables-save."""
    found = re.findall(r"^add fastcni-\S+ (\S+)$", side.on_host("ipset", "save"), re.M)
    return [f"{address}/{128 if ':' in address else 32}" for address in found]


def spelled_out(side):
    """Return saved() with two rules for each address in place of the rules that match a set. The pods' rules are
    last."""
    lines = [line for line in saved(side) if "--match-set" not in line]
    lines += [f"-A CNI-FORWARD {way} {address} {then}" for address in members(side) for way, then in (
        ("-d", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"), ("-s", "-j ACCEPT"))]
    of_pods = sorted(line for line in lines if re.search(r"CNI-FORWARD -[ds] ", line))
    return [line for line in lines if line not in of_pods] + of_pods


@pytest.mark.parametrize("backend", ["", "iptables", "nftables"])
def test_the_same_packets_get_through(backend, three_sides):
    """With the backend nftables, fastcni runs on a host that drops by nftables. Go 1.1.1 does not support this
    backend."""
    def story(side):
        fastcni = side.name != "go"
        drop(side, "nftables" if backend == "nftables" and fastcni else "iptables")
        conf = firewall(**({"backend": backend} if backend and fastcni else {}))
        external = add_external(side)
        pod, conf = add(side, conf)
        other, _ = add(side, {**conf, "prevResult": None}, cid="pod-1")
        names = {"outside": external, "the host": side.host, "the pod": name_of(pod), "another pod": name_of(other)}
        targets = {"outside": OUTSIDE, "the host": NODE, "the pod": {4: "10.22.0.2", 6: "fd00:22::2"}}

        def seen():
            asked = [(source, target, family) for source in names for target in targets for family in (4, 6)
                     if source != target]
            with ThreadPoolExecutor(len(asked)) as pool:     # in threads, because a client without an answer waits
                return dict(zip(asked, pool.map(lambda it: ask(names[it[0]], targets[it[1]][it[2]], 80, wait=WAIT),
                                                asked), strict=True))

        with listen(name_of(pod), 80), listen(external, 80), listen(side.host, 80):
            before = seen()
            side.check(conf, pod, conf["prevResult"], cid="pod-0")
            side.delete(conf, pod, cid="pod-0")
            return before, seen()

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert go[0]["the pod", "outside", 4]
    assert go[0]["the pod", "outside", 6]
    assert not go[0]["outside", "the pod", 4]
    assert not go[1]["the pod", "outside", 4]


@pytest.mark.parametrize("keys", [{}, {"iptablesAdminChainName": "MINE"}, {"ingressPolicy": "same-bridge"}], ids=str)
def test_the_iptables_backend_adds_and_deletes_the_rules_of_go_for_a_set_of_pods(keys, three_sides):
    def story(side):
        pods = [add(side, firewall(**keys, backend="iptables"), first, f"pod-{i}")
                for i, first in enumerate([FIRST, FIRST, SECOND])]
        return seen_at_each_delete(side, pods, spelled_out)

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert len(go[0]) > len(go[1]) > len(go[3]) > 8


@pytest.mark.parametrize("keys", [{}, {"ingressPolicy": "same-bridge"}], ids=str)
def test_fastcni_checks_and_deletes_the_iptables_rules_of_go(keys, sides):
    fastcni, go = sides
    pod, conf = add(go, firewall(**keys, backend="iptables"))
    handover = Handover(go, fastcni)
    for command in ("CHECK", "DEL", "DEL"):
        answer = handover.by_second(command, conf, pod, cid="pod-0")
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert not [line for line in saved(go) if "10.22." in line or "fd00:22" in line]


def test_gc_removes_a_pod_that_go_has_deleted_from_the_set(sides):
    """Go's firewall does not read ipsets. Its CHECK fails, because the pod has no iptables rules of its own. Its DEL
    succeeds and leaves the address in the set, so the rules accept the next pod with this address."""
    fastcni, go = sides
    pod, conf = add(fastcni, firewall(backend="iptables"))
    handover = Handover(fastcni, go)
    assert "not found" in handover.by_second("CHECK", conf, pod, cid="pod-0").document["msg"]
    answer = handover.by_second("DEL", conf, pod, cid="pod-0")
    assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert members(fastcni) == ["10.22.0.2/32", "fd00:22::2/128"]
    assert handover.by_second("ADD", conf, pod, cid="pod-1").status == 0
    fastcni.ok("GC", {**conf, "cniVersion": "1.1.0", "cni.dev/valid-attachments": []})
    assert members(fastcni) == []
    assert [line for line in saved(fastcni) if "-s 10.22.0.2/32" in line], "GC removed rules that Go added"


def test_an_add_of_fastcni_repeats_no_rules_of_a_pod_of_go(sides):
    """If fastcni repeats the ADD of a pod that Go added, fastcni adds no rules. fastcni's DEL deletes the pod's rules
    of both implementations."""
    fastcni, go = sides
    pod, conf = add(go, firewall(ingressPolicy="same-bridge"))
    before, handover = saved(go), Handover(go, fastcni)
    assert handover.by_second("ADD", conf, pod, cid="pod-0").status == 0
    assert [line for line in saved(go) if "--match-set" not in line] == before
    assert handover.by_second("DEL", conf, pod, cid="pod-0").status == 0
    assert members(go) == []
    assert not [line for line in saved(go) if "10.22." in line]


BAD = {
    "no prevResult": {"prevResult": None},
    "policy": {"ingressPolicy": "closed"},
    "policy without interfaces": {"ingressPolicy": "same-bridge"},
    "policy without a bridge": {"ingressPolicy": "same-bridge",
                                "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": ""}]}},
}


@pytest.mark.parametrize("what", BAD)
def test_both_refuse_with_the_same_text(what, three_sides):
    conf = {**firewall(backend="iptables"), "prevResult": {"cniVersion": "1.0.0"}, **BAD[what]}
    answers = at_once(lambda side: side.call("ADD", conf, side.pod()), three_sides)
    assert [answer.status for answer in answers] == [1, 1, 1]
    assert len({answer.document["msg"] for answer in answers}) == 1, [*map(str, answers)]


def test_fastcni_deletes_rules_that_go_added_again(sides):
    """fastcni adds a pod by nftables, then Go deletes the pod and adds it again. fastcni's DEL deleted only fastcni's
    elements, and left Go's rules."""
    fastcni, go = sides
    handover = Handover(fastcni, go)
    pod, conf = add(fastcni, firewall())
    assert not [line for line in saved(fastcni) if "10.33" in line or "10.22" in line]  # because ADD used nftables
    for command in ("DEL", "ADD"):
        answer = handover.by_second(command, conf, pod, cid="pod-0")
        assert answer.status == 0, str(answer)
    address = conf["prevResult"]["ips"][0]["address"].partition("/")[0]
    assert [line for line in saved(fastcni) if f"{address}/32" in line]
    fastcni.delete(conf, pod, cid="pod-0")
    assert not [line for line in saved(fastcni) if f"{address}/32" in line]
