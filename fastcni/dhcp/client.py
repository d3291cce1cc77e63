"""One lease of a pod: what its DHCP client does in each state. client_states.py has the table.

It has no socket, clock or file of its own: `world` has them, the engine's or a test's.
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

    Waiter = Callable[[str, "Client | None"], object]    # gets why there is no lease, else "", and the client

    class World(Protocol):
        """What surrounds a client. Times are seconds of CLOCK_BOOTTIME."""

        settings: Settings
        log: Logger

        def now(self) -> float: ...
        def random(self) -> float:
            """0.0 to 1.0."""
        def schedule(self, client: Client, when: float) -> None:
            """Call client.due() then, instead of at an earlier time."""
        def listen(self, client: Client) -> None:
            """Open a packet socket for client.xid; set client.mac and client.configured. Raises LinkGone, OSError."""
        def listen_from_address(self, client: Client) -> None:
            """As listen(), and a UDP socket at the address of the lease to send by. Raises LinkGone, OSError, also if
            the link does not have that address."""
        def listen_arp(self, client: Client) -> None:
            """Open a socket for ARP. Raises LinkGone, OSError."""
        def send(self, client: Client, data: bytes) -> None:
            """Send a DHCP message by the open socket: to the server from the lease's address, else broadcast."""
        def probe(self, client: Client, wanted: bytes) -> None:
            """Send an ARP probe by the open socket."""
        def quiet(self, client: Client) -> None:
            """Close the socket, if one is open."""
        def keep(self, client: Client) -> None:
            """Write the lease to its file."""
        def assign(self, client: Client) -> None:
            """Give the pod's link the address and the routes of the lease."""
        def unassign(self, client: Client) -> None:
            """Take the address of the lease from the pod's link."""
        def settle(self, client: Client, error: str = "") -> None:
            """Answer the plugins that wait for this lease."""
        def drop(self, client: Client) -> None:
            """Forget the client, which has no lease."""
        def vanished(self, client: Client, why: str) -> None:
            """The pod's namespace or link is gone: release the lease, and forget the client."""

QUICK_WAITS_S = 0.5, 1.0, 2.0, 4.0      # the first waits: a new link may drop the first packets
REQUEST_TRIES = 4               # then DISCOVER again
REBOOT_TRIES = 3
PROBES, PROBE_INTERVAL_S = 2, 0.1       # RFC 5227 waits 6 s in all, for which no pod would wait
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0  # after a NAK or a conflict
MAX_MESSAGE_BYTES = 1500        # option 57


class LinkGone(Exception):
    """The pod's namespace or link does not exist; the text is the reference's."""


class Settings:
    """The daemon's flags: timeout_s, resend_max_s, resend_timeout_s, broadcast."""

    __slots__ = ("broadcast", "resend_max_s", "resend_timeout_s", "timeout_s")

    def __init__(self, timeout_s: float = 10.0, resend_max_s: float = 62.0, resend_timeout_s: float = 208.0,
                 broadcast: bool = False) -> None:
        self.timeout_s, self.resend_max_s, self.resend_timeout_s = timeout_s, resend_max_s, resend_timeout_s
        self.broadcast = broadcast


class Ear:
    """A client's open packet socket. arp: it is one for ARP. sender: the UDP socket to send by, None: the same."""

    __slots__ = ("arp", "sender", "sock")

    def __init__(self, sock: socket, sender: socket | None = None, *, arp: bool = False) -> None:
        self.sock, self.sender, self.arp = sock, sender, arp


