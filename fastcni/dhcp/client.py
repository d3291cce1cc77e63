"""Run the DHCP client of one pod's lease, with a method for each transition of client_states.py.

The client has no socket, clock or file of its own: it uses the methods of `world`, which is the engine or a test.
"""

from __future__ import annotations

from fastcni.dhcp import client_states as states
from fastcni.dhcp import packets
from fastcni.dhcp.lease import Lease, Owner, changed_options, read_lease
from fastcni.kit.dhcp import rpc
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import Protocol

    from fastcni.daemon.log import Logger
    from fastcni.dhcp.flags import Flags

    Waiter = Callable[[str, "Client"], object]    # called with (why there is no lease or "", the client)

    class World(Protocol):
        """The methods by which a client uses its environment. Times are seconds of CLOCK_BOOTTIME."""

        flags: Flags
        log: Logger

        def now(self) -> float: ...
        def random(self) -> float:
            """Return a random number from 0.0 to 1.0."""
        def schedule(self, client: Client, when: float) -> None:
            """Call client.due() at the time `when`, which replaces an earlier schedule."""
        def listen(self, client: Client) -> None:
            """Open a packet socket for client.xid; set client.mac and client.configured. Raises LinkGone, OSError."""
        def listen_from_address(self, client: Client) -> None:
            """Open a packet socket like listen(), and a UDP socket at the lease's address to send from. Raises
            LinkGone, OSError, also if the link does not have that address."""
        def listen_arp(self, client: Client) -> None:
            """Open a packet socket that receives ARP on the pod's link. Raises LinkGone, OSError."""
        def send(self, client: Client, data: bytes) -> None:
            """Send a DHCP message by the open socket: from the lease's address to the server if there is a UDP socket,
            otherwise as a broadcast."""
        def probe(self, client: Client, wanted: bytes) -> None:
            """Send an ARP probe by the open socket."""
        def quiet(self, client: Client) -> None:
            """Close the client's open socket, if any."""
        def keep(self, client: Client) -> None:
            """Write the lease to its file."""
        def assign(self, client: Client) -> None:
            """Set the lease's address and routes on the pod's link."""
        def unassign(self, client: Client) -> None:
            """Remove the lease's address from the pod's link."""
        def settle(self, client: Client, error: str = "") -> None:
            """Answer the plugins that wait for the lease."""
        def drop(self, client: Client) -> None:
            """Remove the client, which has no lease, from the engine's clients."""
        def vanished(self, client: Client, why: str) -> None:
            """Handle that the pod's namespace or link no longer exists: release the lease, and forget the client."""

QUICK_WAITS_S = 0.5, 1.0, 2.0, 4.0      # the first waits are short, because a new link may drop the first packets
REQUEST_TRIES = 4               # number of REQUESTs; after them the client sends DISCOVER again
REBOOT_TRIES = 3
PROBES, PROBE_INTERVAL_S = 2, 0.1       # RFC 5227 waits 6 s in all, too long for a pod's start
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # pauses after a NAK or a conflict
MAX_MESSAGE_BYTES = 1500        # the value of option 57, Maximum DHCP Message Size


class LinkGone(Exception):
    """The pod's namespace or link does not exist. The exception has the error text of the reference plugin."""


class Ear:
    """The open packet socket of a client. arp: whether the socket receives ARP. sender: the UDP socket to send from;
    None: send from the packet socket."""

    __slots__ = ("arp", "sender", "sock")

    def __init__(self, sock: socket, sender: socket | None = None, *, arp: bool = False) -> None:
        self.sock, self.sender, self.arp = sock, sender, arp


