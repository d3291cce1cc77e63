"""`fastcni why` reports faults of routes, source addresses, forwarding and rp_filter, and `do` repairs them."""

import json

import pytest
from unit.why.conftest import Case, cases, check

pytestmark = pytest.mark.needs("root")
POD = "pod-a {ip_b}:{port_b}"
OUT = "pod-a 192.0.2.2:{port_x}"
OUT6 = "pod-a [fd00:2::2]:{port_x}"


@cases(
    Case("the pod has no default route", OUT, ["A: ip route del default"], "pod route", "no route to 192.0.2.2"),
    Case("the pod has no default route of IPv6", OUT6, ["A: ip -6 route del default"], "pod route",
         "no route to fd00:2::2"),
    Case("a route of the pod is a blackhole", OUT, ["A: ip route add blackhole 192.0.2.0/24"], "pod route",
         "blackhole 192.0.2.0/24", undo=["A: ip route del blackhole 192.0.2.0/24"]),
    Case("a rule in the pod prohibits", OUT, ["A: ip rule add from {ip_a} prohibit priority 77"], "pod route",
         "77: from {ip_a}/32 prohibit", undo=["A: ip rule del priority 77"]),
    Case("the pod has another gateway", OUT, ["A: ip route replace default via 10.88.0.77 dev eth0"], "pod route",
         "10.88.0.77"),
    Case("the pod chooses another source address", OUT, ["A: ip addr add 10.99.0.9/32 dev eth0",
         "A: ip route replace default via 10.88.0.1 dev eth0 src 10.99.0.9"], "pod source", "10.99.0.9",
         undo=["A: ip addr del 10.99.0.9/32 dev eth0"]),
    Case("the node does not forward", OUT, ["sysctl -qw net.ipv4.ip_forward=0"], "forwarding",
         "net.ipv4.ip_forward = 0"),
    Case("the node does not forward IPv6", OUT6, ["sysctl -qw net.ipv6.conf.all.forwarding=0"], "forwarding",
         "net.ipv6.conf.all.forwarding = 0"),
    Case("one link does not forward", OUT, ["sysctl -qw net.ipv4.conf.br0.forwarding=0"], "forwarding",
         "net.ipv4.conf.br0.forwarding = 0"),
    Case("rp_filter refuses the pod", OUT,
         ["ip route add {ip_a}/32 dev up0", "sysctl -qw net.ipv4.conf.br0.rp_filter=1"],
         "rp_filter", "net.ipv4.conf.br0.rp_filter = 1", undo=["ip route del {ip_a}/32 dev up0",
                                                             "sysctl -qw net.ipv4.conf.br0.rp_filter=0"]),
    Case("the node has no route outside", "pod-a 203.0.113.7:80", [], "host route", "no route to 203.0.113.7",
         mends=False),
    Case("the uplink is down", OUT, ["ip link set up0 down"], "host route", "up0 is down", undo=["ip link set up0 up"]),
    Case("a route of the node is unreachable", OUT, ["ip route add unreachable 192.0.2.2/32"], "host route",
         "unreachable 192.0.2.2/32", undo=["ip route del unreachable 192.0.2.2/32"]),
    Case("a rule of the node is a blackhole", OUT, ["ip rule add from {ip_a} blackhole priority 78"], "host route",
         "78: from {ip_a}/32 blackhole", undo=["ip rule del priority 78"]),
    Case("the node's route to a routed pod is gone", "pod-a {ip_c}:{port_c}", ["ip route del {ip_c}"], "host route",
         "no route to {ip_c}", undo=["ip route replace {ip_c} dev {vc}"]),
    Case("the node itself has no route to a routed pod", "192.0.2.1 pod-c:{port_c}", ["ip route del {ip_c}"],
         "host route", "no route to {ip_c}", undo=["ip route replace {ip_c} dev {vc}"]),
    Case("the node's route to a pod leads elsewhere", "pod-c {ip_b}:{port_b}", ["ip route add {ip_b}/32 dev up0"],
         "host route", "leads to up0", undo=["ip route del {ip_b}/32"]),
    Case("the target has no route back", "192.0.2.2 pod-b:{port_b}", ["B: ip route del default"], "target route",
         "no route back to 192.0.2.2"),
    Case("the target's route back is a blackhole", "192.0.2.2 pod-b:{port_b}",
         ["B: ip route add blackhole 192.0.2.0/24"], "target route", "blackhole 192.0.2.0/24",
         undo=["B: ip route del blackhole 192.0.2.0/24"]),
)
def test_a_fault_of_a_route_is_named_and_mended(case, why, world, broken):
    check(case, why, world, broken)


def test_a_route_of_the_configuration_that_the_result_no_longer_has(world, why, broken):
    """Another network with default-route has removed the route. Once, `why` reported that the configuration gives no
    route."""
    path = world.cache / "results" / "n-bridge-pod-a-eth0"
    kept = path.read_text()
    document = json.loads(kept)
    document["result"]["routes"] = []
    path.write_text(json.dumps(document))
    try:
        broken(["A: ip route del default"])
        ends = why(*OUT.split()).document["ends"]
    finally:
        path.write_text(kept)
    assert "the result of its ADD no longer has the default route of its network's ipam" in ends["what"]
    assert (ends["hop"], ends["do"]) == ("pod route", "delete the pod and add it again")
