"""bridge with ipspoofchk lets a pod's frame pass only if its source is an address of the pod."""

import pytest
from lab.node import cid_of, elements, rules, run, set_sysctl, source_seen
from unit.agent.policy import frames
from unit.agent.policy.frames import link_local

from fastcni.kernel import nft, wire
from fastcni.kit.firewall.spoofcheck import ip as ipspoofcheck

DUAL = ("10.22.0.0/24", "fd00:22::/64")
OTHER_MAC = "02:00:00:00:00:99"
SETS = ("guarded", "allowed", "bound", "bound4", "bound6")


@pytest.fixture
def conf(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isGateway=True, ipspoofchk=True)


# -- frames by hand ---------------------------------------------------------------------------------------

def frames_of(mac):
    return frames.Pod(mac, ("10.22.0.2", "fd00:22::2"), ("10.22.0.3", "fd00:22::3"), "10.22.0.1", OTHER_MAC)


def ipv4(mac, source):
    return frames_of(mac).ipv4(source)


def passed(sender, receiver, sent):
    """Return the titles of the frames that the receiver's eth0 receives. sent: {title: frame}. The last frame always
    passes."""
    *_, last = sent
    return frames.arrived(sent, sender, receiver, sent[last])


# -- frames that pass -------------------------------------------------------------------------------------

def test_pod_can_send_only_from_its_own_addresses(node, pod_netns, conf):
    pod, neighbour = pod_netns(), pod_netns()
    mac = node.add(conf, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    own = frames_of(mac).own()
    assert passed(pod, neighbour, {**frames_of(mac).forged(), **own}) == set(own)


def test_macspoofchk_alone_binds_the_mac_and_no_address(node, pod_netns, conf):
    # Without ipspoofchk, each forged frame arrives, except the one with another MAC.
    pod, neighbour = pod_netns(), pod_netns()
    mac = node.add({**conf, "ipspoofchk": False, "macspoofchk": True}, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    sent = {**frames_of(mac).forged(), **frames_of(mac).own()}
    assert passed(pod, neighbour, sent) == set(sent) - {"another MAC"}


def test_bound_pods_reach_each_other_and_the_gateway(node, pod_netns, conf):
    one, two = pod_netns(), pod_netns()
    conf = {**conf, "enabledad": True}
    for pod in (one, two):
        node.add(conf, pod)
    for family in ("10.22.0.", "fd00:22::"):
        assert source_seen(one, two, f"{family}3") == f"{family}2"
        assert source_seen(two, None, f"{family}1") == f"{family}3"


def test_all_addresses_of_a_pod_are_its_own(node, pod_netns):
    pod, neighbour = pod_netns(), pod_netns()
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.2/24"}, {"address": "10.22.0.5/24"}]}
    mac = node.add(node.conf(ipam=ipam, ipspoofchk=True), pod)["interfaces"][2]["mac"]
    node.add(node.conf(ipam=None), neighbour)
    sent = {source: ipv4(mac, source) for source in ("10.22.0.3", "10.22.0.5", "10.22.0.2")}
    assert passed(pod, neighbour, sent) == {"10.22.0.5", "10.22.0.2"}


def test_source_checks_use_the_requested_mac(node, pod_netns, conf):
    pod, neighbour = pod_netns(), pod_netns()
    node.add({**conf, "runtimeConfig": {"mac": OTHER_MAC}}, pod)
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    own = frames_of(OTHER_MAC).own()
    assert passed(pod, neighbour, own) == set(own)


def test_a_bound_pod_takes_no_mac_by_a_reserved_destination(node, pod_netns, conf):
    """Frames to 01:80:c2:00:00:0e (LLDP) pass no netfilter hook. Once, the bridge learned MACs from them."""
    pod, neighbour_pod = pod_netns(), pod_netns()
    mac = node.add(conf, pod)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour_pod)
    forged = {f"02:00:00:00:00:{last:02x}": f"01:80:c2:00:00:{last:02x}" for last in range(16)}
    frames.send(pod, *(frames.ethernet(source, to, frames.ETH_P_LLDP) for source, to in forged.items()))
    assert passed(pod, neighbour_pod, {"own": ipv4(mac, "10.22.0.2")})
    learned = run("bridge", "fdb", "show", "br", "br0")
    assert mac in learned and not [source for source in forged if source in learned]


# -- elements and rules -----------------------------------------------------------------------------------

def counted():
    return {name: len(elements(name, "bridge")) for name in SETS}


def test_rules_stay_the_same_however_many_pods_there_are(node, pod_netns, conf):
    mac = node.add(conf, pod_netns())["interfaces"][2]["mac"]
    one = [item for item in rules() if "rule" in item or "chain" in item]
    assert len([item for item in one if item.get("rule", {}).get("chain") == "addresses"]) == ipspoofcheck.RULES
    for _ in range(3):
        node.add(conf, pod_netns())
    assert [item for item in rules() if "rule" in item or "chain" in item] == one
    assert counted() == {"guarded": 4, "allowed": 4, "bound": 4, "bound4": 4, "bound6": 8}
    assert link_local(mac) in {address for _, address in elements("bound6", "bridge")}


def test_elements_carry_the_mark_of_their_pod(node, pod, conf):
    node.add(conf, pod)
    sets = [item["set"] for item in rules() if "set" in item]
    comments = [each["elem"]["comment"] for each in (elem for one in sets for elem in one["elem"])]
    assert len(comments) == 6
    assert all(f"id: {cid_of(pod)}" in comment for comment in comments)


@pytest.mark.parametrize("told", ["prevResult", "prevResult of another MAC", "a MAC of 8 bytes", "nothing",
                                  "nonsense"])
@pytest.mark.parametrize("gone", ["nothing", "netns", "ruleset"])
def test_del_deletes_only_the_pods_elements(node, pod_netns, conf, told, gone):
    pod, other = pod_netns(), pod_netns()
    result = node.add(conf, pod)
    node.add(conf, other)
    if gone == "netns":
        run("ip", "netns", "del", pod)
    elif gone == "ruleset":
        run("nft", "flush", "ruleset")
    if told == "prevResult of another MAC":         # as if a chained tuning had changed the MAC
        result["interfaces"][2]["mac"] = OTHER_MAC
    elif told == "nonsense":
        result = {"cniVersion": "1.1.0", "interfaces": [{}, {"name": "x" * 40}, {"name": "eth0", "mac": "00"}]}
    elif told == "a MAC of 8 bytes":
        result["interfaces"][2]["mac"] = "02:00:00:00:00:00:00:01"
    for _ in range(2):
        node.delete(conf if told == "nothing" else {**conf, "prevResult": result}, pod, cid=cid_of(pod))
    left = 0 if gone == "ruleset" else 1
    assert counted() == {"guarded": left, "allowed": left, "bound": left, "bound4": left, "bound6": 2 * left}


def test_del_with_prev_result_dumps_no_set(node, pod, conf, monkeypatch):
    result = node.add(conf, pod)
    dump = wire.dump

    def dump_but_sets(sock, kind, *more):
        assert kind != nft.NFT_MSG_GETSETELEM, "the time of a dump grows with the number of pods"
        return dump(sock, kind, *more)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "dump", dump_but_sets)
        node.delete({**conf, "prevResult": result}, pod)
    assert sum(counted().values()) == 0


