"""`fastcni why` with two pods in one layer-2 network, between which the node does not route. The network is a bridge of
Open vSwitch, a macvlan parent, or a bridge without a gateway. The command reports each fault of the path, and `do`
repairs it."""

import json

import pytest
from lab.openvswitch import Switch, needs_ovs
from unit.why.conftest import Case, World, cases, check

from fastcni.testing.namespaces import ip

pytestmark = [pytest.mark.needs("root"), needs_ovs]
PLUGINS = {"ovs": {"bridge": "br1", "vlan": 100}, "macvlan": {"master": "m0"},
           "flat": {"type": "bridge", "bridge": "br9"}, "other": {"type": "bridge", "bridge": "br8"}}
SUBNETS = {"ovs": "10.71.0", "macvlan": "10.72.0", "flat": "10.73.0", "other": "10.73.0"}


class LayerTwo(World):
    """Pods a and b are on an Open vSwitch bridge, in VLAN 100. Pods c and d are macvlans of m0. Pods e and f are on the
    bridge br9, which has no gateway. Pod g is on another bridge, and has the subnet of e and f. x is a host at the
    other end of m0, with the address 10.72.0.200."""

    PODS, SERVERS = {"ovs": "ab", "macvlan": "cd", "flat": "ef", "other": "g"}, "xh"

    def build(self):
        self.switch = None
        super().build()

    def close(self):
        if self.switch:
            self.switch.__exit__()
        super().close()

    def _uplink(self):
        ip("link", "add", "m0", "type", "veth", "peer", "name", "eth0", "netns", self.names["x"])
        ip("addr", "add", "10.72.0.200/24", "dev", "eth0", netns=self.names["x"])
        ip("link", "set", "eth0", "up", netns=self.names["x"])
        ip("addr", "add", "10.72.0.201/24", "dev", "m0")
        ip("link", "set", "m0", "up")
        self.switch = Switch("br1").__enter__()
        self.words |= {"db": self.switch.address, "ctl": f"{self.switch.directory}/ovs-vswitchd.ctl",
                       "vswitchd": self.switch.processes["ovs-vswitchd"].pid}

    def _network(self, kind):
        first = {"g": 100}.get(self.PODS[kind], 2)
        keys = {"type": kind, **PLUGINS[kind], "ipam": {
            "type": "host-local", "dataDir": str(self.directory / "data"),
            "ranges": [[{"subnet": f"{SUBNETS[kind]}.0/24", "rangeStart": f"{SUBNETS[kind]}.{first}"}],
                       [{"subnet": f"fd00:{SUBNETS[kind][3:5]}::/64"}]]}}
        if kind == "ovs":
            keys |= {"socket_file": self.switch.address, "dataDir": str(self.directory / "ovs")}
        document = {"cniVersion": "1.0.0", "name": f"n-{kind}", "plugins": [keys]}
        (self.conf_dir / f"10-{kind}.conflist").write_text(json.dumps(document))


WORLD = LayerTwo
OVS, OVS6, MACVLAN, FLAT = ("pod-a pod-b:{port_b}", "pod-a [{ip6_b}]:{port_b}", "pod-c pod-d:{port_d}",
                            "pod-e pod-f:{port_f}")
WIRE = "pod-c 10.72.0.200:{port_x}"
VSCTL = "ovs-vsctl --db={db} --timeout=20 "


def test_pods_of_one_layer_2_network_reach_each_other_and_no_hop_is_of_the_nodes_routes(world, why):
    for words in (OVS, OVS6, MACVLAN, FLAT, "--udp pod-a pod-b:{port_b}", "pod-c 10.72.0.200:{port_x}"):
        found = why(*words.split())
        assert found.status == 0, found.out
        hops = {hop["hop"] for hop in found.document["hops"]}
        assert not hops & {"host route", "gateway address", "forwarding", "rp_filter", "NAT", "node neighbour"}, words
        assert ("ovs port" in hops, "parent link" in hops, "bridge FDB" in hops) == (
            "pod-a" in words, "pod-c" in words, "pod-e" in words)
        assert "bridge port" not in hops or "pod-e" in words


