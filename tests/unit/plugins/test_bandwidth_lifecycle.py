"""bandwidth: the veth that it shapes, repeated ADD, DEL, GC, STATUS, CHECK, and versions."""


import pytest
from lab.node import cid_of, run
from unit.plugins.shaped import DUAL, EGRESS, INGRESS, bandwidth, behind_bridge, host_end, ifb_of, ifbs

from fastcni.kernel import rtnl, tc
from fastcni.kit.call import names

pytestmark = pytest.mark.needs("ifb")
VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


@pytest.fixture
def conf(node, pod):
    """Return a configuration for a pod that a bridge has connected."""
    return behind_bridge(node, pod)


# -- the pod's veth ---------------------------------------------------------------------------------------

def test_check_of_an_isolating_firewall_in_front_of_bandwidth_succeeds(node, pod):
    """bandwidth appends its ifb to the result. Once, CHECK took the ifb for a port that the firewall had lost."""
    behind_bridge(node, pod)
    isolating = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
                 "ingressPolicy": "isolated"}
    node.add(isolating, pod)
    result = node.add(bandwidth(**INGRESS, **EGRESS), pod)
    node.check(isolating, pod, result)
    run("nft", "flush", "set", "bridge", "fastcni", "isolated")
    assert "is not in force" in node.check_refused(isolating, pod, result)


def test_bandwidth_is_chained_after_another_plugin(node, pod):
    for keys in ({}, INGRESS):          # without limits, the reference plugin crashes
        error = node.refused("ADD", bandwidth(**keys), pod)
        assert (error["code"], error["msg"]) == (7, "must be called as chained plugin")
    assert node.refused("CHECK", bandwidth(**INGRESS), pod)["msg"] == "must be called as a chained plugin"


NOT_FOUND = "no veth peer of container interface found in host ns"


@pytest.mark.parametrize("change, msg", [
    (lambda result: result.pop("interfaces"), "no interfaces provided"),
    (lambda result: result["interfaces"].pop(1), NOT_FOUND),
    (lambda result: result["interfaces"][1].update(sandbox="/run/netns/x"), NOT_FOUND),
    (lambda result: result["interfaces"][1].update(name="veth0"), NOT_FOUND),
])
def test_prev_result_must_name_the_host_end(node, pod, conf, change, msg):
    change(node.results[pod])
    before = node.left(pod)
    assert msg in node.refused("ADD", {**conf, **INGRESS, **EGRESS}, pod)["msg"]
    assert node.left(pod) == before


def test_a_link_that_is_not_a_veth_is_refused(node, pod, conf):
    run("ip", "link", "add", "eth1", "type", "ifb", netns=pod)
    for ifname, why in (("eth1", "it is of kind ifb"), ("eth2", "it is not in the pod")):
        error = node.refused("ADD", {**conf, **INGRESS}, pod, ifname=ifname)
        assert error["msg"] == f"container interface {ifname} has no veth peer"
        assert why in error["details"]


def test_a_veth_with_both_ends_in_the_pod_is_refused(node, pod, conf):
    run("ip", "link", "add", "eth1", "index", "77", "type", "veth", "peer", "eth2", "index", "78", netns=pod)
    assert node.refused("ADD", {**conf, **INGRESS}, pod, ifname="eth1")["msg"] == \
        "veth peer with index 78 is not in host ns"


# -- repeated ADD and a second interface ------------------------------------------------------------------

@pytest.mark.parametrize("keys", [INGRESS, EGRESS, {**EGRESS, "shapedSubnets": ["10.0.0.0/8"]}], ids=str)
def test_a_repeated_add_fails_and_the_pod_keeps_its_limits(node, pod, conf, keys):
    result, before = node.add({**conf, **keys}, pod), node.left(pod)
    error = node.refused("ADD", {**conf, **keys}, pod)
    assert "qdisc" in error["msg"]
    assert "was the pod added before" in error["details"]
    assert node.left(pod) == before
    node.check({**conf, **keys}, pod, result)


def test_a_program_that_filters_what_the_link_receives_is_left_alone(node, pod, conf):
    run("tc", "qdisc", "add", "dev", host_end(node, pod), "clsact")
    before = node.left(pod)
    assert "see tc qdisc show dev" in node.refused("ADD", {**conf, **INGRESS, **EGRESS}, pod)["details"]
    assert node.left(pod) == before


