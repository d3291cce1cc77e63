"""Each request of an ADD is refused in turn: one error document, and nothing is left. DEL goes on."""

import json

import pytest
from real_kernel.node import Inside, run, set_sysctl
from real_kernel.refusals import Refusal

from fastcni.plugins import CHAINED

DUAL = ("10.22.0.0/24", "fd00:22::/64")
DEVICE_MAC = "0a:00:00:00:00:05"
UPLINK = ["link add up0 type veth peer far0", "link set up0 up"]
ON_HOST = {                     # type: what it needs on the host, by ip(8)
    **dict.fromkeys(["macvlan", "ipvlan", "vlan"], UPLINK),
    "host-device": [f"link add dev{i} address {DEVICE_MAC} type veth peer far{i}" for i in range(2)],
}
BRIDGE = {"isGateway": True, "ipMasq": True, "macspoofchk": True, "routes": ["0.0.0.0/0", "::/0"]}
PLUGINS = {                     # name: (subnets, keys, features that it needs of the kernel, ...)
    "bridge": (DUAL, BRIDGE),
    "bridge, ipspoofchk": (DUAL, {"ipspoofchk": True, "isDefaultGateway": True}),
    "bridge, vlan": (DUAL, {"vlan": 100, "vlanTrunk": [{"id": 5}], "isGateway": True}, "bridge-vlan-filtering"),
    "bridge, vlanTrunk": ((), {"ipam": None, "vlanTrunk": [{"minID": 5, "maxID": 9}]}, "bridge-vlan-filtering"),
    "bridge with flags, ipMasqBackend iptables": (("10.22.0.0/24",), {
        "ipMasq": True, "ipMasqBackend": "iptables", "isDefaultGateway": True, "forceAddress": True,
        "hairpinMode": True, "portIsolation": True, "mtu": 1400}),
    "bridge, layer 2, promiscMode": ((), {"ipam": None, "promiscMode": True, "macspoofchk": True}),
    "ptp": (DUAL, {"type": "ptp", "ipMasq": True, "routes": ["0.0.0.0/0"]}),
    "ptp, ipMasqBackend iptables": (DUAL, {"type": "ptp", "ipMasq": True, "ipMasqBackend": "iptables", "mtu": 1400}),
    "macvlan": (DUAL, {"type": "macvlan", "bridge": None, "master": "up0", "mode": "private", "mtu": 1400,
                       "bcqueuelen": 77, "routes": ["0.0.0.0/0", "::/0"]}, "macvlan"),
    "macvlan, layer 2": ((), {"type": "macvlan", "bridge": None, "master": "up0", "ipam": None}, "macvlan"),
    "ipvlan": (DUAL, {"type": "ipvlan", "bridge": None, "master": "up0", "mode": "l3", "mtu": 1400,
                      "routes": ["0.0.0.0/0", "::/0"]}, "ipvlan"),
    "vlan": (DUAL, {"type": "vlan", "bridge": None, "master": "up0", "vlanId": 5, "mtu": 1400,
                    "routes": ["0.0.0.0/0", "::/0"]}, "8021q"),
    "dummy": (DUAL, {"type": "dummy", "routes": ["0.0.0.0/0"]}, "dummy"),
    "tap": (DUAL, {"type": "tap", "bridge": None, "owner": 70001, "group": 70002, "multiQueue": True, "mtu": 1400,
                   "routes": ["0.0.0.0/0", "::/0"]}, "tun"),
    "tap, layer 2": ((), {"type": "tap", "bridge": None, "ipam": None}, "tun"),
    "host-device": (DUAL, {"type": "host-device", "bridge": None, "hwaddr": DEVICE_MAC, "routes": ["0.0.0.0/0", "::/0"],
                           "runtimeConfig": {"mac": "0a:00:00:00:00:06"}}),
    "host-device, layer 2": ((), {"type": "host-device", "bridge": None, "ipam": None, "hwaddr": DEVICE_MAC}),
    "flannel": (DUAL, {"type": "flannel", "bridge": None, "delegate": {"bridge": "br0", "macspoofchk": True}}),
    "loopback": ((), {"type": "loopback", "ipam": None}),
    "host-local": (DUAL, {"type": "host-local"}),
    "portmap": (DUAL, {"type": "portmap", "runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]}}),
    "portmap, backend iptables": (DUAL, {"type": "portmap", "backend": "iptables", "runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}]}}),
    "firewall": (DUAL, {"type": "firewall", "ingressPolicy": "isolated"}),
    "firewall, backend nftables": (DUAL, {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"}),
    "firewall, backend iptables": (DUAL, {"type": "firewall", "backend": "iptables", "ingressPolicy": "isolated"}),
    "sbr": (DUAL, {"type": "sbr"}),
    "sbr addSourceHints": (DUAL, {"type": "sbr", "addSourceHints": True, "gateways": ["10.22.0.9", "fd00:22::9"]}),
    "sbr table": (DUAL, {"type": "sbr", "table": 7}),
    "bandwidth": (DUAL, {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
                         "egressRate": 8_000_000, "egressBurst": 800_000}, "ifb"),
    "bandwidth, shapedSubnets": (DUAL, {"type": "bandwidth", "shapedSubnets": ["192.0.2.0/24", "2001:db8::/32"],
                                        "runtimeConfig": {"bandwidth": {"ingressRate": 8, "ingressBurst": 8,
                                                                        "egressRate": 8, "egressBurst": 8}}}, "ifb"),
    "vrf": (DUAL, {"type": "vrf", "vrfname": "blue"}, "vrf"),
    "tuning": (DUAL, {"type": "tuning", "mac": "02:00:00:00:00:01", "promisc": True, "mtu": 1400, "allmulti": True,
                      "txQLen": 77, "sysctl": {"net.ipv4.ip_forward": "1", "net/ipv4/conf/all/rp_filter": "2"}}),
}
MOST = 200                      # requests; an ADD has some forty


def refused_in_turn(monkeypatch):
    """Refusal after Refusal, of request 1, 2, ...; each is taken off before the next."""
    for at in range(1, MOST):
        with monkeypatch.context() as patch:
            yield Refusal(patch, at)


@pytest.fixture
def pods(pod_netns):
    """Two pods where duplicate address detection takes no time: it is not what is tested here."""
    names = [pod_netns(), pod_netns()]
    for name in names:
        with Inside(name):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return names


CASES = [pytest.param(name, marks=pytest.mark.needs(*features)) for name, (_, _, *features) in PLUGINS.items()]
ONCE = ("sbr", "sbr addSourceHints",    # after DEL the link has no routes, and is ended by the DEL that follows
        "bandwidth", "bandwidth, shapedSubnets")                # the same: its qdiscs go with the link


@pytest.fixture(params=CASES)
def conf(node, pods, request):
    """A chained plugin stands behind a bridge that has connected both pods."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    subnets, keys, *_ = PLUGINS[request.param]
    for words in ON_HOST.get(keys.get("type"), ()):
        run("ip", *words.split())
    if keys.get("backend") == "nftables":
        run("nft", "add table inet admin; add chain inet admin forward "
                   "{ type filter hook forward priority filter; policy drop; }")
    if keys.get("type") == "flannel":
        keys = {**keys, "subnetFile": node.subnet_file(*subnets), "ipam": {"dataDir": node.data_dir}}
    if keys.get("type") not in CHAINED:
        return node.conf(*subnets, **{"dataDir": f"{node.data_dir}/kept", **keys})
    node.behind(node.conf(*subnets, isDefaultGateway=True), *pods)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "dataDir": f"{node.data_dir}/chained", **keys}
    if conf.get("backend"):
        node.add(conf, pods[1])             # makes what all pods share and what stays
        node.delete(conf, pods[1])
    return conf


def of_another(conf):
    """What another pod has beside it: not the same ports of the host, nor the same VLAN of a link."""
    if conf.get("type") == "vlan":
        return {**conf, "vlanId": conf["vlanId"] + 1}
    if conf.get("type") != "portmap":
        return conf
    ports = [{**each, "hostPort": each["hostPort"] + 1} for each in conf["runtimeConfig"]["portMappings"]]
    return {**conf, "runtimeConfig": {"portMappings": ports}}


@pytest.mark.parametrize("first", [True, False], ids=["first pod", "second pod"])
def test_an_add_that_is_refused_anything_leaves_nothing(node, pods, conf, monkeypatch, first):
    pod, other = pods
    if not first:
        node.add(of_another(conf), other)
    before, refusals, tolerated = node.left(pod, other), 0, []
    for refusal in refused_in_turn(monkeypatch):
        reply = node.call("ADD", conf, pod)
        if not refusal.reached:
            break
        if reply.status == 0:               # an optional sysctl, say
            tolerated.append(refusal.what)
            node.delete(conf, pod)
            if first and not node.results:
                for name in ("br0", "br0.100"):         # DEL leaves them, and they are no first pod's
                    run("ip", "link", "del", name, check=False)
            continue
        refusals += 1
        error = json.loads(reply.stdout)
        assert reply.status == 1 and error["code"] > 0 and error["msg"], refusal.what
        assert not error["msg"].startswith("[Errno"), f"{refusal.what}: {error} does not say what was tried"
        assert "this is a fault of fastcni" not in error.get("details", ""), (refusal.what, error)
        assert "while undoing" not in error.get("details", ""), (refusal.what, error)
        assert node.left(pod, other) == before, (refusal.what, error)
    print(f"{refusals} refused, tolerated: {tolerated}")
    assert reply.status == 0 and refusals > 1


@pytest.mark.parametrize("conf", [one for one in CASES if one.values[0] not in ONCE], indirect=True)
def test_a_del_that_is_refused_anything_can_be_repeated(node, pods, conf, monkeypatch):
    pod = pods[0]
    node.add(conf, pod)
    node.delete(conf, pod)
    before = node.left(pod)                 # with the bridge, which stays
    for refusal in refused_in_turn(monkeypatch):
        refusal.at, at = 0, refusal.at
        node.add(conf, pod)
        refusal.count, refusal.at = 0, at
        reply = node.call("DEL", conf, pod)
        if reply.status:
            assert refusal.reached and json.loads(reply.stdout)["msg"], refusal.what
        refusal.at = 0
        node.delete(conf, pod)
        assert node.left(pod) == before, refusal.what
        if not refusal.reached:
            break
    assert reply.status == 0
