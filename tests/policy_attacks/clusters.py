"""Make random namespaces, pods with labels and named ports, and policies with every feature of the API."""

import ipaddress

from policy_attacks.oracle import NAME_LABEL, Pod

NAMESPACES, KEYS, VALUES = ("one", "two", "three"), ("app", "tier", "env"), ("a", "b", "c")
PORTS = (80, 81, 90, 443)
NAMES = ("http", "web")


def labels(rng, share=0.6):
    return {key: rng.choice(VALUES) for key in KEYS if rng.random() < share}


def namespaces(rng):
    """Return {name: labels} of random namespaces. A namespace may have no labels."""
    return {name: {**labels(rng, 0.4), NAME_LABEL: name} for name in NAMESPACES}


def named_ports(rng):
    return {(name, protocol): rng.choice(PORTS) for name in NAMES for protocol in ("TCP", "UDP", "SCTP")
            if rng.random() < 0.4}


def pod_document(pod, node="here", **status):
    """Return the Pod object that the API server has for a pod. status: more fields of the Pod's status."""
    ports = [{"name": name, "protocol": protocol, "containerPort": number}
             for (name, protocol), number in pod.ports.items()]
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "labels": pod.labels},
            "spec": {"nodeName": node, "containers": [{"name": "main", "ports": ports}]}, "status": status}


def ended_twin(rng, pod):
    """Return a Pod object that has ended and still names the address of a living pod. The ended Pod's labels must have
    no effect."""
    return pod_document(Pod(pod.namespace, f"ended-{pod.name}", labels(rng)), phase="Succeeded",
                        podIP=pod.addresses[0], podIPs=[{"ip": each} for each in pod.addresses])


def selector(rng):
    """Return a random label selector, sometimes {}, which selects everything."""
    if rng.random() < 0.15:
        return {}
    found = {}
    if rng.random() < 0.6:
        found["matchLabels"] = {rng.choice(KEYS): rng.choice(VALUES)}
    if rng.random() < 0.5 or not found:
        found["matchExpressions"] = [requirement(rng) for _ in range(rng.choice([1, 1, 2]))]
    return found


def requirement(rng):
    operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    values = {"values": rng.sample(VALUES, rng.choice([1, 2]))} if operator in ("In", "NotIn") else {}
    return {"key": rng.choice(KEYS), "operator": operator, **values}


def namespace_selector(rng):
    if rng.random() < 0.4:
        return {"matchLabels": {NAME_LABEL: rng.choice(NAMESPACES)}}
    return selector(rng)


def block(rng, addresses):
    """Return an ipBlock: one address, a network around the address with exceptions, or everything."""
    text = rng.choice(addresses)
    length = 128 if ":" in text else 32
    prefix = rng.choice([length, length - 3, length - 8, 0])
    found = {"cidr": network(text, prefix)}
    if prefix < length and rng.random() < 0.6:
        family = [each for each in addresses if (":" in each) == (":" in text)]
        inner = [each for each in family if network(each, prefix) == found["cidr"]]
        found["except"] = sorted({network(rng.choice(inner), rng.choice([length, length - 2]))
                                  for _ in range(rng.choice([1, 2]))} - {found["cidr"]})
    return {"ipBlock": found}


def network(text, prefix):
    return str(ipaddress.ip_network(f"{text}/{prefix}", strict=False))


def peer(rng, addresses):
    kind = rng.random()
    if kind < 0.35:
        return {"podSelector": selector(rng)}
    if kind < 0.55:
        return {"namespaceSelector": namespace_selector(rng)}
    if kind < 0.75:
        return {"podSelector": selector(rng), "namespaceSelector": namespace_selector(rng)}
    return block(rng, addresses)


def port(rng):
    protocol = rng.choice([{}, {"protocol": "TCP"}, {"protocol": "UDP"}, {"protocol": "SCTP"}])
    kind = rng.random()
    if kind < 0.2:
        return protocol
    if kind < 0.4:
        return {**protocol, "port": rng.choice(NAMES)}
    first = rng.choice(PORTS)
    return {**protocol, "port": first, **({"endPort": first + rng.choice([0, 1, 9, 400])} if kind > 0.75 else {})}


def rule(rng, direction, addresses):
    found = {}
    if rng.random() < 0.75:
        found["from" if direction == "ingress" else "to"] = [
            peer(rng, addresses) for _ in range(rng.choice([0, 1, 1, 2]))]
    if rng.random() < 0.6:
        found["ports"] = [port(rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    return found


def policy(rng, name, namespace, addresses):
    spec = {"podSelector": selector(rng)}
    for direction in ("ingress", "egress"):
        if rng.random() < 0.7:
            spec[direction] = [rule(rng, direction, addresses) for _ in range(rng.choice([0, 1, 1, 2]))]
    types = rng.choice([None, None, ["Ingress"], ["Egress"], ["Ingress", "Egress"]])
    if types:
        spec["policyTypes"] = types
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def policies(rng, addresses):
    """Return random NetworkPolicies, and in two of three clusters also ClusterNetworkPolicies."""
    found = [policy(rng, f"p{number}", rng.choice(NAMESPACES), addresses)
             for number in range(rng.choice([1, 2, 3, 5, 8]))]
    return found + [cluster_policy(rng, f"c{number}", addresses) for number in range(rng.choice([0, 2, 4]))]


def cluster_policy(rng, name, addresses):
    spec = {"tier": rng.choice(["Admin", "Baseline"]), "priority": rng.choice([0, 5, 5, 1000]), "subject": group(rng)}
    for direction in ("ingress", "egress"):
        if rng.random() < 0.7:
            spec[direction] = [ordered_rule(rng, direction, addresses) for _ in range(rng.choice([0, 1, 2, 3]))]
    return {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": name}, "spec": spec}


def group(rng):
    """Return a random subject or peer, which selects by namespaces or by pods."""
    if rng.random() < 0.4:
        return {"namespaces": namespace_selector(rng)}
    return {"pods": {"namespaceSelector": namespace_selector(rng) if rng.random() < 0.6 else {},
                     "podSelector": selector(rng)}}


def ordered_rule(rng, direction, addresses):
    """Return a random rule of a ClusterNetworkPolicy. Named ports occur only in rules for pods."""
    by_pods = direction == "ingress" or rng.random() < 0.4
    peers = [group(rng) if by_pods else cluster_peer(rng, addresses) for _ in range(rng.choice([1, 1, 2]))]
    found = {"action": rng.choice(["Accept", "Deny", "Deny", "Pass"]),
             "from" if direction == "ingress" else "to": peers}
    if rng.random() < 0.05:
        peers.append({"later": {}})             # a peer of a later version of the API
    if rng.random() < 0.6:
        found["protocols"] = [cluster_protocol(rng, by_pods) for _ in range(rng.choice([1, 1, 2, 3]))]
    return found


def cluster_peer(rng, addresses):
    kind = rng.random()
    if kind < 0.3:
        return group(rng)
    if kind < 0.5:
        return {"nodes": selector(rng)}
    return {"networks": sorted({block(rng, addresses)["ipBlock"]["cidr"] for _ in range(rng.choice([1, 1, 3]))})}


def cluster_protocol(rng, names):
    if names and rng.random() < 0.3:
        return {"destinationNamedPort": rng.choice(NAMES)}
    first = rng.choice(PORTS)
    wide = {"range": {"start": first, "end": first + rng.choice([1, 9, 400])}}
    return {rng.choice(["tcp", "udp", "sctp"]): {"destinationPort": rng.choice([wide, {"number": first}])}}


def node_document(name, labels, addresses):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": each} for each in addresses]}}
