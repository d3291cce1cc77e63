"""firewall on a host that drops forwarded traffic: which packets pass, ingressPolicy, and each key.
tests/unit/plugins/test_firewalld.py tests the backend firewalld."""

import shutil

import pytest
from lab.node import cid_of, elements, members, rules, run, set_sysctl
from lab.portmap_chain import DUAL, EXTERNAL, POD
from lab.traffic import add_external, ask, listen, no_bridge_netfilter
from unit.agent.policy import frames

from fastcni.kernel import process, wire

pytestmark = pytest.mark.skipif(not (shutil.which("iptables-save") and shutil.which("ip6tables-save")),
                                reason="needs iptables: it is one of the backends")
FAMILIES = pytest.mark.parametrize("family", [4, 6])
BACKENDS = pytest.mark.parametrize("backend", ["nftables", "iptables"])
DROPPED = """table inet admin {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ip daddr 198.51.100.9 tcp dport 25 drop
    }
}"""
PROGRAMS = {4: "iptables", 6: "ip6tables"}


def drop_by(backend):
    """Add rules that drop forwarded packets, as an administrator would. backend: "nftables" or "iptables"."""
    if backend == "nftables":
        run("nft", "-f", "-", stdin=DROPPED)
    else:
        for program in PROGRAMS.values():
            run(program, "-P", "FORWARD", "DROP")


def firewall(backend="", **keys):
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", **({"backend": backend} if backend else {}),
            **keys}


def filter_rules(family=4):
    return run(PROGRAMS[family], "-t", "filter", "-S").splitlines()


@pytest.fixture
def bridge(node):
    """Return a function bridge(pod) that connects a pod to a bridge. The tests chain firewall after it."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")

    def make(*pods, number=22, **keys):
        node.behind(node.conf(*(subnet.replace("22", str(number)) for subnet in DUAL), name=f"net-{number}",
                              bridge=f"br{number}", isDefaultGateway=True, **keys), *pods)
    return make


@pytest.fixture
def external(host_netns, pod_netns):
    return add_external(pod_netns, has_default_route=True)


# -- packets that pass -------------------------------------------------------------------------------------

@FAMILIES
@BACKENDS
def test_a_pod_reaches_outside_and_outside_does_not_reach_the_pod(node, bridge, pod, external, backend, family):
    drop_by(backend)
    bridge(pod)
    with listen(external, 80), listen(external, 53, "udp"), listen(pod, 80):
        assert ask(pod, EXTERNAL[family], 80, wait=0.5) is None
        assert node.add(firewall(backend), pod) == node.results[pod]
        assert ask(pod, EXTERNAL[family], 80) == POD[family]
        assert ask(pod, EXTERNAL[family], 53, "udp") == POD[family]
        assert ask(external, POD[family], 80, wait=0.5) is None
        node.delete(firewall(backend), pod)
        assert ask(pod, EXTERNAL[family], 80, wait=0.5) is None


def test_a_rule_that_drops_a_packet_still_drops_it(node, bridge, pod, external):
    """fastcni's rules are the chain's last. They accept only packets that the chain's policy would decide on."""
    drop_by("nftables")
    bridge(pod)
    node.add(firewall("nftables"), pod)
    with listen(external, 25):
        assert ask(pod, EXTERNAL[4], 25, wait=0.5) is None
        assert ask(pod, EXTERNAL[6], 25) == POD[6]


def test_firewall_writes_to_nftables_only_if_the_network_asks_for_nftables(node, bridge, pod, external):
    drop_by("nftables")
    bridge(pod)
    before = run("nft", "list", "table", "inet", "admin")
    node.add(firewall(), pod)
    assert run("nft", "list", "table", "inet", "admin") == before


def test_the_next_pod_passes_after_a_chain_was_rewritten(node, bridge, pod, pod_netns, external):
    other = pod_netns()
    drop_by("nftables")
    bridge(pod, other)
    node.add(firewall("nftables"), pod)
    run("nft", "flush chain inet admin forward")
    assert "drops by policy" in node.check_refused(firewall("nftables"), pod, node.results[pod])
    node.add(firewall("nftables"), other)
    with listen(external, 80):
        assert ask(pod, EXTERNAL[4], 80) == POD[4]
    node.delete(firewall("nftables"), pod)
    node.delete(firewall("nftables"), other)
    assert "elements" not in run("nft", "list", "table", "inet", "admin")


