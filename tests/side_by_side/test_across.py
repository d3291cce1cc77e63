"""A node changes its plugins while pods run: each implementation CHECKs and deletes pods that the other implementation
added."""

import os

import pytest
from side_by_side.chained_stories import BEHIND, EGRESS, INGRESS, bandwidth, sbr, tuning
from side_by_side.device_stories import UPLINK, device
from side_by_side.sides import addresses, run
from side_by_side.state import state_of
from side_by_side.stories import DEFAULT4, DEFAULT6, V4, V6, bridge, loopback, ptp, static
from side_by_side.test_masquerade import private, pytestmark  # noqa: F401 (these tests read iptables, too)

CONFS = {
    "bridge": bridge(V4, V6, isDefaultGateway=True),
    "bridge of old": bridge(isGateway=True, routes=[DEFAULT4], cniVersion="0.4.0"),
    "bridge promiscMode": bridge(isGateway=True, promiscMode=True, routes=[DEFAULT4]),
    "bridge with static": bridge(isGateway=True, ipam=static(("10.22.0.5/24", None), ("fd00:22::5/64", None))),
    "bridge, ipMasq": bridge(V4, V6, isGateway=True, ipMasq=True),
    "bridge, ipMasq by iptables": bridge(V4, V6, isGateway=True, ipMasq=True, ipMasqBackend="iptables"),
    "ptp": ptp(V4, V6, routes=[DEFAULT4, DEFAULT6]),
    "ptp, ipMasq": ptp(routes=[DEFAULT4], ipMasq=True),
    "ptp, ipMasq by iptables": ptp(V4, V6, ipMasq=True, ipMasqBackend="iptables"),
    "loopback": loopback(),
}
# Go does not delete elements of fastcni's nftables table. Go 1.1.1 also takes newer iptables' message about a missing
# chain for an error, so its first DEL fails after its work. The newest Go plugins have no such error.
GO_LEAVES_ELEMENTS = ("bridge, ipMasq", "ptp, ipMasq")


class Handover:
    """A host on which the implementation `first` adds pods, and `second` then takes over with the same data directory
    and paths."""

    def __init__(self, first, second):
        self.first, self.second = first, second
        self.host, self.directory = first.host, first.directory

    def by_second(self, command, conf, pod, **more):
        """Call a plugin of the second implementation on the first implementation's host."""
        home, directory = self.second.host, self.second.directory
        self.second.host, self.second.directory = self.host, self.directory
        try:
            return self.second.call(command, conf, pod, **more)
        finally:
            self.second.host, self.second.directory = home, directory


@pytest.fixture(params=["what Go added, by fastcni", "what fastcni added, by Go"])
def handover(request, sides):
    fastcni, go = sides
    return Handover(go, fastcni) if request.param.startswith("what Go") else Handover(fastcni, go)


@pytest.mark.parametrize("title", CONFS)
def test_each_side_checks_and_deletes_pods_of_the_other(title, handover):
    conf, first = CONFS[title], handover.first
    pods = [first.pod(quick_dad=True) for _ in range(1 if "static" in title else 2)]
    results = [first.add(conf, pod, cid=f"pod-{i}") for i, pod in enumerate(pods)]
    for i, (pod, result) in enumerate(zip(pods, results, strict=True)):
        answer = handover.by_second("CHECK", {**conf, "prevResult": result}, pod, cid=f"pod-{i}")
        assert answer.status == 0, str(answer)
    delete(handover, conf, pods[0], "pod-0", results[0], title)
    state = state_of(first, *pods)
    assert "pod-0" not in first.held("net-a").values()
    if title != "loopback":
        assert "pod0/links/eth0/mtu" not in state
    for i, pod in enumerate(pods[1:], 1):       # the DEL of the first pod changed no other pod
        assert {"loopback": "pod1/links/lo/mtu"}.get(title, "pod1/links/eth0/mtu") in state
        first.check(conf, pod, results[i], cid=f"pod-{i}")
        delete(handover, conf, pod, f"pod-{i}", results[i], title)
    assert not addresses(first.held("net-a"))
    assert not private(first)
    assert "veth" not in first.on_host("ip", "-o", "link")
    if handover.second.name == "go" and title in GO_LEAVES_ELEMENTS:
        for i, pod in enumerate(pods):
            first.delete(conf, pod, cid=f"pod-{i}")
    assert "pod-" not in first.on_host("nft", "list", "ruleset")


