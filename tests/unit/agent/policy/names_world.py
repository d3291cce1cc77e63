"""A node with pods, a DNS resolver and hosts outside the node. Tests send the pods' queries and read the answers."""

import contextlib
import select
import socket
import struct
import threading

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
from unit.agent.policy.pods import await_running, batch, up
from unit.agent.policy.test_cluster_policies import policy, rule

from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

RESOLVERS = ("10.9.0.53", "fd09::53")
OUTSIDE = ("10.9.0.1", "fd09::1")               # the resolver's host; the node has 10.9.0.254 and fd09::fe on this link
NODE_OUTSIDE = ("10.9.0.254", "fd09::fe")
HOSTS = ("10.20.0.0/16", "fd20::/64")           # each of these addresses belongs to the resolver's host
ALL = {"networks": ["0.0.0.0/0", "::/0"]}
TO_RESOLVERS = rule("Accept", {"networks": ["10.9.0.53/32", "fd09::53/128"]}, key="to", name="dns", protocols=[
    {protocol: {"destinationPort": {"number": 53}}} for protocol in ("udp", "tcp")])
ANSWER_S = 5
SO_RCVBUFFORCE = 33             # asm-generic/socket.h


def host(number, family=4):
    """Return the address of a host outside the node."""
    return f"10.20.{number >> 8}.{number & 255}" if family == 4 else f"fd20::{number + 1:x}"


def named(*names, subject=None, more=(), name="c"):
    """Return a policy that lets pods reach only the resolvers and these names."""
    return policy(name, subject=subject or {"namespaces": {}}, egress=[
        TO_RESOLVERS, *([rule("Accept", {"domainNames": list(names)}, key="to", name="names")] if names else ()), *more,
        rule("Deny", ALL, key="to", name="rest")])