class Client:
    """The DHCP client of one attachment.

    owner     the attachment that has the lease
    lease     the pod's lease, or None
    offered   the acknowledged Lease whose address is not yet probed
    wanted    (address, server) of the open REQUEST, packed
    mac       the MAC of the pod's link, b"": not known yet
    configured    whether the pod's link had the lease's address when the socket was opened
    shared    whether other links on the network have the same MAC (ipvlan): servers must broadcast
    xid       the transaction id of the open exchange
    tries     number of packets in the exchange after the first
    sent      when the exchange's first packet was sent
    began     when the current attempt to acquire a lease began, None: no attempt
    failures  number of consecutive NAKs and conflicts
    lost      whether the pod has lost its lease: the daemon, not a plugin, then sets the next lease's address
    sock      the open socket, or None; waiters: callbacks of waiting plugins; timer: when to call due()
    """

    __slots__ = ("began", "configured", "failures", "lease", "lost", "mac", "offered", "owner", "sent", "shared",
                 "sock", "state", "timer", "tries", "waiters", "wanted", "world", "xid")

    def __init__(self, owner: Owner, world: World, lease: Lease | None = None) -> None:
        self.owner, self.world, self.lease = owner, world, lease
        self.state, self.mac = states.INIT, lease.mac if lease else b""
        self.shared = self.configured = False
        self.offered: Lease | None = None
        self.wanted = packets.NO_ADDRESS, packets.NO_ADDRESS
        self.xid = self.tries = self.failures = 0
        self.sent, self.timer = 0.0, float("inf")
        self.began: float | None = None
        self.lost = False
        self.sock: Ear | None = None
        self.waiters: list[Waiter] = []

    # Events ----------------------------------------------------------------------------------------

    def event(self, kind: str, message: packets.Message | Lease | None = None) -> None:
        """Make the transition for an event, if TABLE has a row for the event. message: the message of an OFFER or NAK,
        the Lease of an ACK."""
        row = states.TABLE.get((self.state, kind))
        if row is None:
            return
        self.state, action = row
        try:
            getattr(self, action)(message)
        except LinkGone as e:
            self.world.vanished(self, str(e))

    def due(self) -> None:
        """Handle the expiry of the client's timer."""
        self.timer = float("inf")
        self.event(states.DUE)

    def received(self, message: packets.Message, source_mac: bytes) -> None:
        """Handle a received DHCP message. Messages of other exchanges, and messages that are not from a server, are
        ignored."""
        if message.op != packets.BOOTREPLY or message.xid != self.xid or message.chaddr != self.mac:
            return
        server = packets.address_of(message.options.get(packets.SERVER_ID, b""))
        if self.wanted[1] not in (packets.NO_ADDRESS, server) and self.state == states.REQUESTING:
            return                      # the REQUEST went to another server
        if message.kind == packets.OFFER and packets.NO_ADDRESS not in (server, message.yiaddr):
            self.event(states.OFFER, message)
        elif message.kind == packets.NAK:
            self.event(states.NAK, message)
        elif message.kind == packets.ACK and (self.state, states.ACK) in states.TABLE:
            self._acknowledged(message, source_mac)

    def _acknowledged(self, message: packets.Message, source_mac: bytes) -> None:
        before = self.lease
        try:
            lease = read_lease(message, source_mac or (before.server_mac if before else b""), self.sent)
        except packets.PacketError as e:
            self.world.log.warning("lease_unusable", lease=self.owner.name, why=str(e))
            self._fail(str(e))
            return
        if lease.server == packets.NO_ADDRESS and before:
            lease.server = before.server
        if before and lease.address != before.address:
            self.event(states.NAK)      # the server gives another address than the lease's
        else:
            self.event(states.ACK, lease)

    def _fail(self, error: str) -> None:
        """Answer the waiting plugins with an error. Forget a client that never had a lease: its ADD has
        failed."""
        self.world.settle(self, error)
        if not self.lease and not self.lost:
            self.world.drop(self)

    # Begin -----------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Begin to acquire a lease, in INIT."""
        self.state = states.INIT
        self.event(states.DUE)

    def reboot(self, wanted: bytes) -> None:
        """Begin to ask for the address `wanted`, which this attachment had before (RFC 2131, 3.2)."""
        self.state, self.lease, self.wanted = states.REBOOTING, None, (wanted, packets.NO_ADDRESS)
        self._begin()
        try:
            self._transmit(packets.REQUEST)
        except LinkGone as e:
            self.world.vanished(self, str(e))

    def resume(self) -> None:
        """Continue with the lease that a previous daemon has stored."""
        assert self.lease
        now = self.world.now()
        self.state = states.BOUND
        if now >= self.lease.expires:
            self.event(states.EXPIRED)
        elif now >= self.lease.t2:
            self.state = states.RENEWING
            self.event(states.T2)
        else:
            self.world.schedule(self, self.lease.t1)

    # Acquire a lease -------------------------------------------------------------------------------

    def discover(self, _: object) -> None:
        self.wanted = packets.NO_ADDRESS, packets.NO_ADDRESS
        self._begin()
        if not self._given_up():
            self._transmit(packets.DISCOVER)

    def discover_again(self, _: object) -> None:
        self.tries += 1
        if not self._given_up():
            self._transmit(packets.DISCOVER)

    def _given_up(self) -> bool:
        """Return whether the attempt has lasted so long that the ADD has failed. A pod that has lost a lease tries
        again without limit."""
        if self.waiters and self.world.now() - (self.began or 0.0) >= self.world.flags.resendtimeout:
            self._fail(rpc.NO_MORE_TRIES)
            return not self.lost
        return False

    def request(self, offer: packets.Message) -> None:
        self.wanted = offer.yiaddr, packets.address_of(offer.options[packets.SERVER_ID])
        self.tries, self.sent = 0, self.world.now()
        self._transmit(packets.REQUEST)

    def request_again(self, _: object) -> None:
        self.tries += 1
        if self.tries >= (REBOOT_TRIES if self.state == states.REBOOTING else REQUEST_TRIES):
            self.event(states.SILENCE)
        else:
            self._transmit(packets.REQUEST)

    def refused(self, _: object) -> None:
        self.world.log.info("lease_refused", lease=self.owner.name, address=address.ip_text(self.wanted[0]))
        self._pause()

    def probe(self, lease: Lease) -> None:
        self.offered, self.tries = lease, 0
        self.world.quiet(self)
        try:
            self.world.listen_arp(self)
        except OSError as e:
            self.world.log.warning("address_not_probed", lease=self.owner.name, why=str(e))
            self.event(states.SILENCE)
            return
        self._probe()

    def probe_again(self, _: object) -> None:
        self.tries += 1
        if self.tries >= PROBES:
            self.event(states.SILENCE)
        else:
            self._probe()

    def _probe(self) -> None:
        assert self.offered
        self.world.schedule(self, self.world.now() + PROBE_INTERVAL_S)
        try:
            self.world.probe(self, self.offered.address)
        except OSError as e:
            self._not_sent(e)

    def bind(self, _: object) -> None:
        assert self.offered
        self._hold(self.offered, "lease_acquired")
        if self.lost:
            self.world.assign(self)
            self.lost = False
        self.failures, self.began = 0, None
        self.world.settle(self)

    def decline(self, _: object) -> None:
        assert self.offered
        self.world.log.warning("address_in_use", lease=self.owner.name, address=address.ip_text(self.offered.address),
                               why="another host answered an ARP probe for the address")
        try:
            self.world.send(self, self._encode(packets.DECLINE, self.offered.address, self.offered.server))
        except OSError as e:
            self._not_sent(e)
        self.offered = None
        self._pause()

    # Renew and lose a lease ------------------------------------------------------------------------

    def renew(self, _: object) -> None:
        """Begin the exchange of RENEWING or of REBINDING."""
        self._begin()
        self._renew()

    def renew_again(self, _: object) -> None:
        if self.world.now() >= self._until():
            self.event(states.T2 if self.state == states.RENEWING else states.EXPIRED)
        else:
            self._renew()

    def _until(self) -> float:
        """Return when RENEWING or REBINDING ends."""
        assert self.lease
        return self.lease.t2 if self.state == states.RENEWING else self.lease.expires

    def _renew(self) -> None:
        """Send a REQUEST for the lease's address. Schedule the next REQUEST after half of the time that is left until
        the state ends (RFC 2131, 4.4.5)."""
        assert self.lease
        now, until = self.world.now(), self._until()
        self.world.schedule(self, min(until, now + max((until - now) / 2, self.lease.least_pause)))
        try:
            if self.sock is None:
                self._listen_to_renew()
            self.world.send(self, self._renewal(self.lease.address))
        except OSError as e:
            self._not_sent(e)

    def _renewal(self, held: bytes) -> bytes:
        """Return the REQUEST to renew the lease. If ciaddr is set, the server answers to that address (RFC 2131, table
        1). So ciaddr is set only if the pod's link has the address and answers ARP for it. Without ciaddr the REQUEST
        is the same as after a reboot."""
        if self.configured:
            return self._encode(packets.REQUEST, ciaddr=held)
        return self._encode(packets.REQUEST, wanted=held)

    def _listen_to_renew(self) -> None:
        """Open a socket to renew by unicast. If the link does not have the address, or this process may not use port
        68, open a socket to renew by broadcast, like the reference plugin."""
        if self.state == states.RENEWING:
            try:
                self.world.listen_from_address(self)
                return
            except OSError as e:
                self.world.log.debug("no_unicast", lease=self.owner.name, why=str(e))
        self.world.listen(self)

    def extend(self, lease: Lease) -> None:
        """Replace the lease by the renewed lease. The pod's link stays as the plugins' ADD has configured it. As in the
        reference plugin, changed options change only the answers to a later ADD or CHECK."""
        assert self.lease
        if changed := changed_options(self.lease, lease):
            self.world.log.warning("lease_changed", lease=self.owner.name, options=", ".join(changed),
                                   why="the pod keeps what its ADD had")
        lease.prefix = self.lease.prefix
        self._hold(lease, "lease_renewed")

    def lose(self, _: object) -> None:
        """Handle the loss of the lease: remove the address from the pod, and try to acquire another lease."""
        assert self.lease
        ended = self.world.now() >= self.lease.expires
        self.world.log.warning("lease_lost", lease=self.owner.name, address=address.ip_text(self.lease.address),
                               why="the lease ended, and no server had renewed it" if ended
                               else "the server refused to renew it")
        self.world.quiet(self)
        self.world.unassign(self)
        # Record on disk that the lease has ended, so that a restarted daemon does not use the address again
        self.lease.options = self.lease.options | {packets.LEASE_TIME: bytes(4)}
        self.world.keep(self)
        self.lost, self.lease, self.began = True, None, None
        self._pause()

    def _hold(self, lease: Lease, event: str) -> None:
        self.world.quiet(self)
        self.lease, self.offered = lease, None
        self.world.keep(self)
        self.world.schedule(self, lease.t1)
        self.world.log.info(event, lease=self.owner.name, address=address.cidr_text(lease.address, lease.prefix),
                            server=address.ip_text(lease.server), seconds=lease.seconds)

    # Packets ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin an exchange."""
        self.world.quiet(self)
        self.xid = int(self.world.random() * 0xFFFFFFFF)
        self.tries, self.sent = 0, self.world.now()
        if self.began is None:
            self.began = self.sent

    def _pause(self) -> None:
        """Schedule the return to INIT: immediately the first time, then after a pause that grows each time."""
        self.world.quiet(self)
        pause = min(FIRST_PAUSE_S * 2 ** (self.failures - 1), MAX_PAUSE_S) if self.failures else 0.0
        self.failures += 1
        self.world.schedule(self, self.world.now() + pause)

    def _transmit(self, kind: int) -> None:
        """Send a message of type `kind`, DISCOVER or REQUEST, and set the timer for the next message."""
        when = self.world.now() + self._wait()
        if self.waiters:                # an ADD must fail before its plugin's timeout
            when = min(when, (self.began or 0.0) + self.world.flags.resendtimeout)
        self.world.schedule(self, when)
        try:
            if self.sock is None:
                self.world.listen(self)
            self.world.send(self, self._encode(kind, *self.wanted))
        except OSError as e:
            self._not_sent(e)

    def _wait(self) -> float:
        """Return the seconds until the next try: first the short waits of QUICK_WAITS_S, then the flag `timeout`,
        doubled each time up to the flag `resendmax`."""
        flags, late = self.world.flags, self.tries - len(QUICK_WAITS_S)
        if late < 0:
            wait = min(QUICK_WAITS_S[self.tries], flags.timeout)
        else:
            wait = min(flags.timeout * 2 ** min(late, 16), flags.resendmax)
        return wait * (0.9 + 0.2 * self.world.random())

    def _not_sent(self, e: OSError) -> None:
        self.world.log.warning("packet_not_sent", lease=self.owner.name, why=str(e))

    def _encode(self, kind: int, wanted: bytes = packets.NO_ADDRESS, server: bytes = packets.NO_ADDRESS,
                ciaddr: bytes = packets.NO_ADDRESS) -> bytes:
        options = {packets.CLIENT_ID: self.owner.key, **self.owner.provide, packets.MESSAGE_TYPE: bytes((kind,))}
        if kind in (packets.DISCOVER, packets.REQUEST):
            options[packets.MAX_SIZE] = MAX_MESSAGE_BYTES.to_bytes(2, "big")
            if self.owner.request:
                options[packets.PARAMETERS] = self.owner.request
        elif kind in (packets.DECLINE, packets.RELEASE):
            options = {code: options[code] for code in (packets.CLIENT_ID, packets.MESSAGE_TYPE)}
        for code, content in ((packets.ADDRESS, wanted), (packets.SERVER_ID, server)):
            if content != packets.NO_ADDRESS:
                options[code] = content
        broadcast = (self.world.flags.broadcast or self.shared) and ciaddr == packets.NO_ADDRESS
        return packets.encode(packets.Message(packets.BOOTREQUEST, self.xid, self.mac, options, ciaddr=ciaddr,
                                              flags=packets.BROADCAST_FLAG if broadcast else 0))

    def release_message(self) -> bytes:
        """Return the RELEASE message of the lease."""
        assert self.lease
        self.xid = int(self.world.random() * 0xFFFFFFFF)
        return self._encode(packets.RELEASE, server=self.lease.server, ciaddr=self.lease.address)
