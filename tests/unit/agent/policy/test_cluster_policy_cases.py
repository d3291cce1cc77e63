"""The upstream conformance tests of ClusterNetworkPolicy as a table: 24 tests. Pods send real packets of both families,
on a bridge and on separate links. Needs root.

https://github.com/kubernetes-sigs/network-policy-api, conformance/tests. Four namespaces have two pods each. `home` is
the subject. `near`, `mid` and `far` are its peers. At first the policy accepts `near`, denies one port of each protocol
to `mid`, and accepts one port of each protocol to `far`.
"""


import pytest
from policy_attacks.prober import Endpoint, Probe, Prober
from unit.agent.policy.pods import batch, mac_of_pod, up

from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import Node, Pod, read_policy
from fastcni.agent.policy.ruleset import Ruleset, see_bridged_traffic
from fastcni.kernel import sysctl
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside

HOUSES = ("home", "near", "mid", "far")
NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132}
PORTS = {"TCP": (80, 8080), "UDP": (53, 5353), "SCTP": (9003, 9005)}
NAMED = {("web", NUMBERS["TCP"]): 80, ("dns", NUMBERS["UDP"]): 53}
BRIDGE, ROUTED = ("10.9.0.254", "fd09::fe"), ("10.9.1.254", "fd09:1::fe")
HERE, OTHER = ("192.0.2.1", "2001:db8::1"), ("192.0.2.2", "2001:db8::2")         # nodes
OPEN, SHUT = True, False


class Cluster:
    """A node with the pods `home0`, `home1`, `near0` and so on, and another node."""

    def __init__(self, make_netns):
        for name in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            sysctl.write(name, "1")
        sysctl.write("net/ipv6/conf/default/accept_dad", "0")
        batch(None, "link add br0 type bridge", *up("br0", BRIDGE))
        self.prober, self.ends = Prober(), {}
        for number, house in enumerate(HOUSES):
            for replica in (0, 1):
                self.add_pod(f"{house}{replica}", make_netns(), 2 * number + 1, not replica)
        self.add("here", None, HERE + BRIDGE)
        netns = make_netns()
        batch(None, f"link add up0 type veth peer eth0 netns {netns}", *up("up0", HERE))
        batch(netns, "link set lo up", *up("eth0", OTHER), *(f"route add default via {each}" for each in HERE))
        self.add("other", netns, OTHER)
        if not see_bridged_traffic():
            pytest.skip("needs br_netfilter in the kernel")
        self.compiler, self.rules = Compiler(), Ruleset()
        for house in HOUSES:
            self.label(house, house)
        for name, addresses in (("here", HERE + BRIDGE + ROUTED), ("other", OTHER)):
            self.compiler.put_node(name, Node(name, {"os": "linux"}, tuple(map(read_ip, addresses))))
        for name, end in self.ends.items():
            if end.netns and name != "other":
                self.compiler.put_pod(Pod(name[:-1], name, {"house": name[:-1]}, tuple(map(read_ip, end.addresses)),
                                          "here", NAMED))
        self.compiler.take()
        self.rules.load(self.compiler.state)

    def add(self, name, netns, addresses):
        self.ends[name] = Endpoint(name, netns, addresses)
        self.prober.add(self.ends[name])

    def add_pod(self, name, netns, number, bridged):
        addresses = (f"10.9.0.{number}", f"fd09::{number}") if bridged else (f"10.9.1.{number}", f"fd09:1::{number}")
        gateways = BRIDGE if bridged else ROUTED
        with Inside(netns):
            sysctl.write("net/ipv6/conf/default/accept_dad", "0")
        batch(None, f"link add port-{name} {'master br0' if bridged else ''} type veth peer eth0 "
                    f"address {mac_of_pod(chr(96 + number + bridged))} netns {netns}", f"link set port-{name} up",
              *(() if bridged else (f"addr add {each}/{128 if ':' in each else 32} dev port-{name}" + (
                  " nodad" if ":" in each else "") for each in gateways)),
              *(() if bridged else (f"route add {each} dev port-{name}" for each in addresses)))
        with_nodad = (f"addr add {each}/{'128 nodad' if ':' in each else 32} dev eth0" for each in addresses)
        batch(netns, "link set lo up", *(up("eth0", addresses) if bridged else (*with_nodad, "link set eth0 up", *(
            f"route add {gateway} dev eth0" for gateway in gateways))),
              *(f"route add default via {gateway}" for gateway in gateways))
        self.add(name, netns, addresses)

    def label(self, house, value):
        self.compiler.put_namespace(house, {"house": value, "kubernetes.io/metadata.name": house})

    def put(self, *documents):
        for document in documents:
            read = read_policy if "podSelector" in document["spec"] else read_cluster_policy
            self.compiler.put_policy(read(document))
        self.rules.write(self.compiler.take())

    def expect(self, *rows):
        """Check connections. rows: (source, destination, protocol, ports, whether they are open). A source or
        destination without a number, such as "near", means both pods of that namespace."""
        probes, expected = [], set()
        for source, destination, protocol, ports, opened in rows:
            for one in self.replicas(source):
                for other in self.replicas(destination):
                    for port in ports:
                        for family in (":", "."):
                            address, to = (next(each for each in end.addresses if family in each)
                                           for end in (one, other))
                            probes.append(Probe(one, address, to, protocol, port, other))
                            expected |= {probes[-1]} if opened else set()
        self.prober.forget()
        arrived, _ = self.prober.sweep(probes, expected)
        assert not [str(each) for each in arrived ^ expected]

    def replicas(self, name):
        return [self.ends[name]] if name in self.ends else [self.ends[f"{name}{number}"] for number in (0, 1)]

    def close(self):
        self.prober.close()
        self.rules.close()


