"""Decide whether policies allow a connection, by the documentation of Kubernetes and of the Network Policy API. This
module uses no code of fastcni.

NetworkPolicy: https://kubernetes.io/docs/concepts/services-networking/network-policies/, and for policyTypes and
endPort https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/. ClusterNetworkPolicy,
v1alpha2: https://network-policy-api.sigs.k8s.io/reference/spec/. A Cluster has the JSON documents that `kubectl get -o
json` prints.
"""

import ipaddress
from dataclasses import dataclass, field

TCP, UDP, SCTP, ICMP = "TCP", "UDP", "SCTP", "ICMP"
NAME_LABEL = "kubernetes.io/metadata.name"              # the control plane gives each namespace this label


@dataclass
class Pod:
    """A pod. addresses: strings. ports: {(name, protocol): number}. here: whether the pod runs on the node under
    test."""

    namespace: str
    name: str
    labels: dict = field(default_factory=dict)
    ports: dict = field(default_factory=dict)
    addresses: tuple = ()
    here: bool = True

    @property
    def key(self):
        return f"{self.namespace}/{self.name}"


@dataclass
class Cluster:
    """The cluster. namespaces: {name: labels}. policies: documents of NetworkPolicies and ClusterNetworkPolicies.
    everywhere: whether the node under test enforces the policies of all pods, as an agent with files does, or only
    those of its own pods. nodes: {name: (labels, addresses)}."""

    namespaces: dict
    pods: list
    policies: list
    everywhere: bool = True
    nodes: dict = field(default_factory=dict)

    def pod_at(self, address):
        return next((pod for pod in self.pods if address in pod.addresses), None)


def allowed(cluster, source, destination, protocol, port):
    """Return whether a connection passes: the source's egress policies and the destination's ingress policies must
    allow the connection. source, destination: addresses as strings. port is ignored for ICMP."""
    for address, other, direction in ((source, destination, "Egress"), (destination, source, "Ingress")):
        pod = cluster.pod_at(address)
        if pod and (pod.here or cluster.everywhere) and not direction_allows(
                cluster, pod, direction, other, cluster.pod_at(destination), protocol, port):
            return False
    return True


def allowed_to_node(cluster, source, destination, protocol, port):
    """Return whether a connection from a pod to its own node passes. NetworkPolicies always allow this connection;
    rules of ClusterNetworkPolicies by networks and nodes can deny it."""
    pod = cluster.pod_at(source)
    return direction_allows(cluster, pod, "Egress", destination, None, protocol, port, own_node=True)


def direction_allows(cluster, pod, direction, peer, destination, protocol, port, own_node=False):
    """Return whether the policies of one direction allow a connection. Tier Admin decides first, then the
    NetworkPolicies that select the pod, then tier Baseline. Without a decision, the connection passes."""
    asked = cluster, pod, direction, peer, destination, protocol, port
    decided = tier_decides("Admin", *asked)
    if decided is None:
        decided = network_policies_decide(*asked, own_node)
    if decided is None:
        decided = tier_decides("Baseline", *asked)
    return decided is not False


def network_policies_decide(cluster, pod, direction, peer, destination, protocol, port, own_node):
    """Return whether a rule of any policy of a pod allows the connection, or None if no policy selects the pod."""
    applying = [policy for policy in cluster.policies
                if policy["kind"] == "NetworkPolicy" and applies(policy, pod, direction)]
    return None if not applying else own_node or any(
        rule_allows(cluster, policy["metadata"]["namespace"], rule, direction, peer, destination, protocol, port)
        for policy in applying for rule in policy["spec"].get(direction.lower()) or [])


def tier_decides(tier, cluster, pod, direction, peer, destination, protocol, port):
    """Return the action of the matching rule with the highest priority: Accept, Deny, or Pass, which leaves the tier.
    Return None if no rule matches. The API leaves the order of equal priorities undefined; fastcni orders them by
    name."""
    policies = sorted((policy for policy in cluster.policies if policy["kind"] == "ClusterNetworkPolicy"
                       and policy["spec"]["tier"] == tier and in_group(cluster, policy["spec"]["subject"], pod)),
                      key=lambda policy: (policy["spec"]["priority"], policy["metadata"]["name"]))
    for rule in (rule for policy in policies for rule in policy["spec"].get(direction.lower()) or []):
        action, protocols = rule["action"], rule.get("protocols")
        peers = rule["from" if direction == "Ingress" else "to"]
        # A peer of a later version of the API
        if any(each.keys() - {"namespaces", "pods", "networks", "nodes"} for each in peers):
            if action != "Accept":
                return False
        elif any(is_cluster_peer(cluster, each, peer) for each in peers) and (
                not protocols or any(is_protocol(each, destination, protocol, port) for each in protocols)):
            return None if action == "Pass" else action == "Accept"
    return None


