"""Make a node with the pods that attacks need, send frames, and find the frames that got through.

    victim    takes datagrams and connections on port 80 from `peer` only
    jailed    may send datagrams and connect to port 80 of `peer` only
    intruder  no policy selects this pod; it attacks `victim`
    peer, bystander: no policy selects these pods
    loose, mark: added without the plugin policy, for the control

Each network has a pod of each role, such as "victim@bridge". The control runs before the agent starts: if a frame does
not get from `loose` to `mark`, no policy is needed to stop this frame.
"""

import contextlib
import itertools
import socket
import time
from dataclasses import dataclass

from policy_attacks.forged import numbered
from policy_attacks.node import GATEWAY, NODE, SUBNETS, Node
from policy_attacks.oracle import Pod
from policy_attacks.prober import Endpoint, Prober
from unit.agent.policy import frames

from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import ip_json

ROLES = ("victim", "jailed", "intruder", "peer", "bystander")
CONTROL = ("loose", "mark")
ARRIVES_S, GRACE_S = 15, 0.15
END = b"the last frame.."


def role(name):
    return {"podSelector": {"matchLabels": {"role": name}}}


FROM_PEER = {"from": [{**role("peer")}], "ports": [{"protocol": each, "port": 80} for each in ("TCP", "UDP")]}
POLICIES = {"victim": {**role("victim"), "policyTypes": ["Ingress"], "ingress": [FROM_PEER]},
            "jailed": {**role("jailed"), "policyTypes": ["Egress"],
                       "egress": [{"to": FROM_PEER["from"], "ports": FROM_PEER["ports"]}]}}


def policy(name, spec):
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec}


@dataclass(frozen=True)
class Target:
    """The addresses of a pod or of the outside host that an attacker can use. gateway: the MAC of the node's link.
    network: the network's name, "" for the outside host."""

    name: str
    netns: str
    mac: str
    ip4: str
    ip6: str
    gateway: str
    bridged: bool
    network: str
    link: str = "eth0"

    def via(self, to):
        """Return the MAC to which this target sends frames for the target `to`."""
        return to.mac if self.bridged and to.network == self.network else self.gateway

    def other(self, number):
        """Return an address of the network that no pod has: (IPv4, IPv6)."""
        four, six = SUBNETS[self.network]
        return four.replace("0/24", str(number)), six.replace("/64", f"{number:x}")


class Arena:
    """A node with pods of each role on each network: `with Arena() as arena: arena.pods["victim@bridge"]`."""

    def __init__(self, networks):
        self.node, self.networks, self.pods, self.closing = Node("files"), networks, {}, contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as closing:
            closing.enter_context(self.node)
            self.prober = Prober()
            closing.callback(self.prober.close)
            self.outside = Endpoint("outside", self.node.outside, GATEWAY)
            self.host = Endpoint("node", None, NODE)
            self.prober.add(self.outside)
            self.prober.add(self.host)
            self.endpoints = {}
            self.pods["outside"] = self._outside()
            for network in self.networks:
                for name in CONTROL:
                    self.add(name, network)
            self.closing = closing.pop_all()
        return self

    def begin(self, agent="fastcni"):
        """Start the agent, and add the pods of the roles. agent: the Python module that runs the agent."""
        for name, spec in POLICIES.items():
            self.node.put(policy(name, spec))
        self.node.publish()
        self.node.start_agent(agent)
        for network in self.networks:
            for name in ROLES:
                self.add(name, network)

    def __exit__(self, *_):
        self.closing.close()

    def add(self, name, network, *, host_port=0, policed=None):
        """Add the pod of the role `name` to a network."""
        pod = Pod("default", f"{name}-{network}", {"role": name})
        chain = self.node.chain(network)
        plugins = chain if (name not in CONTROL if policed is None else policed) else chain[:-1]
        endpoint = self.node.add_pod(pod, network, documented=False, plugins=plugins, host_port=host_port)
        self.endpoints[f"{name}@{network}"] = endpoint
        self.prober.add(endpoint)
        with Inside(endpoint.netns):
            (link,) = ip_json("link", "show", "dev", "eth0")
        ip4, ip6 = endpoint.addresses
        self.pods[f"{name}@{network}"] = Target(name, endpoint.netns, link["address"], ip4, ip6,
                                                self._gateway(network, link), network.startswith("bridge"), network)

    def _outside(self):
        """Return the outside host, which is connected to the node's uplink."""
        with Inside(self.node.outside):
            (theirs,) = ip_json("link", "show", "dev", "ext0")
        (ours,) = ip_json("link", "show", "dev", "up0")
        return Target("outside", self.node.outside, theirs["address"], *GATEWAY, ours["address"], False, "", "ext0")

    def _gateway(self, network, link):
        """Return the MAC of the bridge, or of the host end of the pod's veth pair."""
        if network.startswith("bridge"):
            (found,) = ip_json("link", "show", "dev", self.node.chain(network)[0]["bridge"])
            return found["address"]
        return next(each["address"] for each in ip_json("link", "show") if each["ifindex"] == link["link_index"])

    def got_through(self, items):
        """Send frames from pods. Return, for each item, the titles of the frames that the receiver's link received.

        items: [({title: [frame, ...]}, sender, receiver)]. Only the last frame of each list counts; the receiver
        recognizes this frame by its MARK or by its bytes. After the frames, the node sends a datagram that always
        arrives.
        """
        numbers = itertools.count()
        wanted = [{title: numbered(each[-1], next(numbers)) for title, each in sequences.items()}
                  for sequences, _, _ in items]
        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(self.listener(receiver)) for _, _, receiver in items]
            for (sequences, sender, _), last in zip(items, wanted, strict=True):
                for title, each in sequences.items():
                    frames.send(sender.netns, *each[:-1], last[title])
            run("ip", "neigh", "flush", "all")          # forged frames may have changed the node's neighbour entries
            for _, _, receiver in items:
                self.announce(receiver)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
                    it.sendto(END, (receiver.ip4, 9))
            until = time.monotonic() + GRACE_S
            return [self.read(it, last, until) for it, last in zip(listeners, wanted, strict=True)]

    def announce(self, pod):
        """Let the bridge learn the port of the pod's MAC again, because a forged frame may have moved the MAC to
        another port."""
        frames.send(pod.netns, frames.ipv4(pod.mac, pod.ip4, NODE[0], frames.udp(b"here I am"), pod.gateway),
                    link=pod.link)

    def listener(self, pod):
        with Inside(pod.netns):
            it = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(frames.ETH_P_ALL))
            it.bind((pod.link, frames.ETH_P_ALL))
        return it

    def read(self, listener, wanted, until):
        """Wait until the datagram END has arrived and the time `until` has passed. Return the titles of the received
        frames."""
        limit, found, ended = time.monotonic() + ARRIVES_S, set(), False
        while (left := (until if ended else limit) - time.monotonic()) > 0 or ended:
            listener.settimeout(max(left, 0))
            try:
                data, source = listener.recvfrom(4096)
            except (TimeoutError, BlockingIOError):
                break
            if source[2] != frames.PACKET_OUTGOING:
                ended = ended or END in data
                found |= {title for title, frame in wanted.items() if recognized(data, frame)}
        if not ended:
            raise RuntimeError("the node's own datagram did not reach the pod")
        return found


def recognized(data, frame):
    """Return whether the received bytes are this frame. The node may have changed the frame's headers."""
    number = frame[-16:]
    return number in data if number.startswith(b"frame ") else data[14:] == frame[14:]
