"""`fastcni why` reports faults of links, addresses, neighbours and bridges, and `do` repairs them."""

import pytest
from unit.why.conftest import Case, cases, check

pytestmark = pytest.mark.needs("root")
POD = "pod-a {ip_b}:{port_b}"
OUT = "pod-a 192.0.2.2:{port_x}"
ARP_FLUSH = ("ip neigh flush all", "A: ip neigh flush all", "B: ip neigh flush all")


@cases(
    Case("the pod's link is down", OUT, ["A: ip link set eth0 down"], "pod link", "eth0 of pod pod-a is down"),
    Case("lo is down, and a pod asks for itself", "pod-b {ip_b}:{port_b}", ["B: ip link set lo down"], "pod link",
         "link lo of pod pod-b is down"),
    Case("lo is down, and a pod asks for 127.0.0.1", "pod-b 127.0.0.1:{port_b}", [
        "B: ip -4 addr flush dev lo", "B: ip link set lo down", "nft add table ip f",
        "nft 'add chain ip f c { type filter hook prerouting priority -300; }'",
        "nft add rule ip f c ip daddr 127.0.0.0/8 drop"], "pod link", "link lo of pod pod-b is down",
         undo=["nft delete table ip f"]),
    Case("the pod's address is missing", OUT, ["A: ip addr del {ip_a}/24 dev eth0"], "pod address", "{ip_a}/24"),
    Case("IPv6 is switched off in the pod", "pod-a [{ip6_b}]:{port_b}",
         ["A: sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1"], "pod address", "disable_ipv6 = 1"),
    Case("the host's end is down", OUT, ["ip link set {va} down"], "veth", "{va}"),
    Case("the host's end is no port", OUT, ["ip link set {va} nomaster", *ARP_FLUSH], "bridge port", "{va}", "br0"),
    Case("the port is disabled", OUT, ["bridge link set dev {va} state 0", *ARP_FLUSH], "bridge port", "disabled"),
    Case("the bridge is down", OUT, ["ip link set br0 down"], "bridge", "the bridge br0 is down"),
    Case("the gateway's address is missing", OUT, ["ip addr del 10.88.0.1/24 dev br0", *ARP_FLUSH], "gateway address",
         "10.88.0.1"),
    Case("both ports are isolated", POD, [f"bridge link set dev {{{port}}} isolated on" for port in ("va", "vb")],
         "bridge port", "isolated", undo=[f"bridge link set dev {{{port}}} isolated off" for port in ("va", "vb")]),
    Case("a pod asks for itself by a host port", "pod-b 192.0.2.1:8080", [], "bridge port", "{vb}: hairpin off",
         undo=["bridge link set dev {vb} hairpin off"]),
    Case("the pod has a wrong MAC of its gateway", OUT,
         ["A: ip neigh replace 10.88.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud permanent"], "neighbour",
         "02:00:00:00:00:99"),
    Case("the pod has a wrong MAC of the other pod", POD,
         ["A: ip neigh replace {ip_b} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"], "neighbour", "{mac_b}"),
    Case("the node has a wrong MAC of the pod", "192.0.2.1 pod-b:{port_b}",
         ["ip neigh replace {ip_b} lladdr 02:00:00:00:00:99 dev br0 nud permanent"], "node neighbour", "{mac_b}"),
    Case("the FDB has the pod behind another port", POD,
         ["bridge fdb replace {mac_b} dev {va} master static sticky"], "bridge FDB", "{va}",
         undo=["bridge fdb del {mac_b} dev {va} master"]),
    Case("the port neither learns nor gets floods", "192.0.2.1 pod-b:{port_b}",
         ["bridge link set dev {vb} learning off flood off",
          "bridge fdb del {mac_b} dev {vb} master || true"], "bridge FDB", "flood off",
         undo=["bridge link set dev {vb} learning on flood on"]),
    Case("the target's link is down", POD, ["B: ip link set eth0 down", *ARP_FLUSH], "target link"),
    Case("the target's address is missing", POD, ["B: ip addr del {ip_b}/24 dev eth0", *ARP_FLUSH], "target address"),
    Case("the target's end is down", POD, ["ip link set {vb} down", *ARP_FLUSH], "target veth", "{vb}"),
    Case("the target's end is no port", POD, ["ip link set {vb} nomaster", *ARP_FLUSH], "target bridge port", "{vb}"),
    Case("a chain drops ARP", OUT, ["nft add table bridge f", "nft 'add chain bridge f c { type filter hook input "
         "priority 0; }'", "nft add rule bridge f c ether type arp drop", *ARP_FLUSH], "ARP chains",
         "hand-written", "bridge f", undo=["nft delete table bridge f"]),
    Case("a chain drops ARP, and the pod has just asked", OUT, [
        "nft add table bridge f", "nft 'add chain bridge f c { type filter hook input priority 0; }'",
        "nft add rule bridge f c ether type arp drop", *ARP_FLUSH,
        "A: bash -c 'echo > /dev/udp/10.88.0.1/9'"], "ARP chains", "bridge f",
        undo=["nft delete table bridge f"]),
)
def test_a_fault_of_a_link_is_named_and_mended(case, why, world, broken):
    check(case, why, world, broken)


@pytest.mark.needs("bridge-vlan-filtering")
@cases(
    Case("the port is in another VLAN", OUT, ["ip link set br0 type bridge vlan_filtering 1",
         "bridge vlan del dev {va} vid 1", "bridge vlan add dev {va} vid 7 pvid untagged"], "bridge VLAN", "VLAN 7",
         undo=["ip link set br0 type bridge vlan_filtering 0"]),
)
def test_a_fault_of_a_vlan_is_named_and_mended(case, why, world, broken):
    check(case, why, world, broken)