def test_two_interfaces_of_a_pod_on_one_network_have_an_ifb_each(node, pod):
    """The reference plugin gives both interfaces one ifb name, and its second ADD fails."""
    conf, results = {}, {}
    for ifname in ("eth0", "eth1"):
        conf[ifname] = {**behind_bridge(node, pod, ifname=ifname), **EGRESS, "prevResult": node.results[pod]}
        results[ifname] = node.add(conf[ifname], pod, ifname=ifname)
    assert len(ifbs()) == 2
    assert results["eth0"]["interfaces"][-1]["name"] == ifb_of(pod)
    for ifname in ("eth0", "eth1"):
        node.check(conf[ifname], pod, results[ifname], ifname=ifname)
        node.delete(conf[ifname], pod, ifname=ifname)
        assert len(ifbs()) == (1 if ifname == "eth0" else 0)


def test_the_ifb_of_a_pod_without_del_is_replaced(node, pod, conf):
    first = node.add({**conf, **EGRESS}, pod)["interfaces"][-1]
    node.delete(node.conf(*DUAL), pod)                  # this runs DEL of bridge, but not DEL of bandwidth
    behind_bridge(node, pod)
    second = node.add({**conf, **EGRESS}, pod)
    assert list(ifbs()) == [first["name"]]
    assert second["interfaces"][-1]["mac"] != first["mac"]
    node.check({**conf, **EGRESS}, pod, second)


def test_the_error_names_the_link_that_has_the_name_already(node, pod, conf):
    both = [ifb_of(pod), names.digest(f"net-a{cid_of(pod)}:eth0", 15, "bwp")]
    for name in both:
        run("ip", "link", "add", name, "type", "ifb")
    before = node.left(pod)
    assert node.refused("ADD", {**conf, **EGRESS}, pod)["msg"] == f"adding link: {both[1]} exists"
    assert node.left(pod) == before


# -- DEL, GC, STATUS --------------------------------------------------------------------------------------

@pytest.mark.parametrize("gone", ["nothing", "netns", "netns unnamed", "link", "ifb", "prevResult"])
def test_del_leaves_nothing_and_may_be_repeated(node, pod, conf, gone):
    conf.update(EGRESS, **INGRESS)
    node.add(conf, pod)
    if gone.startswith("netns"):
        run("ip", "netns", "del", pod)
    elif gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "ifb":
        run("ip", "link", "del", ifb_of(pod))
    elif gone == "prevResult":
        node.results.clear()
    for _ in range(2):
        node.delete(conf, "" if gone == "netns unnamed" else pod, cid=cid_of(pod))
        assert not ifbs()


def test_del_takes_an_ifb_that_the_go_plugin_has_made(node, pod, conf):
    run("ip", "link", "add", ifb_of(pod), "type", "ifb")
    run("ip", "link", "add", "bwp0123456789ab", "type", "ifb")
    node.delete(conf, pod)
    assert list(ifbs()) == ["bwp0123456789ab"]


def test_gc_deletes_only_ifbs_of_fastcni_without_a_valid_attachment(node, pod_netns):
    kept, lost, elsewhere = pod_netns(), pod_netns(), pod_netns()
    conf = {**behind_bridge(node, kept, lost, elsewhere), **EGRESS}
    for pod, name in ((kept, "net-a"), (lost, "net-a"), (elsewhere, "net-b")):
        node.add({**conf, "name": name}, pod)
    run("ip", "link", "add", "bwp0123456789ab", "type", "ifb")          # the reference plugin gives such names
    valid = [{"containerID": cid_of(kept), "ifname": "eth0"}, {"containerID": cid_of(lost), "ifname": "eth1"}]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert set(ifbs()) == {ifb_of(kept), ifb_of(elsewhere, "net-b"), "bwp0123456789ab"}
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert set(ifbs()) == {ifb_of(elsewhere, "net-b"), "bwp0123456789ab"}


def test_a_mark_that_is_too_long_is_cut_and_still_matches(node, pod):
    name, cid = "n" * 120, "c" * 200
    node.behind(node.conf(*DUAL, name=name), pod, cid=cid)
    conf = {**bandwidth(**EGRESS), "name": name}
    node.add(conf, pod, cid=cid)
    (ifb,) = ifbs().values()
    assert len(ifb["ifalias"]) == 255
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid, "ifname": "eth0"}]})
    assert ifbs()
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert not ifbs()


def test_status_names_the_missing_kernel_feature(node, monkeypatch):
    conf = bandwidth(**INGRESS)
    node.ok("STATUS", conf)
    qdisc, link = tc.ask_for_kind, rtnl.ask_for_kind
    for lacking in ("tbf", "ingress", "htb"):
        monkeypatch.setattr(tc, "ask_for_kind", lambda batch, index, kind, parent: qdisc(
            batch, index, "nonsense" if kind == lacking else kind, parent))     # noqa: B023 - the loop's body calls it
        asked = {**conf, "shapedSubnets": ["10.0.0.0/8"]} if lacking == "htb" else conf
        error = node.refused("STATUS", asked)
        assert (error["code"], error["msg"]) == (50, f"this kernel has no {lacking} qdiscs")
        assert error["details"] == f"the kernel found no module sch_{lacking}"
    monkeypatch.setattr(rtnl, "ask_for_kind", lambda batch, kind: link(batch, "nonsense"))
    error = node.refused("STATUS", conf)
    assert (error["code"], error["msg"]) == (50, "this kernel has no ifb links")
    reply = node.call("STATUS", bandwidth())
    assert reply.status == 0
    assert b"this kernel has no ifb links" in reply.stderr  # STATUS only warns, because only some pods ask for limits
    assert run("tc", "qdisc", "show", "dev", "lo").split()[1:2] in ([], ["noqueue"])