def delete(handover, conf, pod, cid, result, title):
    """Delete a pod by the second implementation. Call DEL twice, as runtimes do."""
    conf = {**conf, "prevResult": result}
    answer = handover.by_second("DEL", conf, pod, cid=cid)
    if handover.second.name == "go" and title in GO_LEAVES_ELEMENTS:
        assert "does not exist" in answer.document["msg"]
    else:
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
    answer = handover.by_second("DEL", conf, pod, cid=cid)
    assert (answer.status, answer.stdout) == (0, ""), str(answer)


@pytest.mark.parametrize("title", ["bridge, ipMasq", "ptp, ipMasq"])
def test_fastcni_deletes_gos_rules_although_the_namespace_is_gone(title, sides):
    """Go's DEL leaves these rules if the namespace no longer exists, because Go's plugins read the addresses from the
    link."""
    fastcni, go = sides
    conf, pod = CONFS[title], go.pod(quick_dad=True)
    result = go.add(conf, pod)
    assert len(private(go)) > 3
    run("ip", "netns", "del", pod.rpartition("/")[2])
    answer = Handover(go, fastcni).by_second("DEL", {**conf, "prevResult": result}, pod)
    assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert not private(go)
    assert not addresses(go.held("net-a"))


def test_fastcni_recognizes_and_deletes_the_mac_spoof_check_of_go(sides):
    fastcni, go = sides
    conf, pod = bridge(isGateway=True, macspoofchk=True), go.pod()
    result = go.add(conf, pod)
    assert "macspoofchk-pod-1" in go.on_host("nft", "list", "ruleset")
    answer = Handover(go, fastcni).by_second("CHECK", {**conf, "prevResult": result}, pod)
    assert answer.status == 0, str(answer)
    assert Handover(go, fastcni).by_second("DEL", conf, pod).status == 0
    assert "pod-1" not in go.on_host("nft", "list", "ruleset")


@pytest.mark.parametrize("keys", [{"mac": "02:00:00:00:00:07"}, {"mtu": 1400, "promisc": True}, {"allmulti": True},
                                  {"mac": "02:00:00:00:00:07", "promisc": True, "mtu": 1400, "allmulti": True}])
def test_each_side_restores_the_link_from_the_file_of_the_other(handover, keys):
    conf, first = tuning(**keys), handover.first
    pod = first.pod(quick_dad=True)
    conf["prevResult"] = first.add(BEHIND, pod)
    before, file = link_of(pod), f"{first.directory}/tuning/pod-1_eth0.json"
    first.add(conf, pod)
    assert link_of(pod) != before
    answer = handover.by_second("DEL", conf, pod)
    assert (answer.status, answer.stdout) == (0, "")
    assert link_of(pod) == before
    assert not os.path.exists(file)


def test_both_write_the_same_file_that_no_other_user_can_read(sides):
    conf, files = tuning(mac="02:00:00:00:00:07", promisc=True, mtu=1400, allmulti=True), []
    for side in sides:
        pod = side.pod(quick_dad=True)
        previous = side.add(bridge(isGateway=True, args={"cni": {"mac": "02:00:00:00:00:01"}}), pod)
        side.add({**conf, "prevResult": previous}, pod)
        with open(f"{side.directory}/tuning/pod-1_eth0.json", "rb") as file:
            files.append((file.read(), os.fstat(file.fileno()).st_mode))
    assert files[0] == files[1]