@pytest.fixture
def cluster(host_netns, pod_netns):
    it = Cluster(pod_netns)
    try:
        yield it
    finally:
        it.close()


# -- documents ---------------------------------------------------------------------------------------------------------

def rule(action, peers, *ports):
    """Return a rule. peers: namespaces, or peers as in the API. ports: (protocol, number or name or range)."""
    return action, [{"namespaces": {"matchLabels": {"house": each}}} if isinstance(each, str) else each
                    for each in peers], [protocol_of(*each) for each in ports]


def protocol_of(protocol, port):
    if isinstance(port, str):
        return {"destinationNamedPort": port}
    return {protocol.lower(): {"destinationPort": {"range": {"start": port[0], "end": port[1]}} if isinstance(
        port, tuple) else {"number": port}}}


def policy(tier, name="p", priority=10, **directions):
    def rules(key, listed):
        return [{"action": action, key: peers, **({"protocols": ports} if ports else {})}
                for action, peers, ports in listed]

    return {"metadata": {"name": name}, "spec": {
        "tier": tier, "priority": priority, "subject": {"namespaces": {"matchLabels": {"house": "home"}}},
        **{direction: rules("from" if direction == "ingress" else "to", listed)
           for direction, listed in directions.items()}}}


def swapped(rules, one, other):
    found = list(rules)
    found[one], found[other] = found[other], found[one]
    return found


def ordered(tier, protocols, accepted):
    """Return a policy's seven rules. Tier Baseline has no Pass rule. accepted: the ports at which `far` is accepted."""
    denied = [(protocol, PORTS[protocol][0]) for protocol in protocols]
    rules = [rule("Accept", ["near"]), rule("Deny", ["near"]), rule("Pass", ["near"]), rule("Deny", ["mid"], *denied),
             rule("Pass", ["mid"], *denied), rule("Accept", ["far"], *accepted), rule("Deny", ["far"])]
    return rules if tier == "Admin" else [each for each in rules if each[0] != "Pass"]


def way(direction, peer, *rest):
    return ("home", peer, *rest) if direction == "egress" else (peer, "home", *rest)


# -- the tests ---------------------------------------------------------------------------------------------------------

TIERS = pytest.mark.parametrize("tier", ["Admin", "Baseline"])
GRESS = {"ingress": {"TCP": 80, "UDP": 5353, "SCTP": 9003}, "egress": {"TCP": 8080, "UDP": 5353, "SCTP": 9003}}


@TIERS
@pytest.mark.parametrize("directions", [("egress",), ("ingress",), ("egress", "ingress")], ids="-".join)
@pytest.mark.parametrize("protocols", [("TCP",), ("UDP",), ("SCTP",), ("TCP", "UDP", "SCTP")], ids="-".join)
def test_the_first_rule_that_matches_decides(cluster, tier, directions, protocols):
    """14 of the upstream tests: each protocol and direction alone, and all together."""
    first = 3 if tier == "Admin" else 2
    rules = {each: ordered(tier, protocols, [(protocol, GRESS[each][protocol]) for protocol in protocols])
             for each in directions}
    both = [(direction, protocol) for direction in directions for protocol in protocols]

    def all_of(peer, *ports_and_verdicts):
        return [way(direction, peer, protocol, [port for port in PORTS[protocol] if chosen(direction, protocol, port)],
                    opened) for direction, protocol in both for chosen, opened in ports_and_verdicts]

    def always(*_):
        return True

    def accepted(direction, protocol, port):
        return port == GRESS[direction][protocol]

    def denied(direction, protocol, port):
        return port == PORTS[protocol][0]

    cluster.put(policy(tier, **rules))
    cluster.expect(*all_of("near", (always, OPEN)),
                   *all_of("far", (accepted, OPEN), (lambda *each: not accepted(*each), SHUT)),
                   *all_of("mid", (denied, SHUT), (lambda *each: not denied(*each), OPEN)))
    rules = {direction: swapped(each, 0, 1) for direction, each in rules.items()}
    cluster.put(policy(tier, **rules))
    cluster.expect(*all_of("near", (always, SHUT)))
    if tier == "Admin":
        rules = {direction: swapped(swapped(each, 0, 2), first, first + 1) for direction, each in rules.items()}
        cluster.put(policy(tier, **rules))
        cluster.expect(*all_of("near", (always, OPEN)), *all_of("mid", (always, OPEN)))