@cases(
    Case("ovs: the port is lost", OVS, [VSCTL + "del-port br1 {va}"], "ovs port", "{va}", "br1", mends=False),
    Case("ovs: the target's port is lost", OVS, [VSCTL + "del-port br1 {vb}"], "target ovs port", "{vb}", mends=False),
    Case("ovs: the port is on another bridge", OVS, [VSCTL + "-- del-port br1 {va} -- add-br br2 -- set bridge br2 "
         "datapath_type=netdev -- add-port br2 {va}"], "ovs port", "but of br2", "del-port br2 {va}", mends=False),
    Case("ovs: the bridge is lost", OVS, [VSCTL + "del-br br1"], "ovs port", "add-br br1", mends=False),
    Case("ovs: the source is in another VLAN", OVS, [VSCTL + "set Port {va} tag=7"], "ovs VLAN", "{va}", "VLAN 7",
         "VLAN 100"),
    Case("ovs: the target is in another VLAN", OVS6, [VSCTL + "set Port {vb} tag=7"], "ovs VLAN", "{vb}: vlan_mode"),
    Case("ovs: the target drops untagged frames", OVS, [VSCTL + "set Port {vb} vlan_mode=trunk trunks=42 tag=[]"],
         "ovs VLAN", "drops untagged frames"),
    Case("ovs: an OpenFlow rule drops", OVS, ["OVS_RUNDIR=$(dirname {db} | cut -c6-) ovs-ofctl add-flow br1 "
         "priority=9,in_port={va},actions=drop"], "OpenFlow rules", "{va}", "{vb}",
         "ovs-appctl -t {ctl} ofproto/trace br1", mends=False),
    Case("ovs: ovs-vswitchd does not answer", OVS, ["kill -STOP {vswitchd}"], "ovs port", "does not answer", "{db}",
         mends=False, undo=["kill -CONT {vswitchd}"]),
    Case("ovs: the host's end is down", OVS, ["ip link set {va} down"], "veth", "{va}"),
    Case("ovs: the target's end is down", OVS, ["ip link set {vb} down"], "target veth", "{vb}"),
    Case("ovs: the node asks", "10.72.0.201 pod-a:{port_a}", [], "host route", "n-ovs", "br1", mends=False),
    Case("macvlan: the parent is down", WIRE, ["ip link set m0 down"], "parent link", "m0: state DOWN"),
    Case("macvlan: the parent has no carrier", WIRE, ["X: ip link set eth0 down"], "parent link", "m0: operstate down",
         mends=False, undo=["ip -n {netns_x} link set eth0 up"]),
    Case("macvlan: the source is private", MACVLAN, ["C: ip link set eth0 type macvlan mode private"], "macvlan mode",
         "private", "pod pod-c"),
    Case("macvlan: the target is vepa", MACVLAN, ["D: ip link set eth0 type macvlan mode vepa"], "macvlan mode",
         "m0", "hairpin", "pod pod-d"),
    Case("macvlan: the pod asks its node", "pod-c 10.72.0.201:{port_h}", [], "parent link", "macvlan on m0",
         undo=["ip link del shim0"]),
    Case("macvlan: the node asks its pod", "10.72.0.201 pod-d:{port_d}", [], "target parent link", "macvlan on m0",
         undo=["ip link del shim0"]),
    Case("bridge without gateway: the port is gone", FLAT, ["ip link set {vf} nomaster"], "target bridge port", "br9"),
    Case("bridge without gateway: the port is down", FLAT, ["ip link set {ve} down"], "veth", "{ve}"),
    Case("bridge without gateway: the ports are isolated", FLAT, [
        f"bridge link set dev {{{port}}} isolated on" for port in ("ve", "vf")], "bridge port", "isolated",
         undo=["bridge link set dev {ve} isolated off"]),
    Case("bridge without gateway: the FDB is wrong", FLAT, ["bridge fdb replace {mac_f} dev {ve} master static sticky"],
         "bridge FDB", "{ve}", undo=["bridge fdb del {mac_f} dev {ve} master"]),
    Case("bridge without gateway: the bridge is down", FLAT, ["ip link set br9 down"], "bridge", "br9"),
    Case("bridge without gateway: nobody has the address", "pod-e 10.73.0.77:80", [], "neighbour",
         "10.73.0.77 does not answer ARP", mends=False),
    Case("bridge without gateway: the node asks", "10.72.0.201 pod-e:{port_e}", [], "host route", "isGateway", "n-flat",
         mends=False),
    Case("two bridges have one subnet", "pod-e pod-g:{port_g}", [], "layer-2 network", "br9", "br8", mends=False),
)
def test_a_fault_in_a_layer_2_network_is_named_and_mended(case, why, world, broken):
    check(case, why, world, broken)