def test_each_side_deletes_the_rules_of_the_other(handover):
    first, pod, behind = handover.first, handover.first.pod(quick_dad=True), bridge(V4, V6, isDefaultGateway=True)
    conf = sbr(prevResult=first.add(behind, pod))
    first.add(conf, pod)
    assert len(rules_of(pod)) == 2
    if handover.second.name == "fastcni":           # Go's CHECK of bridge reads only the main table
        for each in (conf, {**behind, "prevResult": conf["prevResult"]}):
            answer = handover.by_second("CHECK", each, pod)
            assert answer.status == 0, str(answer)
    answer = handover.by_second("DEL", conf, pod)
    assert (answer.status, answer.stdout) == (0, "")
    assert rules_of(pod) == []


def rules_of(pod):
    """Return the routing rules for one address of the pod."""
    return [line for family in ("-4", "-6") for line in
            run("ip", family, "rule", netns=os.path.basename(pod)).splitlines() if "from all" not in line]


@pytest.mark.needs("ifb")
@pytest.mark.parametrize("keys", [INGRESS, EGRESS, {**INGRESS, **EGRESS}], ids=["ingress", "egress", "both"])
def test_each_side_checks_and_deletes_the_limits_of_the_other(handover, keys):
    conf, first = bandwidth(**keys), handover.first
    pod = first.pod(quick_dad=True)
    previous = first.add(BEHIND, pod)
    result = first.add({**conf, "prevResult": previous}, pod)
    assert handover.by_second("CHECK", {**conf, "prevResult": result}, pod).status == 0
    other = {**conf, **{key: 2 * value for key, value in keys.items()}}
    assert "Rate doesn't match" in handover.by_second("CHECK", {**other, "prevResult": result}, pod).stdout
    for _ in range(2):
        answer = handover.by_second("DEL", {**conf, "prevResult": result}, pod)
        assert (answer.status, answer.stdout) == (0, "")
        assert "bwp" not in first.on_host("ip", "-o", "link")


@pytest.mark.parametrize("kind, keys", [pytest.param("macvlan", {"mtu": 1400}, marks=pytest.mark.needs("macvlan")),
                                        pytest.param("ipvlan", {"mode": "l3"}, marks=pytest.mark.needs("ipvlan")),
                                        pytest.param("vlan", {"vlanId": 5}, marks=pytest.mark.needs("8021q"))])
def test_each_side_checks_and_deletes_the_link_of_the_other(handover, kind, keys):
    conf, first = device(kind, V4, V6, **keys), handover.first
    for command in UPLINK:
        first.on_host(*command.split())
    pod = first.pod(quick_dad=True)
    result = first.add(conf, pod)
    answer = handover.by_second("CHECK", {**conf, "prevResult": result}, pod)
    assert answer.status == 0, str(answer)
    for _ in range(2):
        answer = handover.by_second("DEL", conf, pod)
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert run("ip", "-o", "link", netns=os.path.basename(pod)).count("\n") == 1
    assert not addresses(first.held("net-a"))


@pytest.mark.parametrize("ifname", ["eth0", "up0"])
def test_each_side_moves_back_the_device_of_the_other(handover, ifname):
    conf, first = device("host-device", V4, V6, master=None, device="up0"), handover.first
    for command in UPLINK:
        first.on_host(*command.split())
    pod, before = first.pod(quick_dad=True), first.on_host("ip", "-d", "link", "show", "dev", "up0")
    for _ in range(2):                  # the second time, the link moves into the pod again
        result = first.add(conf, pod, ifname=ifname)
        answer = handover.by_second("CHECK", {**conf, "prevResult": result}, pod, ifname=ifname)
        assert answer.status == 0, str(answer)
        answer = handover.by_second("DEL", conf, pod, ifname=ifname)
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
        first.on_host("ip", "link", "set", "up0", "up", "alias", "")            # 1.1.1 leaves the alias
        assert first.on_host("ip", "-d", "link", "show", "dev", "up0") == before
        assert run("ip", "-o", "link", netns=os.path.basename(pod)).count("\n") == 1
        assert not addresses(first.held("net-a"))


def link_of(pod):
    """Return the output of ip(8) about eth0, without counters."""
    return run("ip", "-d", "link", "show", "eth0", netns=os.path.basename(pod))
