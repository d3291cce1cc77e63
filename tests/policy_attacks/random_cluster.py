"""A random cluster on a node, and random events of this cluster. A seed determines all choices."""

import random
import signal
import subprocess
import time

from policy_attacks import clusters, oracle
from policy_attacks.node import GATEWAY, NETWORKS, NODE, OUTSIDE, REMOTE
from policy_attacks.prober import Endpoint, Probe, Prober

PODS = 9
HOST_PORTS = (8080, 8081)
NODES = {"own": NODE, "other": GATEWAY}                 # name: addresses
FLUSHES = ("flush ruleset", "delete table inet fastcni-policy")


class RandomCluster:
    """A random cluster on a Node. `seed` determines all choices."""

    def __init__(self, node, seed, count=PODS):
        self.node, self.rng, self.seed, self.count = node, random.Random(seed), seed, count
        self.prober, self.endpoints, self.history = Prober(), {}, []
        self.namespaces, self.policies, self.remote = {}, [], []
        self.networks, self.twins, self.host_ports, self.named, self.nodes = {}, {}, {}, 0, {}

    # -- objects -------------------------------------------------------------------------------------------------

    def make(self):
        self.node.begin_addresses_again()
        self.namespaces = clusters.namespaces(self.rng)
        for name, labels in self.namespaces.items():
            self.node.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}})
        for name in NODES:
            self.put_node(name)
        for number in (1, 2):
            pod = self.new_pod(here=False, addresses=tuple(f"{prefix}{number}" for prefix in REMOTE))
            self.remote.append(pod)
            self.node.put(clusters.pod_document(pod, "there", podIP=pod.addresses[0],
                                                podIPs=[{"ip": each} for each in pod.addresses]))
        self.outside = Endpoint("outside", self.node.outside, (*GATEWAY, *OUTSIDE))
        self.host = Endpoint("node", None, NODE)
        for endpoint in (self.outside, self.host):
            self.prober.add(endpoint)
        self.node.publish()
        for _ in range(self.count):
            self.add_pod()
        self.policies = clusters.policies(self.rng, self.addresses())
        for each in self.policies:
            self.node.put(each)
        self.node.publish()

    def put_node(self, name):
        """Write a Node object with random labels, and with all or some of the node's addresses."""
        addresses = [each for each in NODES[name] if self.rng.random() < 0.8]
        self.nodes[name] = clusters.labels(self.rng), addresses
        self.node.put(clusters.node_document(name, *self.nodes[name]))

    def new_pod(self, **keys):
        self.named += 1
        return oracle.Pod(self.rng.choice(clusters.NAMESPACES), f"pod{self.named}", clusters.labels(self.rng), **keys)

    def add_pod(self, pod=None, network=None):
        pod, network = pod or self.new_pod(), network or self.rng.choice(list(NETWORKS))
        documented = bool(self.node.api) or self.rng.random() < 0.6
        if documented:
            pod.ports = clusters.named_ports(self.rng)
        free = [each for each in HOST_PORTS if each not in self.host_ports]
        port = free[0] if free and "portmap" in NETWORKS[network] else 0
        endpoint = self.node.add_pod(pod, network, documented=documented, host_port=port)
        self.endpoints[pod.key], self.networks[pod.key] = endpoint, (network, documented)
        if port:
            self.host_ports[port] = pod.key
        self.prober.add(endpoint)
        return pod

    def remove_pod(self, key, **how):
        self.prober.remove(self.endpoints.pop(key))
        self.host_ports = {port: owner for port, owner in self.host_ports.items() if owner != key}
        self.node.delete_pod(key, **how)
        del self.networks[key]

    def addresses(self):
        """Return the addresses that ipBlocks may name."""
        pods = [address for pod in (*self.node.pods.values(), *self.remote) for address in pod.addresses]
        return [*pods, *OUTSIDE, *GATEWAY, *NODE]

    def clean_up(self):
        for key in list(self.endpoints):
            self.remove_pod(key)
        for kind, namespace, name in list(self.node.documents):
            self.node.drop(kind, namespace, name)
        self.node.publish()
        self.prober.close()

    def truth(self):
        """Return the cluster as the oracle reads it."""
        pods = [oracle.Pod(pod.namespace, pod.name, dict(pod.labels), dict(pod.ports), pod.addresses, pod.here)
                for pod in (*self.node.pods.values(), *self.remote)]
        return oracle.Cluster(dict(self.namespaces), pods, list(self.policies), not self.node.api, dict(self.nodes))

    # -- probes --------------------------------------------------------------------------------------------------------

    def probes(self):
        """Return all probes from and to pods of this node, in random order."""
        found = []
        pods = list(self.endpoints.values())
        others = [(self.outside, address) for address in (*OUTSIDE, *(each for pod in self.remote
                                                                     for each in pod.addresses))]
        ends = [(pod, address) for pod in pods for address in pod.addresses]
        for source, address in [*ends, *others, *((self.host, each) for each in NODE)]:
            for receiver, to in [*ends, *others, *((self.host, each) for each in NODE)]:
                if (source in pods or receiver in pods) and source is not receiver and (":" in address) == (":" in to):
                    found += [Probe(source, address, to, protocol, port, receiver)
                              for protocol in ("TCP", "UDP", "SCTP") for port in clusters.PORTS]
                    found.append(Probe(source, address, to, "ICMP", 0, receiver))
        for port, key in self.host_ports.items():       # policies see the client's address at a hostPort
            for source, address in [*((pod, pod.addresses[0]) for pod in pods), (self.outside, OUTSIDE[0])]:
                if source is not self.endpoints[key]:
                    found += [Probe(source, address, NODE[0], protocol, port, self.endpoints[key])
                              for protocol in ("TCP", "UDP")]
        self.rng.shuffle(found)
        return found

    def allowed(self, truth, probe):
        """Return whether the oracle allows a probe. The node always reaches its pods."""
        if self.host is probe.source:
            return True
        if self.host is probe.receiver:
            return oracle.allowed_to_node(truth, probe.address, probe.to, probe.protocol, probe.port)
        to, port = probe.to, probe.port
        if to == NODE[0]:
            to, port = next(each for each in probe.receiver.addresses if ":" not in each), 80
        return oracle.allowed(truth, probe.address, to, probe.protocol, port)

    def verdicts(self, probes):
        truth = self.truth()
        return {probe: self.allowed(truth, probe) for probe in probes}

    # -- events --------------------------------------------------------------------------------------------------------

    def event(self):
        """Choose a random event. Return (its name, its function)."""
        choices = [self.relabel, self.change_policy, self.burst, self.reuse_address, self.move_namespace,
                   self.change_node, self.restart, self.kill, self.change_while_down, self.flush]
        return self.rng.choice(choices)

    def relabel(self):
        """Change the labels of a pod that has a Pod object."""
        keys = [key for key, (_, documented) in self.networks.items() if documented]
        if keys:
            pod = self.node.pods[self.rng.choice(keys)]
            pod.labels = clusters.labels(self.rng)
            self.node.put(clusters.pod_document(pod, "here", podIP=pod.addresses[0],
                                                podIPs=[{"ip": each} for each in pod.addresses]))
            self.node.publish()

    def change_policy(self):
        """Add, change or remove a policy."""
        choice = self.rng.random()
        if self.policies and choice < 0.4:
            self.node.drop_policy(self.policies.pop(self.rng.randrange(len(self.policies))))
        else:
            old = {"name": f"late{len(self.history)}"}
            if self.policies and choice < 0.7:
                old = self.rng.choice(self.policies)["metadata"]
            elif self.rng.random() < 0.6:
                old["namespace"] = self.rng.choice(clusters.NAMESPACES)
            new = (clusters.policy(self.rng, old["name"], old["namespace"], self.addresses()) if "namespace" in old else
                   clusters.cluster_policy(self.rng, old["name"], self.addresses()))
            self.policies = [each for each in self.policies if each["metadata"] != old] + [new]
            self.node.put(new)
        self.node.publish()

    def burst(self):
        """Make many changes, one after the other. Between two changes, some connections may be allowed."""
        for _ in range(20):
            self.rng.choice([self.relabel, self.change_policy])()

    def reuse_address(self):
        """Delete a pod. Give its address to another pod, in another namespace and with other labels."""
        old = self.rng.choice(list(self.endpoints))
        network = self.networks[old][0]
        self.remove_pod(old)
        self.node.begin_addresses_again()
        self.add_pod(network=network)

    def move_namespace(self):
        """Change the labels of a namespace."""
        name = self.rng.choice(clusters.NAMESPACES)
        self.namespaces[name] = clusters.namespaces(self.rng)[name]
        self.node.put({"kind": "Namespace", "apiVersion": "v1",
                       "metadata": {"name": name, "labels": self.namespaces[name]}})
        self.node.publish()

    def change_node(self):
        """Change the labels and addresses of a node."""
        self.put_node(self.rng.choice(list(NODES)))
        self.node.publish()

    def restart(self):
        self.node.end_agent()
        self.node.start_agent()

    def kill(self):
        """Kill the agent with SIGKILL while the agent reads and writes a change."""
        self.rng.choice([self.relabel, self.change_policy])()
        time.sleep(self.rng.choice([0, 0.002, 0.02]))
        self.node.end_agent(signal.SIGKILL)
        self.node.start_agent()

    def change_while_down(self):
        self.node.end_agent(self.rng.choice([signal.SIGTERM, signal.SIGKILL]))
        self.relabel()
        self.change_policy()
        self.node.start_agent()

    def flush(self):
        """Flush all tables, or delete the table of the policies. The rules of hostPorts are lost, too, because no
        program restores them."""
        words = self.rng.choice(FLUSHES)
        if "ruleset" in words:
            self.host_ports = {}
        subprocess.run(["nft", words], capture_output=True, check=False)        # the kernel may reject the command