class World:
    """node: a Node of pods.py. The namespace `outside` serves port 80 of all hosts by TCP and UDP. packets: texts that
    `outside` received by UDP.

    records: {(name, "A" or "AAAA" or "CNAME"): (TTL, [texts])}. Without a record, the resolver answers NXDOMAIN.
    change: a function that gets each answer as a dns.message.Message. It returns a message or bytes to send, or None to
    send nothing. answers_from: the socket that answers by UDP.
    """

    def __init__(self, node, make_netns):
        self.node, self.netns, self.records, self.asked = node, make_netns(), {}, []
        self.change = self.answers_from = None
        self.packets = set()
        self.open, self.ended = contextlib.ExitStack(), False
        batch(None, f"link add outside type veth peer eth0 netns {self.netns}", *up("outside", NODE_OUTSIDE))
        batch(self.netns, "link set lo up", *up("eth0", (*OUTSIDE, *RESOLVERS)),
              *(f"route add local {hosts} dev lo" for hosts in HOSTS),
              *(f"route add default via {gateway}" for gateway in NODE_OUTSIDE))
        batch(None, *(f"route add {hosts} via {outside}" for hosts, outside in zip(HOSTS, OUTSIDE, strict=True)))
        await_running((None, "outside"), (self.netns, "eth0"))
        with Inside(self.netns):
            self.web = self.open.enter_context(socket.create_server(
                ("::", 80), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024))
            self.datagrams = self.open.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
            self.datagrams.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
            self.datagrams.bind(("::", 80))
            self.udp, self.tcp = [], []
            for address, family in zip(RESOLVERS, (socket.AF_INET, socket.AF_INET6), strict=True):
                self.udp.append(self.open.enter_context(socket.socket(family, socket.SOCK_DGRAM)))
                self.udp[-1].bind((address, 53))
                self.tcp.append(self.open.enter_context(socket.create_server((address, 53), family=family)))
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def close(self):
        self.ended = True
        self.thread.join()
        self.open.close()

    # -- the resolver --------------------------------------------------------------------------------------------------

    def put(self, name, *texts, ttl=300):
        """Set a name's addresses in the resolver, or the name that `name` is an alias of."""
        for text in texts:
            kind = "AAAA" if ":" in text else "A" if text[-1].isdigit() else "CNAME"
            self.records.setdefault((name, kind), (ttl, []))[1].append(text)

    def _serve(self):
        streams = []
        while not self.ended:
            for each in select.select([self.datagrams, *self.udp, *self.tcp, *streams], [], [], 0.05)[0]:
                if each is self.datagrams:
                    self.packets.add(each.recv(64).decode())
                elif each in self.tcp:
                    streams.append(self.open.enter_context(each.accept()[0]))
                elif each in self.udp:
                    data, client = each.recvfrom(65535)
                    if answer := self._answer(data, False):
                        (self.answers_from or each).sendto(answer, client)
                else:
                    size = each.recv(2, socket.MSG_WAITALL)
                    data = each.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL) if size else b""
                    if not data:
                        streams.remove(each)
                        each.close()
                    elif answer := self._answer(data, True):
                        each.sendall(len(answer).to_bytes(2, "big") + answer)

    def _answer(self, data, stream):
        query = dns.message.from_wire(data)
        it = dns.message.make_response(query)
        it.flags |= dns.flags.RA
        asked = query.question[0]
        name, kind = asked.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append((name, kind))
        while found := self.records.get((name, kind)) or self.records.get((name, "CNAME")):
            of = kind if (name, kind) in self.records else "CNAME"
            texts = found[1] if of != "CNAME" else [f"{text}." for text in found[1]]
            it.answer.append(dns.rrset.from_text(f"{name}.", found[0], "IN", of, *texts))
            if of == kind:
                break
            name = found[1][0]
        if not it.answer:
            it.set_rcode(3)
        changed = self.change(it, stream) if self.change else it
        return changed if isinstance(changed, bytes | None) else changed.to_wire(max_size=65535)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def ask(self, pod, name, kind="A", resolver=RESOLVERS[0], stream=False, seconds=ANSWER_S, query=None):
        """Return the answer to a pod's query as bytes, or None without an answer."""
        data = (query or dns.message.make_query(name, kind)).to_wire()
        family = socket.AF_INET6 if ":" in resolver else socket.AF_INET
        with Inside(self.node.names[pod]), socket.socket(
                family, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM) as it:
            it.settimeout(seconds)
            try:
                it.connect((resolver, 53))
                it.sendall(len(data).to_bytes(2, "big") + data if stream else data)
                if not stream:
                    return it.recv(65535)
                size = it.recv(2, socket.MSG_WAITALL)
                return it.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL) or None
            except OSError:
                return None

    def told(self, pod, name, kind="A", **how):
        """Return the addresses in the answer to a pod's query, or None without an answer."""
        data = self.ask(pod, name, kind, **how)
        if data is None:
            return None
        message = dns.message.from_wire(data)
        return sorted(record.address for each in message.answer for record in each if each.rdtype in (1, 28))

    def learns(self, pod, name, address, kind="A"):
        """Repeat a pod's query, as resolvers do, until the answer has the address and the pod can connect to it. Return
        whether this has happened. If the agent pauses for more than a second, as on a busy machine, the forwarder drops
        queries. After two seconds the kernel redirects no query, and the answer opens no address."""
        return eventually(lambda: self.told(pod, name, kind, seconds=1) == [address] and
                          self.connects(pod, address))

    def send(self, pod, address, text):
        """Send one UDP packet to port 80 of a host."""
        with Inside(self.node.names[pod]), socket.socket(
                socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as it:
            it.sendto(text.encode(), (address, 80))

    def connection(self, pod, address, seconds=10):
        """Open a connection of a pod to port 80 of a host."""
        with Inside(self.node.names[pod]):
            return socket.create_connection((address, 80), seconds)

    def connects(self, pod, address, seconds=0.9):
        """Return whether a pod can connect to port 80 of a host by its first packet. TCP would repeat the packet after
        a second."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with Inside(self.node.names[pod]), socket.socket(family) as it:
            it.settimeout(seconds)
            try:
                it.connect((address, 80))
            except OSError:
                return False
            it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return True