# -- CHECK ------------------------------------------------------------------------------------------------

HELD = {**INGRESS, **EGRESS}
SUBNETS = {**HELD, "shapedSubnets": ["10.99.0.0/16", "fd00:99::/32"]}
TBF = "tc qdisc replace dev {} root handle 1: tbf rate {} burst {} limit {}"
SPOILED = {  # {case: (keys, command, words of the error)}. The test replaces <veth> and <ifb> by the links' names
    "no ifb": (HELD, "ip link del <ifb>", "get ifb device: Link not found"),
    "ifb is down": (HELD, "ip link set <ifb> down", "get ifb device: it is down"),
    "no tbf": (HELD, "tc qdisc del dev <veth> root", "Failed to find qdisc"),
    "no tbf on the ifb": (HELD, "tc qdisc del dev <ifb> root", "Failed to find qdisc"),
    "another qdisc": (HELD, "tc qdisc replace dev <veth> root pfifo limit 10", "Failed to find qdisc"),
    "another rate": (HELD, TBF.format("<veth>", "9kbit", "10000b", "10025b"), "Rate doesn't match"),
    "another limit": (HELD, TBF.format("<veth>", "8kbit", "10000b", "10026b"), "Limit doesn't match"),
    "another burst": (HELD, TBF.format("<ifb>", "16kbit", "10001b", "20050b"), "Buffer doesn't match"),
    "no ingress qdisc": (HELD, "tc qdisc del dev <veth> ingress", "Failed to find the filter that redirects"),
    "no filter": (HELD, "tc filter del dev <veth> ingress", "Failed to find the filter that redirects"),
    "htb without a class": (SUBNETS, "tc class del dev <ifb> classid 1:30", "Failed to find"),
    "htb of another rate": (SUBNETS, "tc class change dev <ifb> parent 1: classid 1:30 htb rate 9kbit burst 20000b "
                                     "cburst 20000b", "Rate doesn't match"),
    "htb of another default": (SUBNETS, "tc qdisc replace dev <veth> root handle 2: htb default 30", "Default class"),
    "no filter of a subnet": (SUBNETS, "tc filter del dev <veth> pref 4", "Failed to find the filter of 10.99.0.0/16"),
    "one filter more": (SUBNETS, "tc filter add dev <veth> parent 1: protocol ip pref 4 u32 match ip src 10.1.0.0/16 "
                                 "flowid 1:30", "Filters don't match"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_check_reports_the_change(node, pod, conf, what):
    keys, command, msg = SPOILED[what]
    conf.update(keys)
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    command = command.replace("<veth>", host_end(node, pod)).replace("<ifb>", ifb_of(pod))
    if "class del" in command:              # the kernel does not delete a class to which a filter refers
        run("tc", "filter", "del", "dev", ifb_of(pod))
    run(*command.split())
    assert msg in node.check_refused(conf, pod, result)


def test_check_finds_other_subnets_and_the_reverse_of_them(node, pod, conf):
    result = node.add({**conf, **SUBNETS}, pod)
    for keys, msg in (({"unshapedSubnets": SUBNETS["shapedSubnets"]}, "Default class doesn't match"),
                        ({"shapedSubnets": ["10.98.0.0/16"]}, "Failed to find the filter of 10.98.0.0/16"), ({},
                        "Failed to find qdisc")):
        assert node.check_refused({**conf, **HELD, **keys}, pod, result) == msg


@pytest.mark.parametrize("version", VERSIONS)
def test_add_check_and_del_at_every_version(node, pod, version):
    node.behind(node.conf(*DUAL, cniVersion=version), pod)
    conf = {**bandwidth(**INGRESS, **EGRESS), "cniVersion": version}
    result = node.add(conf, pod)
    assert result["cniVersion"] == version
    assert result["interfaces"][-1]["name"] == ifb_of(pod)
    if version >= "0.4.0":
        node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert not ifbs()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_before_030_results_have_no_interfaces(node, pod, version):
    error = node.refused("ADD", {**bandwidth(**INGRESS), "cniVersion": version}, pod)
    assert (error["code"], error["msg"]) == (1, "incompatible CNI versions")
