"""A World without sockets, files and real time. It records the client's actions, and a test sets its clock."""

from unit.dhcp.server import NAMES

from fastcni.dhcp import packets
from fastcni.dhcp.client import Client, LinkGone
from fastcni.dhcp.flags import Flags
from fastcni.dhcp.lease import Owner
from fastcni.kit.dhcp.dhcp_conf import client_id

MAC, SERVER, SERVER_MAC = bytes.fromhex("020000000001"), bytes((10, 0, 0, 1)), bytes.fromhex("0200000000fe")
ADDRESS, OTHER = bytes((10, 0, 0, 7)), bytes((10, 0, 0, 8))


class Log:
    """A log that keeps (event, fields) of each call in `lines`."""

    def __init__(self):
        self.lines = []

    def write(self, event, **fields):
        self.lines.append((event, fields))

    debug = info = warning = error = exception = write

    def has(self, event):
        return any(event == one for one, _ in self.lines)


class Clock:
    """A World whose clock a test sets. done: the client's actions, in order. sent: the messages. kept: the Lease that
    the client's file would contain. answers: the answers to waiting plugins. gone: whether the pod's link is missing.
    broken: an OSError for each send. unbound: an OSError for the socket at the address."""

    def __init__(self, broadcast=False):
        self.flags, self.log = Flags(), Log()
        self.flags.broadcast = broadcast
        self.time, self.done, self.sent, self.answers = 1000.0, [], [], []
        self.kept, self.gone = None, False
        self.broken = self.unbound = None

    def now(self):
        return self.time

    def random(self):
        return 0.5

    def schedule(self, client, when):
        client.timer = when

    def _open(self, client, kind):
        if self.gone:
            raise LinkGone('error looking up "eth0": Link not found')
        client.mac, client.sock = MAC, kind
        client.configured = client.lease is not None and not self.unbound

    def listen(self, client):
        self._open(client, "raw")

    def listen_arp(self, client):
        self._open(client, "arp")

    def listen_from_address(self, client):
        if self.unbound:
            raise self.unbound
        self._open(client, "udp")

    def send(self, client, data):
        if self.broken:
            raise self.broken
        message = packets.decode(data)
        self.sent.append(message)
        self.done.append(f"{NAMES[message.kind]} {client.sock}")

    def probe(self, client, wanted):
        self.done.append("probe")

    def quiet(self, client):
        client.sock = None

    def keep(self, client):
        self.kept = client.lease

    def assign(self, client):
        self.done.append("assign")

    def unassign(self, client):
        self.done.append("unassign")

    def settle(self, client, error=""):
        self.answers += [error] * len(client.waiters)
        client.waiters = []

    def drop(self, client):
        self.done.append("drop")

    def vanished(self, client, why):
        self.settle(client, why)
        self.done.append("vanished")


def owner(**keys):
    given = {"provide": {}, "request": bytes((3, 1)), "priority": 0} | keys
    return Owner(client_id("c1", "net", "eth0"), "c1", "net", "eth0", "/run/netns/c1", 1, given["provide"],
                 given["request"], given["priority"])


def new_client(clock, **keys):
    client = Client(owner(**keys), clock)
    client.waiters.append("plugin")
    return client


def answer(client, kind, *, address=ADDRESS, server=SERVER, seconds=100, **options):
    """Let the client receive a message of the server. options: values of DHCP options, such as o58 for the option
    58."""
    found = {packets.MESSAGE_TYPE: bytes((kind,)), packets.SERVER_ID: server}
    if kind != packets.NAK:
        found |= {packets.LEASE_TIME: seconds.to_bytes(4, "big"), packets.SUBNET_MASK: b"\xff\xff\xff\0",
                  packets.ROUTERS: SERVER}
    found |= {int(name[1:]): content for name, content in options.items()}
    client.received(packets.Message(packets.BOOTREPLY, client.xid, MAC, found, yiaddr=address), SERVER_MAC)


def pass_to(clock, client, when=None):
    """Set the clock to `when`, or to the client's timer, and run the timer."""
    clock.time = client.timer if when is None else when
    client.due()


def bind(clock, client, **keys):
    """Let the client acquire a lease."""
    client.acquire()
    answer(client, packets.OFFER, **keys)
    answer(client, packets.ACK, **keys)
    while client.state == "probing":
        pass_to(clock, client)
    assert client.state == "bound"
