"""The configurations of the campaigns: each plugin, with the keys that give it the most steps."""

import json
from pathlib import Path

from features import reason_to_skip
from lab import openvswitch
from lab.node import run
from unit.dhcp.stub_daemon import StubDaemon

from fastcni.plugins import CHAINED

DUAL = ("10.22.0.0/16", "fd00:22::/64")  # two subnets are enough: no campaign adds so many pods that they are full
DEVICE_MAC = "0a:00:00:00:00:05"
UPLINK = ["link add up0 type veth peer far0", "link set up0 up"]
ON_HOST = {                     # {plugin type: the lines for ip(8) that make its links on the host}
    **dict.fromkeys(["macvlan", "ipvlan", "vlan"], UPLINK),
    "host-device": [f"link add dev{i} address {DEVICE_MAC} type veth peer far{i}" for i in range(2)],
}
BRIDGE = {"isGateway": True, "ipMasq": True, "macspoofchk": True, "routes": ["0.0.0.0/0", "::/0"]}
CLUSTER = {"type": "cluster", "range": "10.22.0.0/24", "node_name": "a"}       # without a store, so for one node
PORT_80 = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
PLUGINS = {                     # {name: (subnets, keys, required kernel features, ...)}
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
    "static": ((), {"type": "static", "bridge": None, "ipam": {
        "type": "static", "routes": [{"dst": "0.0.0.0/0"}],
        "addresses": [{"address": "10.22.0.5/24", "gateway": "10.22.0.1"}, {"address": "fd00:22::5/64"}]}}),
    "dhcp": ((), {"type": "dhcp", "bridge": None, "ipam": {"type": "dhcp"}}),
    "cluster": ((), {"type": "cluster", "bridge": None, "ipam": CLUSTER}),
    "whereabouts": ((), {"type": "whereabouts", "bridge": None, "ipam": {
        **CLUSTER, "type": "whereabouts", "ipRanges": [{"range": "fd00:22::/120"}]}}),
    "chain": (DUAL, {"type": "chain", "bridge": None, "ipam": None, "plugins": [
        {"type": "bridge", "bridge": "br0"}, {"type": "portmap", "runtimeConfig": {"portMappings": [PORT_80]}}]}),
    "multus": (DUAL, {"type": "multus", "bridge": None, "ipam": None, "delegates": [
        {"name": "first", "type": "bridge", "bridge": "br0", "isDefaultGateway": True, "ipMasq": True},
        {"name": "second", "plugins": [{"type": "ptp"}, {"type": "tuning", "mtu": 1400}]}],
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {
            "k8s.v1.cni.cncf.io/networks": '[{"name": "third", "default-route": []}]'}}}),
    "portmap": (DUAL, {"type": "portmap", "runtimeConfig": {"portMappings": [
        PORT_80,
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]}}),
    "portmap, backend iptables": (DUAL, {"type": "portmap", "backend": "iptables", "runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}]}}),
    "firewall": (DUAL, {"type": "firewall", "ingressPolicy": "isolated"}),
    "firewall, backend nftables": (DUAL, {"type": "firewall", "backend": "nftables", "ingressPolicy": "same-bridge"}),
    "firewall, backend iptables": (DUAL, {"type": "firewall", "backend": "iptables", "ingressPolicy": "isolated"}),
    "sbr": (DUAL, {"type": "sbr"}),
    "sbr addSourceHints": (DUAL, {"type": "sbr", "addSourceHints": True,
                                  "gateways": ["10.22.255.250", "fd00:22::ffff:fa"]}),
    "sbr table": (DUAL, {"type": "sbr", "table": 7}),
    "bandwidth": (DUAL, {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
                         "egressRate": 8_000_000, "egressBurst": 800_000}, "ifb"),
    "bandwidth, shapedSubnets": (DUAL, {"type": "bandwidth", "shapedSubnets": ["192.0.2.0/24", "2001:db8::/32"],
                                        "runtimeConfig": {"bandwidth": {"ingressRate": 8, "ingressBurst": 8,
                                                                        "egressRate": 8, "egressBurst": 8}}}, "ifb"),
    "vrf": (DUAL, {"type": "vrf", "vrfname": "blue"}, "vrf"),
    "tuning": (DUAL, {"type": "tuning", "mac": "02:00:00:00:00:01", "promisc": True, "mtu": 1400, "allmulti": True,
                      "txQLen": 77, "sysctl": {"net.ipv4.ip_forward": "1", "net/ipv4/conf/all/rp_filter": "2"}}),
    "ovs": (DUAL, {"type": "ovs", "vlan": 100, "routes": ["0.0.0.0/0"]}),
}


def features_of(name):
    """Return the kernel features that the case needs, by the names of tests/features.py."""
    return PLUGINS[name][2:]


def lacking(name):
    """Return why the case cannot run here, "" if it can."""
    return reason_to_skip(features_of(name)) or (openvswitch.LACKS if PLUGINS[name][1].get("type") == "ovs" else "")


class Case:
    """One configuration on one node, with methods that prepare an ADD and clean up after a DEL.

    A chained plugin gets the prevResult of a bridge. closing: an ExitStack that ends what the case has started."""

    def __init__(self, name, node, closing):
        subnets, keys, *_ = PLUGINS[name]
        self.name, self.node, kind = name, node, keys.get("type", "bridge")
        for line in ON_HOST.get(kind, ()):
            run("ip", *line.split())
        if keys.get("backend") == "nftables":
            run("nft", "add table inet admin; add chain inet admin forward "
                       "{ type filter hook forward priority filter; policy drop; }")
        if kind == "flannel":
            keys = {**keys, "subnetFile": node.subnet_file(*subnets), "ipam": {"dataDir": node.data_dir}}
        if kind in ("cluster", "whereabouts"):
            store = {"type": "local", "path": f"{node.data_dir}-store"}
            keys = {**keys, "ipam": {**keys["ipam"], "dataDir": node.data_dir, "store": store}}
        if kind == "dhcp":
            daemon = closing.enter_context(StubDaemon(lambda: node.data_dir))
            keys = {**keys, "ipam": {**keys["ipam"], "daemonSocketPath": daemon.path}}
        if kind == "ovs":
            switch = closing.enter_context(openvswitch.Switch("br0"))
            keys, node.ports = {**keys, "socket_file": switch.address}, lambda: switch.ports("br0")
        if kind == "chain":
            first, *others = keys["plugins"]
            keys = {**keys, "plugins": [{**first, "ipam": node.host_local(*subnets)}, *others]}
        if kind == "multus":
            keys = {**keys, **multus(node, subnets, keys["delegates"])}
        self.chained = kind in CHAINED
        self.makes_bridge = kind in ("bridge", "flannel", "chain", "multus")
        self.behind = node.conf(*subnets, isDefaultGateway=True) if self.chained else None
        if self.chained:
            self.conf = {"cniVersion": "1.1.0", "name": "net-a", "dataDir": f"{node.data_dir}/chained", **keys}
        else:
            self.conf = node.conf(*subnets, **{"dataDir": f"{node.data_dir}/kept", **keys})

    def prepare(self, pod):
        """Connect the pod by a bridge if the plugin is chained."""
        if self.chained:
            self.node.behind(self.behind, pod)

    def configuration(self, pod, result=None):
        """Return the configuration that the runtime writes to stdin."""
        previous = result or (self.node.results.get(pod) if self.chained else None)
        return {**self.conf, "prevResult": previous} if previous else self.conf

    def finish(self, pod):
        """Undo prepare(), and delete what a DEL of this plugin leaves by design: the bridge."""
        if self.chained:
            self.node.delete(self.behind, pod)
        elif self.makes_bridge:
            for name in ("br0", "br0.100"):
                run("ip", "link", "del", name, check=False)


def multus(node, subnets, delegates):
    """Return the keys of a multus configuration: directories below the node's, and `ipam` for the first plugin of each
    network."""
    directory = Path(f"{node.data_dir}-definitions")
    directory.mkdir(exist_ok=True)
    third = {"cniVersion": "1.1.0", "name": "third", "type": "ptp", "ipam": node.host_local("10.24.0.0/24", routes=[
        {"dst": "0.0.0.0/0"}])}
    (directory / "third.conf").write_text(json.dumps(third))
    first, second = delegates
    plugin, tuning = second["plugins"]
    return {"cniDir": f"{node.data_dir}/kept", "confDir": str(directory), "delegates": [
        {**first, "ipam": node.host_local(*subnets)},
        {**second, "plugins": [{**plugin, "ipam": node.host_local("10.23.0.0/24")},
                               {**tuning, "dataDir": f"{node.data_dir}/tuning"}]}]}
