"""bandwidth: rates as iperf3 measures them, the kernel's numbers, subnets, the ifb's name and mark, CHECK, DEL, GC,
STATUS."""

import json
import shutil
import subprocess

import pytest
from real_kernel.node import Inside, cid_of, links, run, source_seen
from real_kernel.test_refusals import refused_in_turn

from fastcni.kernel import rtnl, tc
from fastcni.kit import names, shaping

pytestmark = pytest.mark.needs("ifb")
DUAL = ("10.22.0.0/24", "fd00:22::/64")
MBIT = 1_000_000
VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
INGRESS = {"ingressRate": 8000, "ingressBurst": 80000}
EGRESS = {"egressRate": 16000, "egressBurst": 160000}


@pytest.fixture
def conf(node, pod):
    """Of a pod that a bridge has connected."""
    return behind_bridge(node, pod)


def behind_bridge(node, *pods, **more):
    node.behind(node.conf(*DUAL, isDefaultGateway=True), *pods, **more)
    return bandwidth()


def bandwidth(**keys):
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "bandwidth", **keys}


def host_end(node, pod):
    return next(item["name"] for item in node.results[pod]["interfaces"] if item["name"].startswith("veth"))


def ifb_of(pod, network="net-a"):
    """The Go plugin's name for it."""
    return names.digest(network + cid_of(pod), 15, "bwp")


def ifbs():
    return {name: link for name, link in links().items() if link.get("linkinfo", {}).get("info_kind") == "ifb"}


def tc_json(*words):
    return json.loads(run("tc", "-j", *words))


def root(link):
    """{"kind", "options", ...} of the root qdisc of a link, as tc(8) shows it."""
    return next(item for item in tc_json("qdisc", "show", "dev", link) if item.get("root"))




# -- what iperf3 measures ---------------------------------------------------------------------------------