def test_default_backend_is_the_one_that_filters_on_this_host(node, bridge, pod, pod_netns):
    """Without filters, the default backend is nftables. When iptables filters, it would drop the packets of a pod that
    only nftables accepts."""
    other = pod_netns()
    bridge(pod, other)
    node.add(firewall(), pod)
    assert elements("forwarded4") == [POD[4]]
    drop_by("iptables")
    node.add(firewall(), other)
    assert elements("forwarded4") == [POD[4]]
    assert members("fastcni-forward4") == ["10.22.0.3"]
    for name in (pod, other):
        node.check(firewall("nftables" if name == pod else "iptables"), name, node.results[name])
        node.delete(firewall(), name)
    assert elements("forwarded4") == elements("iptables-forward4") == members("fastcni-forward4") == []
    assert not [line for line in filter_rules() if "10.22" in line]


@FAMILIES
@pytest.mark.skipif(not shutil.which("iptables-legacy"), reason="needs iptables-legacy (Debian: iptables)")
def test_a_pod_passes_both_kinds_of_iptables_if_both_drop(node, bridge, pod, external, family):
    """Once, ADD changed only the kind of iptables that `iptables` runs. The other kind dropped the pod's packets."""
    drop_by("iptables")
    for program in PROGRAMS.values():
        run(f"{program}-legacy", "-P", "FORWARD", "DROP")
    bridge(pod)
    with listen(external, 80):
        assert ask(pod, EXTERNAL[family], 80, wait=0.5) is None
        node.add(firewall(), pod)
        assert ask(pod, EXTERNAL[family], 80) == POD[family]
        node.check(firewall(), pod, node.results[pod])
        run(f"{PROGRAMS[family]}-legacy", "-F", "FORWARD")
        assert "FORWARD rule [-j CNI-FORWARD]" in node.check_refused(firewall(), pod, node.results[pod])
        node.delete(firewall(), pod)
    assert members("fastcni-forward4") == members("fastcni-forward6") == []


def test_unknown_backend_is_ignored_with_a_warning(node, bridge, pod):
    bridge(pod)
    reply = node.call("ADD", firewall("netfilter"), pod)
    assert reply.status == 0
    assert b'unknown backend string "netfilter" is ignored' in reply.stderr
    assert elements("forwarded4") == [POD[4]]


# -- the administrator's chain -----------------------------------------------------------------------------

@pytest.mark.parametrize("chain", ["CNI-ADMIN", "MINE"])
@BACKENDS
def test_rules_of_the_administrator_still_drop_pod_traffic(node, bridge, pod, pod_netns, external, backend, chain):
    other, keys = pod_netns(), {} if chain == "CNI-ADMIN" else {"iptablesAdminChainName": chain}
    bridge(pod, other)
    node.add(firewall(backend, **keys), pod)
    if backend == "nftables":
        run("nft", f"add rule inet fastcni {chain} ip saddr @forwarded4 ip daddr {EXTERNAL[4]} tcp dport 81 drop")
    else:
        run("iptables", "-A", chain, "-d", EXTERNAL[4], "-p", "tcp", "--dport", "81", "-j", "DROP")
    node.add(firewall(backend, **keys), other)
    with listen(external, 80), listen(external, 81):
        for name in (pod, other):
            assert ask(name, EXTERNAL[4], 80)
            assert ask(name, EXTERNAL[4], 81, wait=0.5) is None


@pytest.mark.parametrize("name", ["a b", "x" * 29, "-j", 'a"b'])
def test_bad_name_of_a_chain_is_refused(node, bridge, pod, name):
    bridge(pod)
    error = node.refused("ADD", firewall(iptablesAdminChainName=name), pod)
    assert error["code"] == 7
    assert "iptablesAdminChainName" in error["msg"]


# -- ingressPolicy -----------------------------------------------------------------------------------------

@pytest.fixture
def four(bridge, pod_netns):
    """Return two pods on br22 and two pods on br23."""
    pods = [pod_netns() for _ in range(4)]
    bridge(*pods[:2])
    bridge(*pods[2:], number=23)
    return pods