@TIERS
@pytest.mark.parametrize("direction, protocol, name", [("egress", "TCP", "web"), ("ingress", "UDP", "dns"),
                                                       ("egress", "UDP", "dns"), ("ingress", "TCP", "web")])
def test_a_named_port_is_that_of_the_destination(cluster, tier, direction, protocol, name):
    """Four of the upstream tests."""
    number, other = PORTS[protocol]
    cluster.put(policy(tier, **{direction: [rule("Accept", ["far"], (protocol, name)), rule("Deny", ["far"])]}))
    cluster.expect(way(direction, "far", protocol, [number], OPEN), way(direction, "far", protocol, [other], SHUT),
                   *(way(direction, "far", another, [number], SHUT) for another in {"TCP", "UDP"} - {protocol}))


@TIERS
def test_networks_are_pods_too(cluster, tier):
    """Two of the upstream tests."""
    chosen = {"pods": {"namespaceSelector": {"matchLabels": {"house": "mid"}},
                       "podSelector": {"matchLabels": {"house": "mid"}}}}
    rules = [rule("Accept", [chosen]), rule("Deny", [{"networks": ["0.0.0.0/0", "::/0"]}])]
    ports = [(protocol, ports[:1]) for protocol, ports in PORTS.items()]
    cluster.put(policy(tier, egress=rules))
    others = [("home", house, protocol, some, SHUT) for house in ("near", "far") for protocol, some in ports]
    cluster.expect(*others, *(("home", "mid", *each, OPEN) for each in ports))
    cluster.label("mid", "another")
    cluster.put()
    cluster.expect(*(("home", "mid", *each, SHUT) for each in ports))
    cluster.label("mid", "mid")
    cluster.put()
    cluster.expect(*(("home", "mid", *each, OPEN) for each in ports))
    single = [f"{address}/{128 if ':' in address else 32}" for name in ("near0", "far0")
              for address in cluster.ends[name].addresses]
    cluster.put(policy(tier, egress=[rule("Accept", [{"networks": single}]), *rules]))
    cluster.expect(*(("home", name, *each, opened) for name, opened in (
        ("near0", OPEN), ("far0", OPEN), ("near1", SHUT), ("far1", SHUT)) for each in ports))


LINUX = {"nodes": {"matchLabels": {"os": "linux"}}}
EVERYWHERE = {"networks": ["0.0.0.0/0", "::/0"]}


@TIERS
@pytest.mark.parametrize("node", ["here", "other"])
def test_nodes_are_peers_of_egress_also_the_pods_own(cluster, tier, node):
    """Two of the upstream tests."""
    middle = [rule("Pass", [LINUX], ("UDP", 53))] if tier == "Admin" else []
    cluster.put(policy(tier, egress=[rule("Accept", [LINUX], ("TCP", (80, 81))), *middle,
                                     rule("Deny", ["mid", LINUX, EVERYWHERE])]))
    cluster.expect(("home", node, "TCP", [80, 81], OPEN), ("home", node, "TCP", [8080], SHUT),
                   ("home", node, "UDP", [53], bool(middle)), ("home", node, "UDP", [5353], SHUT),
                   ("home", node, "SCTP", [9003], SHUT), ("near", node, "SCTP", [9003], OPEN))


def test_the_priority_is_before_the_rules(cluster):
    def both(action):
        return {direction: [rule(action, ["mid"])] for direction in ("ingress", "egress")}

    rows = [(source, destination, "TCP", [80, 8080]) for source, destination in (("home", "mid"), ("mid", "home"))]
    cluster.put(policy("Admin", "fifty", 50, **both("Deny")), policy("Admin", "moves", 60, **both("Pass")),
                policy("Baseline", "default", 10, **both("Accept")))
    cluster.expect(*((*row, SHUT) for row in rows))
    cluster.put(policy("Admin", "moves", 40, **both("Pass")))
    cluster.expect(*((*row, OPEN) for row in rows))


def test_network_policies_are_between_the_tiers(cluster):
    def rules(ingress, egress):
        return {"ingress": [rule(ingress, ["mid"])], "egress": [rule(egress, ["mid"])]}

    inwards, outwards = ("mid", "home", "TCP", [80, 8080]), ("home", "mid", "TCP", [80, 8080])
    peer = [{"namespaceSelector": {"matchLabels": {"house": "mid"}}}]
    cluster.put(policy("Admin", **rules("Deny", "Deny")), policy("Baseline", "default", **rules("Deny", "Deny")),
                {"metadata": {"name": "np", "namespace": "home"}, "spec": {
                    "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": peer}],
                    "egress": [{"to": peer}]}})
    cluster.expect((*inwards, SHUT), (*outwards, SHUT))
    cluster.put(policy("Admin", **rules("Pass", "Deny")))
    cluster.expect((*inwards, OPEN), (*outwards, SHUT))
    cluster.put(policy("Admin", **rules("Pass", "Pass")))
    cluster.expect((*inwards, OPEN), (*outwards, OPEN), ("near", "home", "TCP", [80], SHUT))
    cluster.compiler.delete_policy("home/np")
    cluster.put()
    cluster.expect((*inwards, SHUT), (*outwards, SHUT), ("near", "home", "TCP", [80], OPEN))
