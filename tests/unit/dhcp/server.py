"""A DHCP server for tests, with faults that real servers seldom have: silence, NAK, bad packets.

The server is a thread with a packet socket in a network namespace.
"""

import os
import select
import socket
import struct
import threading
import uuid

from fastcni.dhcp import frames, packets
from fastcni.kernel import netns
from fastcni.testing.namespaces import add_netns, delete_netns, run

NAMES = dict(enumerate(("discover", "offer", "request", "decline", "ack", "nak", "release"), 1))     # of RFC 2132, 9.6
SERVER = "10.77.0.1"
ETH_P_IP = 0x0800


def ip(name, *commands):
    """Run ip commands in a network namespace."""
    run("ip", "-batch", "-", stdin="\n".join(commands), netns=name)


class Network:
    """A namespace with a bridge that has 10.77.0.1/16, and pods on that bridge. Use it as `with Network() as
    network:`."""

    def __enter__(self):
        self.names, self.count = [], 0
        self.host = self.netns("server")
        # Without a port that is up, the bridge is down, and a server may skip it.
        ip(self.host, "link add br0 type bridge forward_delay 0", f"addr add {SERVER}/16 dev br0",
           "link add b0 type veth peer name b1", "link set b0 master br0",
           *(f"link set {link} up" for link in ("br0", "lo", "b0", "b1")))
        return self

    def __exit__(self, *_):
        for name in list(self.names):
            self.delete(name)

    def netns(self, role):
        name = f"fcni-dhcp-{role}-{uuid.uuid4().hex[:8]}"
        add_netns(name)
        self.names.append(name)
        return name

    def pod(self):
        """Return the path of a new namespace whose link eth0 is down."""
        name = self.netns("pod")
        self.count += 1
        ip(self.host, f"link add p{self.count} type veth peer name eth0 netns {name}",
           f"link set p{self.count} master br0 up")
        return f"/run/netns/{name}"

    def delete(self, name):
        """Delete a namespace, by its name or path."""
        self.names.remove(os.path.basename(name))
        delete_netns(os.path.basename(name))


def addresses(path):
    """Return the IPv4 addresses of eth0 in a pod, with prefix length."""
    out = run("ip", "-4", "-o", "addr", "show", "dev", "eth0", netns=os.path.basename(path))
    return [line.split()[3] for line in out.splitlines()]


class Server:
    """A DHCP server for `with Server(network) as server:`. Its addresses begin with 10.77.1.0.

    options: {code: content} of each answer. seconds: the time of leases. silent: whether the server never answers.
    refuses: whether the server answers each REQUEST with NAK. leases: {client id: packed address}. heard: [(kind,
    Message)], in the order of arrival. ways: the IP addresses (source, destination) of these messages.
    """

    def __init__(self, network, seconds=3600, **options):
        self.network, self.seconds = network, seconds
        self.options = {packets.SUBNET_MASK: b"\xff\xff\0\0", packets.ROUTERS: socket.inet_aton(SERVER),
                        **{int(name[1:]): content for name, content in options.items()}}
        self.leases, self.heard, self.silent, self.refuses = {}, [], False, False
        self.ways = []
        self.changed = threading.Condition()
        self.next = 0x0A4D0100

    def __enter__(self):
        fd = netns.open_path(f"/run/netns/{self.network.host}")
        with netns.inside(fd):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
            self.sock.bind(("br0", ETH_P_IP))
        os.close(fd)
        self.end, self.ended = os.pipe()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        os.close(self.ended)
        self.thread.join()
        self.sock.close()
        os.close(self.end)

    def wait_for(self, kind, count=1, seconds=20):
        """Wait until `count` messages of a kind have arrived, and return them."""
        def found():
            return [message for one, message in self.heard if one == kind]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, seconds), [one for one, _ in self.heard]
            return found()

    def _run(self):
        while self.end not in select.select([self.sock, self.end], [], [])[0]:
            packet, source = self.sock.recvfrom(65535)
            start = (packet[0] & 0xF) * 4
            if source[2] == socket.PACKET_OUTGOING or packet[9] != 17 or packet[start + 2:start + 4] != b"\0\x43":
                continue
            message = packets.decode(frames.payload(packet, False))
            answer = None if self.silent else self._answer(message)
            with self.changed:
                self.heard.append((NAMES[message.kind], message))
                self.ways.append((socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])))
                self.changed.notify_all()
            if answer:
                self._send(answer, source[4])

    def _answer(self, message):
        key = message.options[packets.CLIENT_ID]
        if message.kind == packets.RELEASE:
            self.leases.pop(key, None)
        if message.kind == packets.DECLINE:
            self.leases.pop(key, None)
        if message.kind not in (packets.DISCOVER, packets.REQUEST):
            return None
        wanted = message.options.get(packets.ADDRESS, message.ciaddr)
        if message.kind == packets.REQUEST and (self.refuses or self.leases.get(key) != wanted):
            return self._message(message, packets.NAK, packets.NO_ADDRESS, {})
        if key not in self.leases:
            self.leases[key] = struct.pack("!I", self.next)
            self.next += 1
        kind = packets.OFFER if message.kind == packets.DISCOVER else packets.ACK
        return self._message(message, kind, self.leases[key],
                             {packets.LEASE_TIME: struct.pack("!I", self.seconds)} | self.options)

    def _message(self, message, kind, address, options):
        options = {packets.MESSAGE_TYPE: bytes((kind,)), packets.SERVER_ID: socket.inet_aton(SERVER)} | options
        return packets.Message(packets.BOOTREPLY, message.xid, message.chaddr, options, yiaddr=address)

    def _send(self, message, mac):
        target = message.yiaddr if message.yiaddr != packets.NO_ADDRESS else frames.EVERYWHERE
        packet = bytearray(frames.to_server(packets.encode(message), socket.inet_aton(SERVER), target))
        # the two ports change places, so the checksum stays the same
        packet[20:24] = struct.pack("!HH", frames.SERVER_PORT, frames.CLIENT_PORT)
        self.sock.sendto(bytes(packet), ("br0", ETH_P_IP, 0, 0, mac))