def in_group(cluster, group, pod):
    """Return whether a subject or peer selects a pod, by namespaces or by pods."""
    labels = {**cluster.namespaces.get(pod.namespace, {}), NAME_LABEL: pod.namespace}
    if "namespaces" in group:
        return selects(group["namespaces"], labels)
    return selects(group["pods"]["namespaceSelector"], labels) and selects(group["pods"]["podSelector"], pod.labels)


def is_cluster_peer(cluster, peer, address):
    if "networks" in peer:
        return any(inside(ipaddress.ip_address(address), each) for each in peer["networks"])
    if "nodes" in peer:
        return any(address in addresses and selects(peer["nodes"], labels)
                   for labels, addresses in cluster.nodes.values())
    pod = cluster.pod_at(address)
    return pod is not None and in_group(cluster, peer, pod)


def is_protocol(each, destination, protocol, port):
    """Return whether an entry of `protocols` matches. A named port is a port of the destination pod, of any
    protocol."""
    if "destinationNamedPort" in each:
        return destination is not None and destination.ports.get((each["destinationNamedPort"], protocol)) == port
    wanted = each.get(protocol.lower(), {}).get("destinationPort")
    if not wanted:
        return False
    span = wanted.get("range") or {"start": wanted["number"], "end": wanted["number"]}
    return span["start"] <= port <= span["end"]


def applies(policy, pod, direction):
    """Return whether a policy applies to a pod in a direction. Without policyTypes, a policy applies to Ingress, and to
    Egress if the policy has egress rules."""
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return (policy["metadata"]["namespace"] == pod.namespace and direction in types
            and selects(spec.get("podSelector") or {}, pod.labels))


def rule_allows(cluster, namespace, rule, direction, peer, destination, protocol, port):
    """Return whether a rule's peers and ports both match. An empty or missing list matches everything."""
    peers, ports = rule.get("from" if direction == "Ingress" else "to") or [], rule.get("ports") or []
    return (not peers or any(is_peer(cluster, namespace, each, peer) for each in peers)) and (
        not ports or any(is_port(each, destination, protocol, port) for each in ports))


def is_peer(cluster, namespace, peer, address):
    if "ipBlock" in peer:
        block, ip = peer["ipBlock"], ipaddress.ip_address(address)
        return inside(ip, block["cidr"]) and not any(inside(ip, each) for each in block.get("except") or [])
    pod = cluster.pod_at(address)
    if pod is None:
        return False
    if "namespaceSelector" in peer:
        labels = {**cluster.namespaces.get(pod.namespace, {}), NAME_LABEL: pod.namespace}
        if not selects(peer["namespaceSelector"], labels):
            return False
    elif pod.namespace != namespace:
        return False
    return selects(peer.get("podSelector") or {}, pod.labels)


def inside(ip, cidr):
    network = ipaddress.ip_network(cidr)
    return ip.version == network.version and ip in network


def is_port(each, destination, protocol, port):
    """Return whether an entry of `ports` matches. The default protocol is TCP. An entry without a port matches all
    ports."""
    if each.get("protocol", TCP) != protocol:
        return False
    wanted = each.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, str):
        return destination is not None and destination.ports.get((wanted, protocol)) == port
    return wanted <= port <= each.get("endPort", wanted)


def selects(selector, labels):
    """Return whether a label selector matches. All of matchLabels and matchExpressions must match. An empty selector
    matches everything."""
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        meets(each, labels) for each in selector.get("matchExpressions") or [])


def meets(requirement, labels):
    """Return whether labels meet a requirement of matchExpressions. NotIn also matches objects without the label."""
    key, values = requirement["key"], requirement.get("values") or []
    return {"In": key in labels and labels[key] in values, "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels, "DoesNotExist": key not in labels}[requirement["operator"]]