class Client:
    """The DHCP client of one attachment.

    owner     whose lease it is
    lease     the lease that the pod has, None: it has none
    offered   the Lease that is acknowledged but not yet probed
    wanted    the address and the server of the REQUEST that is open, as packed bytes
    mac       of the pod's link, b"": not known yet
    configured    the pod's link had the address of the lease when the socket was opened
    shared    other links on the network have this MAC, too (ipvlan): servers have to broadcast
    xid       of the open exchange
    tries     packets sent in it after the first
    sent      when its first packet was sent
    began     when the present attempt to acquire began, None: there is none
    failures  NAKs and conflicts in a row
    lost      the pod had a lease and lost it: the daemon gives the link its next address
    sock      the open socket, None: none; waiters: plugins that wait; timer: when it is due
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

    # What happens to it ----------------------------------------------------------------------------

    def event(self, kind: str, message: packets.Message | Lease | None = None) -> None:
        """Make the transition for an event, if the table has one. message: of OFFER and NAK; the Lease of an ACK."""
        row = states.TABLE.get((self.state, kind))
        if row is None:
            return
        self.state, action = row
        try:
            getattr(self, action)(message)
        except LinkGone as e:
            self.world.vanished(self, str(e))

    def due(self) -> None:
        """Its timer has run out."""
        self.timer = float("inf")
        self.event(states.DUE)

    def received(self, message: packets.Message, source_mac: bytes) -> None:
        """A DHCP message has come. Those of other exchanges, and those that are none of a server, count for nothing."""
        if message.op != packets.BOOTREPLY or message.xid != self.xid or message.chaddr != self.mac:
            return
        server = packets.address_of(message.options.get(packets.SERVER_ID, b""))
        if self.wanted[1] not in (packets.NO_ADDRESS, server) and self.state == states.REQUESTING:
            return                      # another server, to which the request was not sent
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
            self.event(states.NAK)      # the server has no lease of this address any more
        else:
            self.event(states.ACK, lease)

    def _fail(self, error: str) -> None:
        """Tell the waiting plugins. A pod that never had a lease has no more to wait for: its ADD has failed."""
        self.world.settle(self, error)
        if not self.lease and not self.lost:
            self.world.drop(self)

    # Beginnings ------------------------------------------------------------------------------------

    def acquire(self) -> None:
        """Begin in INIT."""
        self.state = states.INIT
        self.event(states.DUE)

    def reboot(self, wanted: bytes) -> None:
        """Ask for the address that this attachment had before (RFC 2131, 3.2)."""
        self.state, self.lease, self.wanted = states.REBOOTING, None, (wanted, packets.NO_ADDRESS)
        self._begin()
        try:
            self._transmit(packets.REQUEST)
        except LinkGone as e:
            self.world.vanished(self, str(e))

    def resume(self) -> None:
        """Go on with a lease that an earlier daemon had."""
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

    # Acquiring -------------------------------------------------------------------------------------

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
        """Whether an ADD has failed now. A pod that had a lease tries on."""
        if self.waiters and self.world.now() - (self.began or 0.0) >= self.world.settings.resend_timeout_s:
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
                               why="another host answered an ARP probe for it")
        try:
            self.world.send(self, self._encode(packets.DECLINE, self.offered.address, self.offered.server))
        except OSError as e:
            self._not_sent(e)
        self.offered = None
        self._pause()

    # Holding ---------------------------------------------------------------------------------------

    def renew(self, _: object) -> None:
        self._begin()
        self._renew(self.lease.t2)      # type: ignore[union-attr]  # it is BOUND

    def renew_again(self, _: object) -> None:
        assert self.lease
        if self.world.now() >= self.lease.t2:
            self.event(states.T2)
        else:
            self._renew(self.lease.t2)

    def rebind(self, _: object) -> None:
        self._begin()
        self._renew(self.lease.expires)         # type: ignore[union-attr]  # it has a lease

    def rebind_again(self, _: object) -> None:
        assert self.lease
        if self.world.now() >= self.lease.expires:
            self.event(states.EXPIRED)
        else:
            self._renew(self.lease.expires)

    def _renew(self, until: float) -> None:
        """Send a REQUEST for the present address; again after half of the time that is left (RFC 2131, 4.4.5)."""
        assert self.lease
        now = self.world.now()
        self.world.schedule(self, min(until, now + max((until - now) / 2, self.lease.least_pause)))
        try:
            if self.sock is None:
                self._listen_to_renew()
            self.world.send(self, self._renewal(self.lease.address))
        except OSError as e:
            self._not_sent(e)

    def _renewal(self, held: bytes) -> bytes:
        """The REQUEST. Its field ciaddr is for a client that can answer ARP requests for the address (RFC 2131, table
        1), to which the server sends; one that cannot asks as after a reboot."""
        if self.configured:
            return self._encode(packets.REQUEST, ciaddr=held)
        return self._encode(packets.REQUEST, wanted=held)

    def _listen_to_renew(self) -> None:
        """Unicast needs the address on the link, and the right to use port 68. Else broadcast, as the reference."""
        if self.state == states.RENEWING:
            try:
                self.world.listen_from_address(self)
                return
            except OSError as e:
                self.world.log.debug("no_unicast", lease=self.owner.name, why=str(e))
        self.world.listen(self)

    def extend(self, lease: Lease) -> None:
        """Hold the lease on. The pod's link stays as its ADD has made it, by the interface's plugin and those after it:
        other options change only what a later ADD or CHECK is answered, as with the reference."""
        assert self.lease
        if changed := changed_options(self.lease, lease):
            self.world.log.warning("lease_changed", lease=self.owner.name, options=", ".join(changed),
                                   why="the pod keeps what its ADD had")
        lease.prefix = self.lease.prefix
        self._hold(lease, "lease_renewed")

    def lose(self, _: object) -> None:
        """The lease is gone: the pod must not use its address any more. Try to get another one."""
        assert self.lease
        ended = self.world.now() >= self.lease.expires
        self.world.log.warning("lease_lost", lease=self.owner.name, address=address.ip_text(self.lease.address),
                               why="it ended, and no server had renewed it" if ended
                               else "the server refused to renew it")
        self.world.quiet(self)
        self.world.unassign(self)
        # On disk it has ended: a daemon that starts now begins where this one is
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
        """Go on in INIT after a while: at once for the first time."""
        self.world.quiet(self)
        pause = min(FIRST_PAUSE_S * 2 ** (self.failures - 1), MAX_PAUSE_S) if self.failures else 0.0
        self.failures += 1
        self.world.schedule(self, self.world.now() + pause)

    def _transmit(self, kind: int) -> None:
        """Send DISCOVER or REQUEST, and set the timer for the next one."""
        when = self.world.now() + self._wait()
        if self.waiters:                # an ADD must fail before its plugin gives up
            when = min(when, (self.began or 0.0) + self.world.settings.resend_timeout_s)
        self.world.schedule(self, when)
        try:
            if self.sock is None:
                self.world.listen(self)
            self.world.send(self, self._encode(kind, *self.wanted))
        except OSError as e:
            self._not_sent(e)

    def _wait(self) -> float:
        """Seconds until the next try: short at first, then from `timeout` on doubled, up to `resendmax`."""
        settings, late = self.world.settings, self.tries - len(QUICK_WAITS_S)
        if late < 0:
            wait = min(QUICK_WAITS_S[self.tries], settings.timeout_s)
        else:
            wait = min(settings.timeout_s * 2 ** min(late, 16), settings.resend_max_s)
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
        broadcast = (self.world.settings.broadcast or self.shared) and ciaddr == packets.NO_ADDRESS
        return packets.encode(packets.Message(packets.BOOTREQUEST, self.xid, self.mac, options, ciaddr=ciaddr,
                                              flags=packets.BROADCAST_FLAG if broadcast else 0))

    def release_message(self) -> bytes:
        """The RELEASE of the lease that it has."""
        assert self.lease
        self.xid = int(self.world.random() * 0xFFFFFFFF)
        return self._encode(packets.RELEASE, server=self.lease.server, ciaddr=self.lease.address)