def address(node, pod, family):
    return node.results[pod]["ips"][0 if family == 4 else 1]["address"].partition("/")[0]


def reached(node, client, server, family, **more):
    return ask(client, address(node, server, family), 80, **more) is not None


@FAMILIES
@BACKENDS
def test_pods_of_other_bridges_do_not_reach_those_of_the_same_bridge(node, four, external, backend, family):
    a, b, c, d = four
    for name in four:
        node.add(firewall(backend, ingressPolicy="same-bridge"), name)
    with listen(a, 80), listen(external, 80), listen(d, 80):
        assert reached(node, b, a, family)
        assert not reached(node, c, a, family, wait=0.5)
        assert not reached(node, b, d, family, wait=0.5)
        assert ask(a, EXTERNAL[family], 80)
        assert ask(None, address(node, a, family), 80)
        assert ask(external, address(node, a, family), 80), "the policy applies only to traffic between bridges"


@FAMILIES
def test_a_bridge_without_policy_reaches_the_others(node, four, family):
    a, _, c, _ = four
    node.add(firewall("nftables", ingressPolicy="same-bridge"), a)
    node.add(firewall("nftables", ingressPolicy="open"), c)
    with listen(a, 80):
        assert reached(node, c, a, family)


@FAMILIES
@pytest.mark.parametrize("plain", [True, False], ids=["without br_netfilter", "with br_netfilter"])
def test_isolated_pods_do_not_reach_each_other(node, four, external, plain, family):
    """The policy also holds on one bridge, although the host does not route these packets."""
    a, b, c, _ = four
    if plain:
        no_bridge_netfilter()
    for name in four:
        node.add(firewall("nftables", ingressPolicy="isolated"), name)
    with listen(a, 80), listen(external, 80):
        assert not reached(node, b, a, family, wait=0.5)
        assert not reached(node, c, a, family, wait=0.5)
        assert ask(a, EXTERNAL[family], 80)
        assert ask(None, address(node, a, family), 80)


def test_no_frame_but_arp_passes_between_isolated_pods(node, four):
    """Once, IP packets with two VLAN tags passed, because their ethertype is a tag. The receiver's kernel removes tags
    with VLAN 0."""
    a, b, *_ = four
    macs = {pod: node.results[pod]["interfaces"][2]["mac"] for pod in (a, b)}
    sent = {f"{make.__name__} {tags}": make(macs[a], address(node, a, family), address(node, b, family), frames.udp(),
                                            to=macs[b], tags=tags)
            for make, family in ((frames.ipv4, 4), (frames.ipv6, 6))
            for tags in ([], [0], [0, 0], [(frames.ETH_P_8021AD, 0), 0], [7, 8])}
    sent |= {f"{kind:x}": frames.ethernet(macs[a], macs[b], kind)
             for kind in (frames.ETH_P_MPLS, frames.ETH_P_EXPERIMENT, frames.ETH_P_RARP)}
    arp = frames.arp(macs[a], macs[a], address(node, a, 4))
    assert frames.arrived(sent, a, b, arp) == set(sent)
    for name in (a, b):
        node.add(firewall("nftables", ingressPolicy="isolated"), name)
    assert frames.arrived(sent, a, b, arp) == set()


def test_isolated_by_iptables_has_the_rules_of_the_reference(node, four):
    a, _, c, _ = four
    for name in (a, c, c):
        node.add(firewall("iptables", ingressPolicy="isolated"), name)
    comment = '-m comment --comment "CNI firewall plugin rules (ingressPolicy: {})"'
    own, shared = comment.format("isolated"), comment.format("same-bridge|isolated")
    assert [line for line in filter_rules() if "ISOLATION" in line and line.startswith("-A")] == [
        f"-A FORWARD {shared} -j CNI-ISOLATION-STAGE-1",
        *(rule for name in ("br23", "br22") for rule in (
            f"-A CNI-ISOLATION-STAGE-1 -i {name} -o {name} {own} -j DROP",
            f"-A CNI-ISOLATION-STAGE-1 -i {name} ! -o {name} {own} -j CNI-ISOLATION-STAGE-2")),
        f"-A CNI-ISOLATION-STAGE-1 {shared} -j RETURN",
        *(f"-A CNI-ISOLATION-STAGE-2 -o {name} {shared} -j DROP" for name in ("br23", "br22")),
        f"-A CNI-ISOLATION-STAGE-2 {shared} -j RETURN"]
    assert [line.split()[-1] for line in filter_rules() if line.startswith("-A FORWARD")] == [
        "CNI-ISOLATION-STAGE-1", "CNI-FORWARD"]


