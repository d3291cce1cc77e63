"""What the documentation of Kubernetes and of the Network Policy API says of a connection. No code here comes from
fastcni.

https://kubernetes.io/docs/concepts/services-networking/network-policies/, and for policyTypes and endPort
https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/. A Cluster has plain documents
as `kubectl get -o json` prints them. ClusterNetworkPolicy, v1alpha2: https://network-policy-api.sigs.k8s.io/reference/spec/
"""

import ipaddress
from dataclasses import dataclass, field

TCP, UDP, SCTP, ICMP = "TCP", "UDP", "SCTP", "ICMP"
NAME_LABEL = "kubernetes.io/metadata.name"              # the control plane gives it to each namespace


@dataclass
class Pod:
    """A pod. addresses: texts. ports: {(name, protocol): number}. here: its node is the node under test."""

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
    """namespaces: {name: labels}. policies: documents of NetworkPolicies and ClusterNetworkPolicies. everywhere:
    whether this node enforces the policies of all pods, as an agent with files does, or only of its own pods. nodes:
    {name: (labels, addresses)}."""

    namespaces: dict
    pods: list
    policies: list
    everywhere: bool = True
    nodes: dict = field(default_factory=dict)

    def pod_at(self, address):
        return next((pod for pod in self.pods if address in pod.addresses), None)


def allowed(cluster, source, destination, protocol, port):
    """Return whether a connection passes: the egress policies of the source and the ingress policies of the destination
    have to allow it. Addresses are texts; the protocol ICMP has no port."""
    for address, other, direction in ((source, destination, "Egress"), (destination, source, "Ingress")):
        pod = cluster.pod_at(address)
        if pod and (pod.here or cluster.everywhere) and not direction_allows(
                cluster, pod, direction, other, cluster.pod_at(destination), protocol, port):
            return False
    return True


def allowed_to_node(cluster, source, destination, protocol, port):
    """Return whether a connection of a pod to its own node passes. NetworkPolicies always allow it; rules by networks
    and nodes of ClusterNetworkPolicies do not."""
    pod = cluster.pod_at(source)
    return direction_allows(cluster, pod, "Egress", destination, None, protocol, port, own_node=True)


def direction_allows(cluster, pod, direction, peer, destination, protocol, port, own_node=False):
    """Return whether tier Admin, then the NetworkPolicies, which are final for the pods that they select, then tier
    Baseline allow a connection. Without a decision, the connection passes."""
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
    """Return the decision of the first rule that matches, by priority: Accept, Deny, or Pass, which leaves the tier;
    None if no rule matches. The order of equal priorities is undefined; here it is the order of names."""
    policies = sorted((policy for policy in cluster.policies if policy["kind"] == "ClusterNetworkPolicy"
                       and policy["spec"]["tier"] == tier and in_group(cluster, policy["spec"]["subject"], pod)),
                      key=lambda policy: (policy["spec"]["priority"], policy["metadata"]["name"]))
    for rule in (rule for policy in policies for rule in policy["spec"].get(direction.lower()) or []):
        action, protocols = rule["action"], rule.get("protocols")
        peers = rule["from" if direction == "Ingress" else "to"]
        if any(each.keys() - {"namespaces", "pods", "networks", "nodes"} for each in peers):    # a peer of a later API
            if action != "Accept":
                return False
        elif any(is_cluster_peer(cluster, each, peer) for each in peers) and (
                not protocols or any(is_protocol(each, destination, protocol, port) for each in protocols)):
            return None if action == "Pass" else action == "Accept"
    return None


def in_group(cluster, group, pod):
    """Whether a pod is in a subject or peer by namespaces or by pods."""
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
    """Return whether a protocol matches. A named port is a port of the destination pod, of any protocol."""
    if "destinationNamedPort" in each:
        return destination is not None and destination.ports.get((each["destinationNamedPort"], protocol)) == port
    wanted = each.get(protocol.lower(), {}).get("destinationPort")
    if not wanted:
        return False
    span = wanted.get("range") or {"start": wanted["number"], "end": wanted["number"]}
    return span["start"] <= port <= span["end"]


def applies(policy, pod, direction):
    """Without policyTypes, Ingress always, and Egress if the policy has any egress rules."""
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return (policy["metadata"]["namespace"] == pod.namespace and direction in types
            and selects(spec.get("podSelector") or {}, pod.labels))


def rule_allows(cluster, namespace, rule, direction, peer, destination, protocol, port):
    """Return whether peers and ports both match. An empty or missing list matches everything."""
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
    """Return whether a port matches. The default protocol is TCP; an entry without a port matches all ports."""
    if each.get("protocol", TCP) != protocol:
        return False
    wanted = each.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, str):
        return destination is not None and destination.ports.get((wanted, protocol)) == port
    return wanted <= port <= each.get("endPort", wanted)


def selects(selector, labels):
    """All of matchLabels and matchExpressions have to hold; an empty selector matches everything."""
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        meets(each, labels) for each in selector.get("matchExpressions") or [])


def meets(requirement, labels):
    """NotIn also matches objects without the label."""
    key, values = requirement["key"], requirement.get("values") or []
    return {"In": key in labels and labels[key] in values, "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels, "DoesNotExist": key not in labels}[requirement["operator"]]