def test_gc_deletes_the_elements_of_lost_attachments(node, pod_netns, conf):
    kept, lost = pod_netns(), pod_netns()
    port = node.add(conf, kept)["interfaces"][1]["name"]
    node.add(conf, lost)
    run("ip", "netns", "del", lost)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(kept), "ifname": "eth0"}]})
    assert counted() == {"guarded": 1, "allowed": 1, "bound": 1, "bound4": 1, "bound6": 2}
    assert elements("bound", "bridge") == [port]


@pytest.mark.parametrize("what", ["ruleset", "chain bridge fastcni addresses", "set bridge fastcni bound4"])
def test_next_pod_is_bound_again_after_a_flush_and_check_of_the_first_fails(node, pod_netns, conf, what):
    one, two, neighbour = pod_netns(), pod_netns(), pod_netns()
    result = node.add(conf, one)
    node.check(conf, one, result)
    run("nft", "flush", *what.split())
    mac = node.add(conf, two)["interfaces"][2]["mac"]
    node.add(node.conf(*DUAL, isGateway=True), neighbour)
    sent = {"forged": ipv4(mac, "10.22.0.9"), "own": ipv4(mac, "10.22.0.3")}
    assert passed(two, neighbour, sent) == {"own"}
    if what.startswith("chain"):
        node.check(conf, one, result)
    else:
        msg = node.check_refused(conf, one, result)
        assert f'port "{result["interfaces"][1]["name"]}" is not guarded' in msg


def test_ipspoofchk_without_ipam_is_refused(node, pod):
    before = node.left(pod)
    error = node.refused("ADD", node.conf(ipam=None, ipspoofchk=True), pod)
    assert (error["code"], error["msg"]) == (7, "cannot use ipspoofchk without IPAM")
    assert node.left(pod) == before