needs_iperf3 = pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3 (Debian: iperf3)")
RATE, BURST, SECONDS, TRIES = 20 * MBIT, 400_000, 2, 3
BOTH = {"ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST}


def measured(pod, way, address, *, seconds=SECONDS):
    """What TCP achieves between the host's `address` and the pod, in bit/s."""
    with Inside(pod):
        server = subprocess.Popen(["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    try:
        while "listening" not in server.stdout.readline():
            assert server.poll() is None
        there = "fd00:22::2" if ":" in address else "10.22.0.2"
        out = json.loads(run("iperf3", "-c", there, "-B", address, "-t", seconds, "-J",
                             *(["-R"] if way == "egress" else [])))
        return out["end"]["sum_received"]["bits_per_second"]
    finally:
        server.kill()
        server.communicate()


def within_a_tenth(pod, way, address):
    """The machine is noisy, so it may try again."""
    found = []
    for _ in range(TRIES):
        found.append(measured(pod, way, address) / RATE)
        if 0.9 <= found[-1] <= 1.1:
            return True
    print(f"{way} {address}: {found} of the limit")
    return False


@needs_iperf3
@pytest.mark.parametrize("way", ["ingress", "egress"])
def test_the_achieved_rate_is_within_a_tenth_of_the_limit(node, pod, conf, way):
    free = measured(pod, way, "10.22.0.1", seconds=1)
    node.add({**conf, f"{way}Rate": RATE, f"{way}Burst": BURST}, pod)
    assert within_a_tenth(pod, way, "10.22.0.1")
    other = "egress" if way == "ingress" else "ingress"
    assert free > 3 * RATE < measured(pod, other, "10.22.0.1", seconds=1)      # that one has no limit


@needs_iperf3
@pytest.mark.parametrize("address, way", [("10.22.0.1", "egress"), ("fd00:22::1", "ingress")])
@pytest.mark.parametrize("key", ["shapedSubnets", "unshapedSubnets"])
def test_only_the_traffic_with_some_subnets_is_held(node, pod, conf, key, address, way):
    run("ip", "addr", "add", "10.99.0.1/32", "dev", "br0")
    run("ip", "addr", "add", "fd00:99::1/128", "dev", "br0", "nodad")
    node.add({**conf, **BOTH, key: ["10.99.0.0/16", "fd00:99::/32"]}, pod)
    other = {"10.22.0.1": "10.99.0.1", "fd00:22::1": "fd00:99::1"}[address]
    held, free = (other, address) if key == "shapedSubnets" else (address, other)
    assert within_a_tenth(pod, way, held) and measured(pod, way, free, seconds=1) > 3 * RATE


HOST, SEVERAL = ["10.22.0.1", "fd00:22::1"], 9


@pytest.mark.parametrize("subnets, held", [
    (["0.0.0.0/0"], ["10.22.0.1"]), (["::/0"], ["fd00:22::1"]), (["10.22.0.1/32", "fd00:22::1/128"], HOST),
    (["10.22.0.0/31", "fd00:22::/127"], HOST), (["10.22.0.2/31", "fd00:22::2/127", "fd00:22:1::/48"], []),
    (["10.22.0.2/32", "fd00:22::2/128"], [])], ids=str)
def test_it_is_the_far_ends_address_that_counts(node, pod, conf, subnets, held):
    """By the counters of the class, in both directions; among others' packets (multicast) several tell."""
    node.add({**conf, **BOTH, "shapedSubnets": subnets}, pod)
    for address, inside in (("10.22.0.1", "10.22.0.2"), ("fd00:22::1", "fd00:22::2")):
        for link, way in ((ifb_of(pod), (pod, None, address)), (host_end(node, pod), (None, pod, inside))):
            before = packets(link)
            assert all(source_seen(*way) for _ in range(SEVERAL))
            assert (packets(link) - before >= SEVERAL) is (address in held), (link, way)


def packets(link):
    """How many the class with a limit has sent."""
    words = run("tc", "-s", "class", "show", "dev", link).split()
    return int(words[words.index("pkt") - 1])


# -- the kernel's numbers ---------------------------------------------------------------------------------

@pytest.mark.parametrize("rate, burst, shape", [
    (8000, 80000, (1000, 10025, 156250000)),            # the reference's own example
    (20 * MBIT, 400_000, (2_500_000, 112_500, 312_500)),
    (1_000_001, 99_999, (125_000, 15_624, 1_562_375)),
    (1 << 40, 1 << 30, (1 << 37, (1 << 37) // 40 + (1 << 27), 15_250)),
    (1 << 45, 1 << 30, (1 << 42, 0xFFFFFFFF, 468)),     # of this limit the Go plugin keeps the lower 32 bits
    (100_000, (1 << 32) - 1, (12_500, 536_871_223, 0xFFFFFFFF)),        # and of this buffer
])
def test_the_numbers_are_the_references(rate, burst, shape):
    found = shaping.Limit(rate // 8, burst // 8, shaping.SOURCE).shape()
    assert (found.rate, found.limit, found.buffer) == shape


@pytest.mark.parametrize("rate", [8, 8000, 20 * MBIT, 1 << 36, (1 << 64) - 1])
@pytest.mark.parametrize("subnets", [{}, {"shapedSubnets": ["10.99.0.0/16"]}], ids=["tbf", "htb"])
def test_the_kernel_takes_every_rate_and_check_finds_it(node, pod, conf, rate, subnets):
    burst = max(rate // 10, 8) if rate < 1 << 36 else (1 << 35) - 9
    if rate == (1 << 64) - 1:
        error = node.refused("ADD", {**conf, "egressRate": rate, "egressBurst": burst}, pod)
        assert (error["code"], error["msg"][:28]) == (7, "burst is too small for its r")
        return
    conf.update(ingressRate=rate, ingressBurst=burst, egressRate=rate, egressBurst=burst, **subnets)
    result = node.add(conf, pod)
    node.check(conf, pod, result)


def test_tc_shows_rate_burst_and_latency(node, pod, conf):
    node.add({**conf, **INGRESS}, pod)
    found = root(host_end(node, pod))
    assert (found["kind"], found["handle"]) == ("tbf", "1:")
    assert found["options"] == {**found["options"], "rate": 1000, "burst": 10000, "lat": 25000}


@pytest.mark.parametrize("megabit", [1, 100])
def test_the_longest_burst_of_runtimes_is_no_error(node, pod, conf, megabit):
    """containerd passes one of 2^32-1 bits with the rates of a pod's annotations."""
    rates = {"ingressRate": megabit * MBIT, "ingressBurst": 0xFFFFFFFF, "egressRate": megabit * MBIT,
             "egressBurst": 0xFFFFFFFF}
    conf["runtimeConfig"] = {"bandwidth": rates}
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"


def test_a_burst_shorter_than_a_packet_is_warned_of(node, pod, conf):
    reply = node.call("ADD", {**conf, "egressRate": 8000, "egressBurst": 12_000}, pod)
    assert reply.status == 0
    assert f"egressBurst is 12000 bit: of {host_end(node, pod)}'s packets" in reply.stderr.decode()
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"       # a short one passes


# -- keys -------------------------------------------------------------------------------------------------

def test_ingress_alone_has_no_ifb_and_the_result_stays(node, pod, conf):
    assert node.add({**conf, **INGRESS}, pod) == node.results[pod]
    assert root(host_end(node, pod))["kind"] == "tbf" and not ifbs()


def test_the_ifb_of_egress_is_in_the_result(node, pod, conf):
    result = node.add({**conf, **EGRESS}, pod)
    (name, ifb), = ifbs().items()
    assert name == ifb_of(pod) and result["interfaces"][-1] == {"name": name, "mac": ifb["address"]}
    assert result["interfaces"][:-1] == node.results[pod]["interfaces"] and result["ips"] == node.results[pod]["ips"]
    assert ifb["mtu"] == links()[host_end(node, pod)]["mtu"] and "txqlen" not in ifb and "UP" in ifb["flags"]
    assert root(name)["kind"] == "tbf" and root(host_end(node, pod))["kind"] == "noqueue"
    assert ifb["ifalias"].startswith(f"fastcni {names.hashes('net-a', cid_of(pod), 'eth0')}, net: net-a, if: eth0")


def test_the_ifb_has_the_mtu_of_the_veth(node, pod):
    node.behind(node.conf(*DUAL, mtu=1280), pod)
    node.add(bandwidth(**EGRESS), pod)
    assert ifbs()[ifb_of(pod)]["mtu"] == 1280


@pytest.mark.parametrize("keys", [{}, {"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0},
                                  {"ingressRate": None}, {"runtimeConfig": {"bandwidth": {"egressRate": 0}}},
                                  {"unshapedSubnets": ["10.0.0.0/8"]}], ids=str)
def test_zero_and_nothing_are_no_limit(node, pod, conf, keys):
    before = node.left(pod)
    result = node.add({**conf, **keys}, pod)
    assert result == node.results[pod] and node.left(pod) == before
    node.check({**conf, **keys}, pod, result)


@pytest.mark.parametrize("top", [{}, {"ingressRate": 0}, {"egressRate": 8000, "egressBurst": 80000}], ids=str)
def test_one_key_in_the_configuration_and_the_capability_does_not_count(node, pod, conf, top):
    node.add({**conf, **top, "runtimeConfig": {"bandwidth": {**INGRESS, **EGRESS}}}, pod)
    held = [link for link in (host_end(node, pod), ifb_of(pod)) if link in links() and root(link)["kind"] == "tbf"]
    assert held == ([ifb_of(pod)] if "egressRate" in top else [] if top else [host_end(node, pod), ifb_of(pod)])


@pytest.mark.parametrize("key", ["shapedSubnets", "unshapedSubnets"])
def test_subnets_of_the_configuration_apply_to_rates_of_the_capability(node, pod, conf, key):
    conf["runtimeConfig"] = {"bandwidth": INGRESS}
    node.add({**conf, key: ["10.99.0.0/16"]}, pod)
    found = root(host_end(node, pod))
    assert found["kind"] == "htb" and found["options"]["default"] == ("0" if key == "shapedSubnets" else "0x30")


def test_subnets_of_the_capability_go_before(node, pod, conf):
    asked = {**INGRESS, "unshapedSubnets": ["10.99.0.0/16"]}
    node.add({**conf, "shapedSubnets": ["10.98.0.0/16"], "runtimeConfig": {"bandwidth": asked}}, pod)
    assert root(host_end(node, pod))["options"]["default"] == "0x30"
    assert "0a630000/ffff0000 at 12" in run("tc", "filter", "show", "dev", host_end(node, pod))


RATES = "ingressRate is {}, ingressBurst is {}"
BAD = [
    ({"ingressRate": 1000}, "if rate is set, burst must also be set", RATES.format(1000, 0)),
    ({"ingressBurst": 1000}, "if burst is set, rate must also be set", RATES.format(0, 1000)),
    ({"ingressRate": 1000, "ingressBurst": 8 * 0xFFFFFFFF}, "burst cannot be more than 4GB",
     RATES.format(1000, 8 * 0xFFFFFFFF)),
    ({"ingressRate": 7, "ingressBurst": 80}, "8 bits at least", RATES.format(7, 80)),
    ({"ingressRate": 80, "ingressBurst": 7}, "8 bits at least", RATES.format(80, 7)),
    ({"ingressRate": 1 << 40, "ingressBurst": 8000}, "too small for its rate", RATES.format(1 << 40, 8000)),
    ({"ingressRate": 1 << 64, "ingressBurst": 8}, "ingressRate: expected a whole number from 0 up to "
     "18446744073709551615, got number 18446744073709551616", ""),
    ({"ingressRate": -1, "ingressBurst": 8}, "ingressRate: expected a whole number from 0", ""),
    ({"ingressRate": "1M", "ingressBurst": 8}, 'ingressRate: expected a whole number from 0 up to', ""),
    ({"ingressRate": 1.5e6, "ingressBurst": 8}, "got number 1500000", ""),
    ({"runtimeConfig": {"bandwidth": {"egressRate": 9}}}, "if rate is set, burst must also be set",
     "runtimeConfig.bandwidth.egressRate is 9, runtimeConfig.bandwidth.egressBurst is 0"),
    ({"runtimeConfig": {"bandwidth": []}}, "runtimeConfig.bandwidth: expected an object", ""),
    ({**INGRESS, "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["::/0"]}, "exclude each other", ""),
    ({**INGRESS, "shapedSubnets": ["10.0.0.0/8", "hello"]}, "shapedSubnets[1]: invalid CIDR address: hello", ""),
    ({**INGRESS, "unshapedSubnets": ["10.0.0.0/33"]}, "unshapedSubnets[0]: invalid CIDR address: 10.0.0.0/33", ""),
    ({**INGRESS, "unshapedSubnets": "10.0.0.0/8"}, "unshapedSubnets: expected a list", ""),
    ({**INGRESS, "unshapedSubnets": 101 * ["10.0.0.0/8"]}, "unshapedSubnets: 101 subnets; there can be 100", ""),
]


@pytest.mark.parametrize("keys, words, details", BAD, ids=[str(keys)[:60] for keys, *_ in BAD])
def test_what_cannot_be_is_refused_and_no_reason_for_del_to_fail(node, pod, conf, keys, words, details):
    before = node.left(pod)
    for command in ("ADD", "CHECK"):
        error = node.refused(command, {**conf, **keys}, pod)
        assert error["code"] == 7 and words in error["msg"] and details in error.get("details", "")
    assert node.left(pod) == before
    node.delete({**conf, **keys}, pod)


def test_as_many_subnets_as_there_can_be(node, pod, conf):
    conf.update(INGRESS, **EGRESS, unshapedSubnets=[f"2001:db8:{i}::1/128" for i in range(100)])
    result = node.add(conf, pod)
    node.check(conf, pod, result)


# -- the pod's veth ---------------------------------------------------------------------------------------

def test_it_stands_behind_another_plugin(node, pod):
    for keys in ({}, INGRESS):          # with nothing to do the reference crashes
        error = node.refused("ADD", bandwidth(**keys), pod)
        assert (error["code"], error["msg"]) == (7, "must be called as chained plugin")
    assert node.refused("CHECK", bandwidth(**INGRESS), pod)["msg"] == "must be called as a chained plugin"


NOT_FOUND = "no veth peer of container interface found in host ns"


@pytest.mark.parametrize("change, words", [
    (lambda result: result.pop("interfaces"), "no interfaces provided"),
    (lambda result: result["interfaces"].pop(1), NOT_FOUND),
    (lambda result: result["interfaces"][1].update(sandbox="/run/netns/x"), NOT_FOUND),
    (lambda result: result["interfaces"][1].update(name="veth0"), NOT_FOUND),
])
def test_the_result_has_to_know_the_host_end(node, pod, conf, change, words):
    change(node.results[pod])
    before = node.left(pod)
    assert words in node.refused("ADD", {**conf, **INGRESS, **EGRESS}, pod)["msg"] and node.left(pod) == before


def test_a_link_that_is_no_veth_cannot_be_shaped(node, pod, conf):
    run("ip", "-n", pod, "link", "add", "eth1", "type", "ifb")
    for ifname, why in (("eth1", "it is of kind ifb"), ("eth2", "it is not in the pod")):
        error = node.refused("ADD", {**conf, **INGRESS}, pod, ifname=ifname)
        assert error["msg"] == f"container interface {ifname} has no veth peer" and why in error["details"]


def test_a_veth_within_the_pod_cannot_be_shaped(node, pod, conf):
    run("ip", "-n", pod, "link", "add", "eth1", "index", "77", "type", "veth", "peer", "eth2", "index", "78")
    assert node.refused("ADD", {**conf, **INGRESS}, pod, ifname="eth1")["msg"] == \
        "veth peer with index 78 is not in host ns"


# -- again, and twice -------------------------------------------------------------------------------------

@pytest.mark.parametrize("keys", [INGRESS, EGRESS, {**EGRESS, "shapedSubnets": ["10.0.0.0/8"]}], ids=str)
def test_a_repeated_add_fails_and_the_pod_keeps_its_limits(node, pod, conf, keys):
    result, before = node.add({**conf, **keys}, pod), node.left(pod)
    error = node.refused("ADD", {**conf, **keys}, pod)
    assert "qdisc" in error["msg"] and "was the pod added before" in error["details"]
    assert node.left(pod) == before
    node.check({**conf, **keys}, pod, result)


def test_a_program_that_filters_what_the_link_receives_is_left_alone(node, pod, conf):
    run("tc", "qdisc", "add", "dev", host_end(node, pod), "clsact")
    before = node.left(pod)
    assert "see tc qdisc show dev" in node.refused("ADD", {**conf, **INGRESS, **EGRESS}, pod)["details"]
    assert node.left(pod) == before


def test_two_interfaces_of_a_pod_on_one_network_have_an_ifb_each(node, pod):
    """The reference has one name for both, and its second ADD fails."""
    conf, results = {}, {}
    for ifname in ("eth0", "eth1"):
        conf[ifname] = {**behind_bridge(node, pod, ifname=ifname), **EGRESS, "prevResult": node.results[pod]}
        results[ifname] = node.add(conf[ifname], pod, ifname=ifname)
    assert len(ifbs()) == 2 and results["eth0"]["interfaces"][-1]["name"] == ifb_of(pod)
    for ifname in ("eth0", "eth1"):
        node.check(conf[ifname], pod, results[ifname], ifname=ifname)
        node.delete(conf[ifname], pod, ifname=ifname)
        assert len(ifbs()) == (1 if ifname == "eth0" else 0)


def test_the_ifb_of_a_pod_without_del_is_replaced(node, pod, conf):
    first = node.add({**conf, **EGRESS}, pod)["interfaces"][-1]
    node.delete(node.conf(*DUAL), pod)                  # the pod's bridge is told, bandwidth is not
    behind_bridge(node, pod)
    second = node.add({**conf, **EGRESS}, pod)
    assert list(ifbs()) == [first["name"]] and second["interfaces"][-1]["mac"] != first["mac"]
    node.check({**conf, **EGRESS}, pod, second)


def test_names_that_others_have_taken_are_named(node, pod, conf):
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
        run("ip", "-n", pod, "link", "del", "eth0")
    elif gone == "ifb":
        run("ip", "link", "del", ifb_of(pod))
    elif gone == "prevResult":
        node.results.clear()
    for _ in range(2):
        node.delete(conf, "" if gone == "netns unnamed" else pod, cid=cid_of(pod))
        assert not ifbs()


def test_a_del_that_is_refused_anything_can_be_repeated(node, pod, conf, monkeypatch):
    node.add({**conf, **EGRESS}, pod)
    refused = []
    for refusal in refused_in_turn(monkeypatch):
        reply = node.call("DEL", conf, pod)
        if not refusal.reached:
            break
        refused.append(refusal.what)
        assert reply.status == 1 and json.loads(reply.stdout)["msg"]
    assert reply.status == 0 and len(refused) > 2 and not ifbs()


def test_del_takes_an_ifb_that_the_go_plugin_has_made(node, pod, conf):
    run("ip", "link", "add", ifb_of(pod), "type", "ifb")
    run("ip", "link", "add", "bwp0123456789ab", "type", "ifb")
    node.delete(conf, pod)
    assert list(ifbs()) == ["bwp0123456789ab"]


def test_gc_deletes_what_is_ours_and_not_valid(node, pod_netns):
    kept, lost, elsewhere = pod_netns(), pod_netns(), pod_netns()
    conf = {**behind_bridge(node, kept, lost, elsewhere), **EGRESS}
    for pod, name in ((kept, "net-a"), (lost, "net-a"), (elsewhere, "net-b")):
        node.add({**conf, "name": name}, pod)
    run("ip", "link", "add", "bwp0123456789ab", "type", "ifb")          # the Go plugin's, say
    valid = [{"containerID": cid_of(kept), "ifname": "eth0"}, {"containerID": cid_of(lost), "ifname": "eth1"}]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert set(ifbs()) == {ifb_of(kept), ifb_of(elsewhere, "net-b"), "bwp0123456789ab"}
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert set(ifbs()) == {ifb_of(elsewhere, "net-b"), "bwp0123456789ab"}


def test_a_mark_that_is_too_long_is_cut_and_still_known(node, pod):
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


def test_status_says_what_the_kernel_lacks(node, conf, monkeypatch):
    node.ok("STATUS", conf)
    qdisc, link = tc.ask_for_kind, rtnl.ask_for_kind
    for lacking in ("tbf", "ingress", "htb"):
        monkeypatch.setattr(tc, "ask_for_kind", lambda batch, index, kind, parent: qdisc(
            batch, index, "nonsense" if kind == lacking else kind, parent))     # noqa: B023 - asked here and now
        asked = {**conf, "shapedSubnets": ["10.0.0.0/8"]} if lacking == "htb" else conf
        error = node.refused("STATUS", asked)
        assert (error["code"], error["msg"]) == (50, f"this kernel has no {lacking} qdiscs")
        assert error["details"] == f"modprobe sch_{lacking} finds none"
    monkeypatch.setattr(rtnl, "ask_for_kind", lambda batch, kind: link(batch, "nonsense"))
    error = node.refused("STATUS", conf)
    assert (error["code"], error["msg"]) == (50, "this kernel has no ifb links")
    assert run("tc", "qdisc", "show", "dev", "lo").split()[1:2] in ([], ["noqueue"])


# -- CHECK ------------------------------------------------------------------------------------------------

HELD = {**INGRESS, **EGRESS}
SUBNETS = {**HELD, "shapedSubnets": ["10.99.0.0/16", "fd00:99::/32"]}
TBF = "tc qdisc replace dev {} root handle 1: tbf rate {} burst {} limit {}"
SPOILED = {         # (keys, command, words); <veth> and <ifb> stand for the links
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
def test_check_finds(node, pod, conf, what):
    keys, command, words = SPOILED[what]
    conf.update(keys)
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    command = command.replace("<veth>", host_end(node, pod)).replace("<ifb>", ifb_of(pod))
    if "class del" in command:              # a filter holds on to it
        run("tc", "filter", "del", "dev", ifb_of(pod))
    run(*command.split())
    assert words in node.check_refused(conf, pod, result)


def test_check_finds_other_subnets_and_the_reverse_of_them(node, pod, conf):
    result = node.add({**conf, **SUBNETS}, pod)
    for keys, words in (({"unshapedSubnets": SUBNETS["shapedSubnets"]}, "Default class doesn't match"),
                        ({"shapedSubnets": ["10.98.0.0/16"]}, "Failed to find the filter of 10.98.0.0/16"), ({},
                        "Failed to find qdisc")):
        assert node.check_refused({**conf, **HELD, **keys}, pod, result) == words


@pytest.mark.parametrize("version", VERSIONS)
def test_add_check_and_del_at_every_version(node, pod, version):
    node.behind(node.conf(*DUAL, cniVersion=version), pod)
    conf = {**bandwidth(**INGRESS, **EGRESS), "cniVersion": version}
    result = node.add(conf, pod)
    assert result["cniVersion"] == version and result["interfaces"][-1]["name"] == ifb_of(pod)
    if version >= "0.4.0":
        node.check(conf, pod, result)
    node.delete({**conf, "prevResult": result}, pod)
    assert not ifbs()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_before_030_results_have_no_interfaces(node, pod, version):
    error = node.refused("ADD", {**bandwidth(**INGRESS), "cniVersion": version}, pod)
    assert (error["code"], error["msg"]) == (1, "incompatible CNI versions")
