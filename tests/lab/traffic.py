"""Send traffic between namespaces: run a server, ask it from a client, and return the source address that the server
sees.

    with listen(pod, 80, "tcp"):
        assert ask(external, "198.51.100.1", 8080) == "198.51.100.9"

A server answers each request with the client's address. The server is a thread of the test; its sockets stay in the
namespace in which they were opened. "sctp" uses raw sockets that send and receive one INIT chunk, so the kernel needs
SCTP only in conntrack.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time

from lab.node import AGAIN, Inside, ip_batch, set_sysctl

KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
SCTP = 132
PAUSE = 0.02                            # seconds between a rejected datagram and the next datagram


def families(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def add_external(pod_netns, link="up0", net4="198.51.100", net6="2001:db8:", *, has_default_route=False):
    """Add a network namespace outside the node, and connect it by the veth `link` of the node. Return the namespace's
    name.

    The node's addresses are net4.1 and net6:1, the namespace's are net4.9 and net6:9.
    """
    name = pod_netns()
    ip_batch(f"link add {link} type veth peer name ext0 netns {name}", *_end(link, net4, net6, 1))
    gateways = (f"{net4}.1", f"{net6}:1") if has_default_route else ()
    with Inside(name):
        ip_batch(*_end("ext0", net4, net6, 9), *(f"route add default via {gateway}" for gateway in gateways))
    return name


def _end(name, net4, net6, number):
    """Return the commands of ip(8) that give a link its addresses, and set the link up."""
    return (f"addr add {net4}.{number}/24 dev {name}", f"addr add {net6}:{number}/64 dev {name} nodad",
            f"link set {name} up")


@contextlib.contextmanager
def listen(netns, port, protocol="tcp", address="::"):
    """Run a server in a namespace (None: the node). With the address :: the server serves both families."""
    with Inside(netns):
        if protocol == "sctp":
            server = _SctpServer(port)
        else:
            sock = socket.socket(families(address), KINDS[protocol])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            server = _Server(sock)
    with server:
        yield server


class _Thread:
    """A thread that calls serve() for each readable socket of `self.socks`, until close() is called."""

    def __enter__(self):
        self.wake, self.waker = os.pipe()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        os.close(self.waker)
        self.thread.join()
        os.close(self.wake)
        for sock in self.socks:
            sock.close()

    def _run(self):
        while True:
            readable, _, _ = select.select([self.wake, *self.socks], [], [])
            if self.wake in readable:
                return
            for sock in readable:
                with contextlib.suppress(OSError):      # the client has closed its socket
                    self.serve(sock)


class _Server(_Thread):
    def __init__(self, sock):
        self.socks = [sock]
        if sock.type == socket.SOCK_STREAM:
            sock.listen()

    def serve(self, sock):
        if sock.type == socket.SOCK_STREAM:
            connection, source = sock.accept()
            with connection:
                connection.sendall(plain(source[0]).encode())
        else:
            _, source = sock.recvfrom(100)
            sock.sendto(plain(source[0]).encode(), source)


def plain(address):
    """Return an address as text. An IPv4-mapped IPv6 address becomes an IPv4 address."""
    return address.removeprefix("::ffff:")


def ask(netns, address, port, protocol="tcp", *, wait=5.0, source=None):
    """Ask a server from a namespace (None: the node). Return the source address that the server sees, or None if no
    answer arrives within `wait` seconds. source: (address, port) of the client. The client repeats a datagram, because
    the first one may be lost during neighbour discovery."""
    with Inside(netns):
        family = families(address)
        client = _raw_sctp(family) if protocol == "sctp" else socket.socket(family, KINDS[protocol])
    with client, contextlib.suppress(OSError):
        if source:
            client.bind(source)
        if protocol == "tcp":
            client.settimeout(wait)
            client.connect((address, port))
            return client.recv(100).decode() or None
        client.settimeout(min(wait, AGAIN))
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return _ask_once(client, address, port, protocol)
            time.sleep(PAUSE)                   # an ICMP error returns immediately
    return None


def is_refused(netns, address, port, source):
    """Send datagrams from a namespace, and return whether the host answers that no socket has the port. So a datagram
    has reached the host. source: (address, port) of the client."""
    with Inside(netns):
        client = socket.socket(families(address), socket.SOCK_DGRAM)
    with client:
        client.bind(source)
        client.settimeout(AGAIN)
        for _ in range(50):
            try:
                _ask_once(client, address, port, "udp")
            except ConnectionRefusedError:
                return True
            except OSError:
                time.sleep(PAUSE)               # neighbour discovery may lose the first datagrams
    return False


def _ask_once(client, address, port, protocol):
    if protocol == "udp":
        client.connect((address, port))
        client.send(b"who am I?")
        return client.recv(100).decode()
    client.sendto(_sctp_packet(40000, port, 0, 1), (address, 0))
    while True:
        *found, text = _read_sctp(client)
        if found == [address, port, 40000, 2]:
            return text


# Client and server exchange SCTP packets (RFC 9260). A packet has a common header and one chunk, INIT or INIT ACK, with
# an initiate tag.

def _sctp_packet(source, destination, tag, chunk_type, text=""):
    """Return an SCTP packet whose chunk has `text` after the fields of RFC 9260."""
    chunk = struct.pack("!BBHIIHHI", chunk_type, 0, 20 + len(text), 1, 65535, 1, 1, 1) + text.encode()
    packet = struct.pack("!HHII", source, destination, tag, 0) + chunk
    return packet[:8] + struct.pack("<I", crc32c(packet)) + packet[12:]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _raw_sctp(family):
    return socket.socket(family, socket.SOCK_RAW, SCTP)


def _read_sctp(sock):
    """Receive an SCTP packet. Return (source address, source port, destination port, chunk type, text). Raises
    OSError."""
    data, source = sock.recvfrom(2000)
    if sock.family == socket.AF_INET:
        data = data[4 * (data[0] & 15):]
    sport, dport = struct.unpack("!HH", data[:4])
    return source[0], sport, dport, data[12], data[32:].decode()


class _SctpServer(_Thread):
    """A server that answers INIT with INIT ACK."""

    def __init__(self, port):
        self.port, self.socks = port, [_raw_sctp(family) for family in (socket.AF_INET, socket.AF_INET6)]

    def serve(self, sock):
        source, sport, dport, chunk, _ = _read_sctp(sock)
        if (dport, chunk) == (self.port, 1):
            sock.sendto(_sctp_packet(self.port, sport, 1, 2, source), (source, 0))


def no_bridge_netfilter():
    """Make bridged frames bypass iptables and nftables, as on a node without br_netfilter."""
    for name in ("iptables", "ip6tables"):
        with contextlib.suppress(FileNotFoundError):
            set_sysctl(f"net/bridge/bridge-nf-call-{name}", "0")
