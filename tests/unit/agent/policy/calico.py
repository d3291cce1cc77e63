"""Evaluate Calico's policies in the tier `default` as Calico's documentation says. Make random clusters with such
policies. No code here comes from fastcni.

Selectors are pairs (text, function of labels). Source:
https://docs.tigera.io/calico/latest/reference/resources/globalnetworkpolicy, and networkpolicy.
"""

import ipaddress
import random
from dataclasses import dataclass

KUBERNETES_ORDER = 1000                 # the order that Calico gives each NetworkPolicy of Kubernetes
PODS = {                                # address: (namespace, labels)
    "10.0.0.1": ("shop", {"app": "web"}), "10.0.0.2": ("shop", {"app": "db", "old": ""}),
    "10.0.1.1": ("lab", {"app": "web"}),
    "10.0.1.2": ("lab", {"app": "db"}), "10.0.1.3": ("lab", {})}
OUTSIDE = ["192.0.2.1", "192.0.2.129", "203.0.113.9"]
NAMESPACES = {"shop": {"team": "a"}, "lab": {"team": "b"}}
PORTS = {("TCP", 80): "http", ("TCP", 443): "", ("UDP", 53): "", ("ICMP", 0): ""}
SELECTORS = [
    ("all()", lambda it: True), ("app == 'web'", lambda it: it.get("app") == "web"),
    ("app != \"web\"", lambda it: it.get("app") != "web"), ("has(app)", lambda it: "app" in it),
    ("!has(old) && app in {'db', 'x'}", lambda it: "old" not in it and it.get("app") in ("db", "x")),
    ("!(has(old) || app == 'web')", lambda it: "old" not in it and it.get("app") != "web")]
ALTERNATIVES = [("app == 'web' || !has(app)", lambda it: it.get("app") in (None, "web"))]
TEAMS = [("team == 'a'", lambda it: it["team"] == "a"), ("projectcalico.org/name not in {'shop'}",
                                                         lambda it: it["team"] == "b"),
         ("all()", lambda it: True)]
MEANING = dict([*SELECTORS, *ALTERNATIVES, *TEAMS])


@dataclass
class Packet:
    source: str
    destination: str
    protocol: str
    port: int


def allowed(policies, packet):
    """Return whether the policies allow a packet. policies: documents of Calico, and NetworkPolicies of Kubernetes
    whose rules have no peers."""
    return all(direction_allows(policies, packet, direction) for direction in ("Ingress", "Egress"))


def direction_allows(policies, packet, direction):
    """Return whether the policies allow a packet in one direction. The first rule that matches, in the policies' order,
    decides. Without a matching rule the packet is denied if a policy applies to the pod."""
    own = packet.destination if direction == "Ingress" else packet.source
    if own not in PODS:
        return True
    applying = sorted((each for each in policies if applies(each, own, direction)), key=place)
    for policy in applying:
        for rule in policy["spec"].get(direction.lower(), ()):
            if matches(rule, policy, packet, direction):
                return rule["action"] == "Allow"
    return not applying


def place(policy):
    if policy["apiVersion"] == "networking.k8s.io/v1":
        return KUBERNETES_ORDER
    return policy["spec"].get("order", float("inf"))


def applies(policy, address, direction):
    namespace, labels = PODS[address]
    spec = policy["spec"]
    if direction not in spec["types"] or policy["metadata"].get("namespace", namespace) != namespace:
        return False
    return MEANING[spec.get("selector", "all()")](labels) and MEANING[spec.get("namespaceSelector", "all()")](
        NAMESPACES[namespace])


def matches(rule, policy, packet, direction):
    end, address = ("source", packet.source) if direction == "Ingress" else ("destination", packet.destination)
    ports = rule.get("destination", {}).get("ports")
    return (rule.get("protocol", packet.protocol) == packet.protocol
            and (not ports or any(is_port(each, packet) for each in ports)) and is_end(rule.get(end, {}), policy,
                                                                                       address))


def is_port(each, packet):
    if isinstance(each, str) and not each[0].isdigit():
        return packet.destination in PODS and PORTS[packet.protocol, packet.port] == each
    first, _, last = str(each).partition(":")
    return int(first) <= packet.port <= int(last or first)


def is_end(end, policy, address):
    ip = ipaddress.ip_address(address)
    if "nets" in end and not any(ip in ipaddress.ip_network(each) for each in end["nets"]):
        return False
    if any(ip in ipaddress.ip_network(each) for each in end.get("notNets", ())):
        return False
    if not end.keys() & {"selector", "namespaceSelector"}:
        return True
    if address not in PODS:
        return False
    namespace, labels = PODS[address]
    if "namespaceSelector" in end:
        if not MEANING[end["namespaceSelector"]](NAMESPACES[namespace]):
            return False
    elif policy["metadata"].get("namespace", namespace) != namespace:
        return False
    return MEANING[end.get("selector", "all()")](labels)


def packets():
    for source in (*PODS, *OUTSIDE):
        for destination in (*PODS, *OUTSIDE):
            if source != destination:
                yield from (Packet(source, destination, *each) for each in PORTS)


# -- random clusters ---------------------------------------------------------------------------------------------------

def cluster(seed):
    """Return policies with different orders. Half of the clusters also have a NetworkPolicy of Kubernetes, in Calico's
    form."""
    rng = random.Random(seed)
    orders = [*rng.sample(range(KUBERNETES_ORDER), 3), None]
    found = [policy(rng, f"p{number}", orders.pop(rng.randrange(len(orders)))) for number in range(rng.randint(1, 4))]
    if rng.random() < 0.5:
        rules = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}]
        found.append({"apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes", "namespace": "shop"},
                      "spec": {"types": ["Ingress", "Egress"], "selector": "app == 'db' ", "ingress": rules,
                               "egress": rules}})
    return found


MEANING["app == 'db' "] = lambda it: it.get("app") == "db"


def policy(rng, name, order):
    namespace = rng.choice(["", "shop", "lab"])
    spec = {"selector": rng.choice(SELECTORS)[0], "types": rng.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])}
    if order is not None:
        spec["order"] = order
    if not namespace and rng.random() < 0.5:
        spec["namespaceSelector"] = rng.choice(TEAMS)[0]
    actions = ["Allow"] if rng.random() < 0.4 else ["Allow", "Deny"]
    for direction in spec["types"]:
        spec[direction.lower()] = [rule(rng, rng.choice(actions), direction) for _ in range(rng.randint(0, 3))]
        if not namespace and rng.random() < 0.7:
            spec[direction.lower()].append({"action": "Allow"})
    return {"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy" if namespace else "GlobalNetworkPolicy",
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, "spec": spec}


def rule(rng, action, direction):
    found, end = {"action": action}, {}
    kind = rng.random()
    if kind < 0.5:
        end["selector"] = rng.choice([*SELECTORS, *ALTERNATIVES])[0]
    if 0.3 < kind < 0.6:
        end["namespaceSelector"] = rng.choice(TEAMS)[0]
    elif 0.6 <= kind < 0.9:
        end["nets"] = rng.sample(["192.0.2.0/24", "10.0.0.0/31", "203.0.113.9/32"], rng.randint(1, 2))
        if rng.random() < 0.5:
            end["notNets"] = ["192.0.2.128/25"]
    if end:
        found["source" if direction == "Ingress" else "destination"] = end
    if rng.random() < 0.5:
        found["protocol"] = rng.choice(["TCP", "UDP"])
        if rng.random() < 0.7:
            ports = found.setdefault("destination", {})
            ports["ports"] = [rng.choice([80, "80:100", "http"] if found["protocol"] == "TCP" else [53, "1:60"])]
    return found
