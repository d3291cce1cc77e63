"""A node in the test's namespace, pods on a bridge, a pod with a separate link, and the pods' connections."""

import contextlib
import errno
import fcntl
import select
import socket
import struct
import time

from unit.agent.policy.clusters import make_pod

from fastcni._netlink import Batch
from fastcni.kernel import conntrack, sysctl, uapi, wire
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

TCP, UDP, SCTP = 6, 17, 132
PORTS = (80, 81, 90)
ON_BRIDGE = ("a", "b", "c")
ADDRESSES = {"a": ("10.0.0.1", "fd00::1"), "b": ("10.0.0.2", "fd00::2"), "c": ("10.0.0.3", "fd00::3"),
             "d": ("10.0.4.4", "fd00:4::4")}
FORWARDING = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
NODE = ("10.0.0.254", "fd00::fe")
ROUTED_NODE = ("10.0.4.254", "fd00:4::fe")
ALLOWED_S, GRACE_S = 10, 0.05
SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40        # linux/sockios.h, linux/if.h


def batch(netns, *lines):
    """Run `ip -batch` with these lines."""
    with Inside(netns):
        run("ip", "-batch", "-", stdin="\n".join(lines))


def up(link, addresses):
    """Return the ip commands that add IPv4 and IPv6 addresses to a link and set the link up."""
    return [*(f"addr add {address}/{'64 nodad' if ':' in address else 24} dev {link}" for address in addresses),
            f"link set {link} up"]


def await_running(*links):
    """Wait until each link (namespace, name) can send. After a veth's peer comes up, the veth drops packets until a
    worker of the kernel has run: 0.4 s on a busy machine."""
    for netns, name in links:
        with Inside(netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
            request = struct.pack("16sH14x", name.encode(), 0)
            assert eventually(lambda it=it, request=request: struct.unpack_from(
                "H", fcntl.ioctl(it, SIOCGIFFLAGS, request), 16)[0] & IFF_RUNNING), name


def mac_of_pod(name):
    return f"02:00:00:00:00:{ord(name):02x}"


def port_of(name):
    """Return the name of the host's end of a pod's link. Without a Node, make a veth pair without a pod."""
    if f"port-{name}" not in [link for _, link in socket.if_nameindex()]:
        run("ip", "link", "add", f"port-{name}", "type", "veth", "peer", "name", f"peer-{name}")
    return f"port-{name}"


class Node:
    """A bridge and pods. names: {pod: namespace}. Pods listen on PORTS by TCP and UDP, over both families."""

    def __init__(self, make_netns):
        for name in FORWARDING:
            sysctl.write(name, "1")
        self.names = {name: make_netns() for name in ADDRESSES}
        for netns in (None, *self.names.values()):
            with Inside(netns):             # link-local addresses are usable immediately
                sysctl.write("net/ipv6/conf/default/accept_dad", "0")
        self.listeners, self.streams, self.open = {}, [], contextlib.ExitStack()
        on_node, in_pods = ["link add br0 type bridge", *up("br0", NODE)], {}
        for name, netns in self.names.items():
            bridged = name in ON_BRIDGE
            gateways = NODE if bridged else ROUTED_NODE
            on_node += [f"link add port-{name} {'master br0' if bridged else ''} type veth peer eth0 "
                        f"address {mac_of_pod(name)} netns {netns}",
                        *up(f"port-{name}", () if bridged else gateways)]
            in_pods[netns] = ["link set lo up", *up("eth0", ADDRESSES[name]),
                              *(f"route add default via {gateway}" for gateway in gateways)]
        batch(None, *on_node)
        for netns, lines in in_pods.items():
            batch(netns, *lines)
        for name in self.names:
            self.listen(name)
        await_running(*((None, f"port-{name}") for name in self.names),
                      *((netns, "eth0") for netns in self.names.values()))

    def listen(self, name):
        with Inside(self.names[name]):
            for port in PORTS:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    it = self.open.enter_context(socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK))
                    it.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                    it.bind(("::", port))
                    if kind == socket.SOCK_STREAM:
                        it.listen(64)
                    self.listeners[name, kind, port] = it

    def close(self):
        self.open.close()

    def connect(self, source, address, port, kind=socket.SOCK_STREAM):
        """Return a socket that has begun to connect, or has sent a datagram. source: a pod, or None for the node."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with Inside(self.names.get(source)):
            it = self.open.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK))
        try:
            it.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                it.send(b"hello")
        except OSError as e:
            assert e.errno == errno.EINPROGRESS, e
        return it

    def reached(self, asked, expected):
        """Return the connections that are established. asked, expected: {(source, address, protocol, port)}. Expected
        connections get more time."""
        clients = {one: self.connect(one[0], one[1], one[3],
                                     socket.SOCK_DGRAM if one[2] == UDP else socket.SOCK_STREAM) for one in asked}
        until, grace, found = time.monotonic() + ALLOWED_S, GRACE_S, set()
        while time.monotonic() < until:
            if expected <= found:
                if not grace:
                    break
                time.sleep(grace)
                grace = 0
            self.answer()
            readable = {it.fileno(): one for one, it in clients.items() if one not in found}
            poll = select.poll()
            for one, it in clients.items():
                if one not in found:
                    poll.register(it, select.POLLIN if one[2] == UDP else select.POLLOUT)
            for descriptor, _ in poll.poll(5):
                one = readable[descriptor]
                error = clients[one].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                assert not error, (one, errno.errorcode[error])
                found.add(one)
        for it in clients.values():
            it.close()
        return found

    def answer(self):
        """Answer the datagrams that the pods' sockets have received."""
        for (_, kind, _), it in self.listeners.items():
            if kind == socket.SOCK_DGRAM:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        it.sendto(*it.recvfrom(64))

    def forget_flows(self):
        """Delete all flows from conntrack. A new socket with the port of an earlier socket would continue the earlier
        flow."""
        with contextlib.closing(wire.open_socket(uapi.NETLINK_NETFILTER)) as sock:
            for flow in conntrack.list_flows(sock):
                batch = Batch()
                conntrack.delete(batch, flow)
                wire.attempt(sock, batch)

    def accept(self, name, port=80):
        """Return the other end of the newest connection to a pod."""
        it = self.listeners[name, socket.SOCK_STREAM, port]
        select.select([it], [], [], ALLOWED_S)
        found = None
        with contextlib.suppress(BlockingIOError):
            while True:
                found = self.open.enter_context(it.accept()[0])
        return found


def pods(**labels):
    """Return the pods' records. labels: {pod: labels}."""
    return [make_pod(name, *ADDRESSES[name], labels=labels.get(name, {}),
                     ports={"http": 81 if name == "c" else 80}) for name in ADDRESSES]


def pairs(protocols=(TCP,), ports=(80, 81)):
    """Return all connections that the pods can try to each other."""
    return {(source, address, protocol, port) for source in ADDRESSES for name in ADDRESSES if name != source
            for address in ADDRESSES[name] for protocol in protocols for port in ports}


def packed(source, address):
    """Return source and destination of a pod's connection as packed addresses."""
    return read_ip(ADDRESSES[source][":" in address]), read_ip(address)