@BACKENDS
def test_policy_is_removed_with_its_bridge(node, four, backend):
    a, _, c, _ = four
    for name, policy in ((a, "isolated"), (c, "same-bridge")):
        node.add(firewall(backend, ingressPolicy=policy), name)
        node.delete(firewall(backend, ingressPolicy=policy), name)

    def named():
        if backend == "iptables":
            return {name for name in ("br22", "br23") if any(name in line for line in filter_rules())}
        return {*elements("ingress-bridges")}

    assert named() == {"br22", "br23"}
    run("ip", "link", "del", "br22")
    node.ok("GC", {**firewall(backend), "cni.dev/valid-attachments": []})
    assert named() == {"br23"}


@pytest.mark.parametrize(("result", "msg"), [
    ({"interfaces": []}, 'interface needs to be set for ingress policy "isolated"'),
    ({"interfaces": [{"name": ""}]}, "got empty bridge name"),
    ({"interfaces": [{"name": "a b"}]}, 'prevResult.interfaces: string "a b": interface name')])
def test_policy_without_a_bridge_is_refused(node, pod, result, msg):
    error = node.refused("ADD", firewall(ingressPolicy="isolated", prevResult={"cniVersion": "1.1.0", **result}), pod)
    assert error["msg"].startswith(msg)
    assert error["code"] == 7


def test_unknown_policy_is_refused(node, bridge, pod):
    bridge(pod)
    error = node.refused("ADD", firewall(ingressPolicy="closed"), pod)
    assert error == {"code": 7, "msg": 'unknown ingress policy: "closed"',
                     "details": "ingressPolicy is one of open, same-bridge, isolated"}
    node.delete(firewall(ingressPolicy="closed"), pod)


# -- CHECK, DEL, GC, STATUS -------------------------------------------------------------------------------------------

BREAK = {
    "nftables": [["nft", "flush", "set", "inet", "fastcni", "forwarded6"],
                 ["nft", "delete", "chain", "inet", "fastcni", "CNI-ADMIN"],
                 ["nft", "flush", "chain", "inet", "fastcni", "ingress-policy"],
                 ["nft", "flush", "set", "inet", "fastcni", "ingress-isolated"],
                 ["nft", "delete", "table", "bridge", "fastcni"]],
    "iptables": [["ipset", "del", "fastcni-forward6", "fd00:22::2"],
                 "ip6tables -D CNI-FORWARD -m set --match-set fastcni-forward6 src -j ACCEPT".split(),
                 ["iptables", "-F", "FORWARD"], ["iptables", "-F", "CNI-FORWARD"],
                 ["iptables", "-F", "CNI-ISOLATION-STAGE-1"], ["ip6tables", "-F", "CNI-ISOLATION-STAGE-2"]]}


@pytest.mark.parametrize(("backend", "broken"), [(backend, broken) for backend in BREAK for broken in BREAK[backend]],
                         ids=lambda it: it if isinstance(it, str) else " ".join(it))
def test_check_names_missing_rules_and_the_next_add_restores_them(node, bridge, pod, backend, broken):
    conf = firewall(backend, ingressPolicy="isolated")
    bridge(pod)
    node.add(conf, pod)
    node.check(conf, pod, node.results[pod])
    run(*broken)
    before = rules()
    assert node.refused("CHECK", conf, pod)["details"] == "was the firewall flushed?"
    assert rules() == before, "CHECK changes nothing"
    node.add(conf, pod)
    node.check(conf, pod, node.results[pod])


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
def test_firewall_requires_prev_result(node, pod, command):
    assert node.refused(command, firewall(), pod)["msg"] == "missing prevResult from earlier plugin"


@BACKENDS
def test_del_needs_no_prev_result_and_may_be_repeated(node, bridge, pod, pod_netns, backend):
    other = pod_netns()
    bridge(pod, other)
    node.add(firewall(backend), other)
    before = node.left(pod, other)
    node.add(firewall(backend), pod)
    assert node.left(pod, other) != before
    for _ in range(2):
        node.delete(firewall(backend), f"/run/netns/{pod}", cid=cid_of(pod))    # by path: node adds no prevResult
    assert node.left(pod, other) == before


def test_del_of_a_pod_that_no_rule_names_runs_no_program(node, bridge, pod, pod_netns, monkeypatch):
    """containerd 1.6 calls DEL twice for each pod. The rules of other pods remain."""
    other = pod_netns()
    bridge(pod, other)
    for each in (pod, other):
        node.add(firewall("iptables"), each)
    node.delete(firewall("iptables"), pod)
    before, ran = node.left(other), []
    monkeypatch.setattr(process, "run", lambda path, *_, **__: ran.append(path))
    node.delete(firewall("iptables"), pod)
    assert not ran
    assert node.left(other) == before


@BACKENDS
def test_late_del_keeps_the_rules_of_the_addresses_new_owner(node, bridge, pod, pod_netns, backend):
    other = pod_netns()
    bridge(pod)
    node.add(firewall(backend), pod)
    node.results[other] = node.results[pod]
    node.add(firewall(backend), other)
    before = node.left(other)
    node.delete(firewall(backend), pod)
    assert node.left(other) == before
    node.check(firewall(backend), other, node.results[other])


@BACKENDS
def test_gc_deletes_rules_of_this_network_without_a_valid_attachment(node, bridge, pod, pod_netns, backend):
    gone, foreign = pod_netns(), pod_netns()
    bridge(pod, gone, foreign)
    node.add(firewall(backend), pod)
    node.add({**firewall(backend), "name": "net-b"}, foreign)
    before = node.left(pod, gone, foreign)
    node.add(firewall(backend), gone)
    node.ok("GC", {**firewall(backend),
                   "cni.dev/valid-attachments": [{"containerID": cid_of(pod), "ifname": "eth0"}]})
    assert node.left(pod, gone, foreign) == before


@BACKENDS
def test_status(node, backend, monkeypatch):
    node.ok("STATUS", firewall(backend))
    if backend == "iptables":
        error = node.refused("STATUS", firewall(backend), env={"PATH": "/nowhere"})
        assert error["code"] == 50
        assert "install iptables" in error["details"]
    else:
        refusal = wire.NetlinkError(95, "add nftables table fastcni")
        monkeypatch.setattr(wire, "attempt", lambda sock, batch: ([], [refusal]))
        error = node.refused("STATUS", firewall(backend))
        assert error["code"] == 50
        assert "nf_tables" in error["details"]


def test_backend_that_is_not_installed_is_named(node, bridge, pod):
    bridge(pod)
    before = node.left(pod)
    error = node.refused("ADD", firewall("iptables"), pod, env={"PATH": "/nowhere"})
    assert '"iptables-save": executable file not found' in error["msg"]
    assert "install iptables" in error["details"]
    assert node.left(pod) == before


# -- cost --------------------------------------------------------------------------------------------------

@BACKENDS
def test_cost_of_a_pod_does_not_depend_on_the_number_of_pods(node, monkeypatch, backend):
    """With 500 pods, the plugin sends as many messages and bytes as with one pod, and runs no program."""
    drop_by(backend)

    def of(number):
        return firewall(**({"ingressPolicy": "same-bridge"} if backend == "nftables" else {}), prevResult={
            "cniVersion": "1.1.0", "interfaces": [{"name": "br22"}],
            "ips": [{"address": f"10.22.{number >> 8}.{number & 255}/16"}, {"address": f"fd00:22::{number:x}/64"}]})

    def sent(command, number):
        sizes = []
        with monkeypatch.context() as patch:
            send = wire.send
            patch.setattr(wire, "send", lambda sock, data: (sizes.append(len(data)), send(sock, data)))
            node.ok(command, of(number), "nobody", cid="c", env={"PATH": "/nowhere"})
        return sizes

    node.add(of(1), "nobody", cid="a")
    few = sent("ADD", 600), sent("DEL", 600)
    for number in range(2, 500):
        node.add(of(number), "nobody", cid="a", ifname=f"e{number}")
    assert (sent("ADD", 600), sent("DEL", 600)) == few
    assert len(elements("forwarded4" if backend == "nftables" else "iptables-forward4")) == 499
