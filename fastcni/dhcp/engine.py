"""Keep all DHCP leases of the node, and connect each Client to the event loop, its sockets and its file. One thread
runs the complete engine."""

from __future__ import annotations

import os
import random
import time

from fastcni.dhcp import client_states as states
from fastcni.dhcp import frames, links, packets
from fastcni.dhcp.client import Client, Ear, LinkGone
from fastcni.dhcp.closer import Closer
from fastcni.dhcp.lease import Lease, Owner, result_of
from fastcni.dhcp.lease_files import LeaseFiles, Saved
from fastcni.dhcp.loop import Loop
from fastcni.kernel import netns
from fastcni.kernel.presence import ALIVE, GONE
from fastcni.kernel.sockets import packet_sockets
from fastcni.kernel.uapi import ETH_P_ARP
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.daemon.log import Logger
    from fastcni.dhcp.client import Waiter
    from fastcni.dhcp.flags import Flags


CHECK_S = 30.0                  # seconds between searches for pods that no longer exist


class Engine:
    """The leases of the node, by the key of their Owner. clients: {key: Client}. former: leases of a previous boot,
    {key: Saved}. seen: the unix time when the pod's namespace was last seen, {key: seconds}.

    root: the prefix of namespaces' paths. home: a descriptor of the daemon's network namespace. An Engine is the World
    of its clients: client.World describes the methods that clients call.
    """

    def __init__(self, loop: Loop, files: LeaseFiles, flags: Flags, log: Logger) -> None:
        self.loop, self.files, self.flags, self.log, self.root = loop, files, flags, log, flags.hostprefix
        self.home = netns.open_own()
        self.clients: dict[bytes, Client] = {}
        self.former: dict[bytes, Saved] = {}
        self.seen: dict[bytes, float] = {}
        self.timer = float("inf")
        self.closer = Closer()
        self.now, self.random = loop.now, random.random

    # Requests of plugins --------------------------------------------------------------------------

    def allocate(self, owner: Owner, waiter: Waiter) -> None:
        """Call waiter(error, client) when the attachment has got a lease, or when the attempt has failed. If the
        attachment already has a lease, call waiter() immediately."""
        client = self.clients.get(owner.key)
        wanted: bytes | None = None
        if client and self._is_same(client, owner):
            if client.state in states.HOLDING:
                waiter("", client)
            else:
                client.waiters.append(waiter)
            return
        if client:                      # the container was restarted in another namespace
            self.settle(client, "the container has another network namespace now")
            wanted = client.lease.address if client.lease else None
            self.drop(client)
        elif saved := self.former.pop(owner.key, None):
            wanted = saved.lease.address
        client = self.clients[owner.key] = Client(owner, self)
        self.seen[owner.key] = links.seen_now()
        client.waiters.append(waiter)
        if wanted:
            client.reboot(wanted)
        else:
            client.acquire()

    def _is_same(self, client: Client, owner: Owner) -> bool:
        """Return whether the client is in the owner's namespace, and that namespace still has the link that got the
        lease."""
        if client.owner.inode != owner.inode:
            return False
        try:
            links.look_up(owner, self.root, self.home, client.mac)
        except LinkGone:
            return False
        except OSError as e:
            self.log.warning("link_unread", lease=owner.name, why=str(e))
        client.owner = owner            # the owner's configuration may have changed
        return True

    def leave(self, waiter: Waiter) -> None:
        """Handle that a plugin has closed its connection before the answer. If no other plugin waits for the same
        lease, end the attempt to get it."""
        for client in list(self.clients.values()):
            if waiter in client.waiters:
                client.waiters.remove(waiter)
                if not client.waiters and not client.lease and not client.lost:
                    self.log.info("lease_abandoned", lease=client.owner.name, why="the plugin has left")
                    self._let_go(client)

    def release(self, key: bytes) -> str:
        """Release the lease with that key. Return the released address as text, "" if no lease has the key."""
        client, saved = self.clients.get(key), self.former.pop(key, None)
        if client:
            lease = client.lease
            self.settle(client, "released before the server answered")
            self._let_go(client)
            return address.ip_text(lease.address) if lease else ""
        if saved:
            self._release_from_here(Client(saved.owner, self, saved.lease), saved.lease)
            self._remove_file(key)
            return address.ip_text(saved.lease.address)
        return ""

    def collect(self, network: str, valid: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
        """Release the leases of a network whose attachment is not in `valid`. Return the released [(address, container
        and ifname)]."""
        owners = [client.owner for client in self.clients.values()] + [saved.owner for saved in self.former.values()]
        stale = [owner for owner in owners
                 if owner.network == network and (owner.container_id, owner.ifname) not in valid]
        return [(found, owner.name) for owner in stale if (found := self.release(owner.key))]

    # Start, maintenance and stop ---------------------------------------------------------------------

    def start(self) -> None:
        """Continue with the leases on disk. Raises OSError."""
        resumed = gone = 0
        for saved in self.files.read_all():
            if isinstance(saved, tuple):
                self.log.warning("lease_damaged", path=saved[0], why=saved[1])
            elif saved.boot != self.files.boot:
                self.former[saved.owner.key] = saved
            else:
                client = self.clients[saved.owner.key] = Client(saved.owner, self, saved.lease)
                self.seen[saved.owner.key] = links.unix_time(saved.lease.acked)
                if self._is_gone(client):
                    gone += 1
                else:
                    client.resume()
                    resumed += 1
        self.due()
        self.log.info("leases_read", resumed=resumed, gone=gone, former=len(self.former))

    def due(self) -> None:
        """Release the leases of pods that no longer exist, and forget expired leases of a previous boot."""
        self.loop.schedule(self, self.now() + CHECK_S)
        for each in [client for client in self.clients.values() if self._is_gone(client)]:
            self.vanished(each, "the pod's network namespace is gone")
        ended = [key for key, saved in self.former.items() if saved.ends <= time.time()]
        for key in ended:
            del self.former[key]
            self._remove_file(key)

    def stop(self) -> None:
        """Close all sockets. The lease files stay for the next daemon."""
        for client in self.clients.values():
            self.settle(client, "the dhcp daemon is stopping")
            self.quiet(client)
        self.clients.clear()
        os.close(self.home)

    def _is_gone(self, client: Client) -> bool:
        state = links.presence_of(client.owner, self.seen.get(client.owner.key, 0.0), self.root)
        if state == ALIVE:
            self.seen[client.owner.key] = links.seen_now()
        return state == GONE

    # The World of a client: sockets ----------------------------------------------------------------

    def schedule(self, client: Client, when: float) -> None:
        self.loop.schedule(client, when)

    def listen(self, client: Client) -> None:
        sock, link, client.configured = links.listen(client.owner, self.root, self.home, client.xid, client.lease)
        client.mac, client.shared = link.address, link.kind == "ipvlan"
        self._open(client, Ear(sock))

    def listen_arp(self, client: Client) -> None:
        self._open(client, Ear(links.listen_arp(client.owner, self.root, self.home), arp=True))

    def listen_from_address(self, client: Client) -> None:
        self._open(client, Ear(*links.listen_from_address(client.owner, self.root, self.home, client.mac, client.xid,
                                                          client.lease)))       # type: ignore[arg-type]
        client.configured = True

    def _open(self, client: Client, ear: Ear) -> None:
        client.sock = ear
        self.loop.add(ear.sock.fileno(), lambda: self._read(client, ear))

    def quiet(self, client: Client) -> None:
        if client.sock:
            self.loop.remove(client.sock.sock.fileno())
            self.closer.close(client.sock.sock)
            if client.sock.sender:
                client.sock.sender.close()
            client.sock = None

    def send(self, client: Client, data: bytes) -> None:
        ear, lease = client.sock, client.lease
        assert ear                      # the client has called listen()
        if ear.sender and lease:        # only RENEWING opens a sender
            try:
                ear.sender.sendto(data, (address.ip_text(lease.server), packet_sockets.SERVER_PORT))
                return
            except OSError as e:        # for example a firewall in the pod rejects the message
                self.log.debug("no_unicast", lease=client.owner.name, why=str(e))
        source = lease.address if lease and client.configured else packets.NO_ADDRESS
        packet_sockets.send_to(ear.sock, client.owner.ifname, frames.to_server(data, source))

    def probe(self, client: Client, wanted: bytes) -> None:
        assert client.sock
        packet_sockets.send_to(client.sock.sock, client.owner.ifname, frames.probe(client.mac, wanted),
                               protocol=ETH_P_ARP)

    def _read(self, client: Client, ear: Ear) -> None:
        """Read all packets that wait on the socket, until the client closes the socket."""
        while client.sock is ear:
            try:
                if not (found := packet_sockets.receive(ear.sock)):
                    return
                packet, mac, complete = found
                if not ear.arp:
                    client.received(packets.decode(frames.payload(packet, complete)), mac)
                elif client.offered and frames.conflicts(packet, client.mac, client.offered.address):
                    client.event(states.CONFLICT)
            except (frames.FrameError, packets.PacketError) as e:
                self.log.debug("packet_ignored", lease=client.owner.name, why=str(e))
            except OSError as e:        # the link went down; when the timer expires, the client opens a new socket
                self.log.debug("socket_failed", lease=client.owner.name, why=str(e))
                self.quiet(client)

    # The World of a client: files, addresses, plugins -----------------------------------------------

    def keep(self, client: Client) -> None:
        lease: Lease = client.lease             # type: ignore[assignment]  # the server has just acknowledged the lease
        try:
            self.files.write(client.owner, lease, time.time() + lease.expires - self.now())
        except OSError as e:
            self.log.error("lease_not_saved", lease=client.owner.name, why=str(e))

    def _remove_file(self, key: bytes) -> None:
        try:
            self.files.remove(key)
        except OSError as e:
            self.log.error("lease_not_removed", why=str(e))

    def assign(self, client: Client) -> None:
        lease: Lease = client.lease             # type: ignore[assignment]  # as in keep()
        try:
            links.assign(client.owner, self.root, self.home, lease, result_of(lease, client.owner.priority))
        except OSError as e:
            self.log.error("address_not_assigned", lease=client.owner.name, why=str(e))

    def unassign(self, client: Client) -> None:
        try:
            links.unassign(client.owner, self.root, self.home, client.lease)    # type: ignore[arg-type]
        except (LinkGone, links.NamespaceUnseen):
            return
        except OSError as e:
            self.log.error("address_not_removed", lease=client.owner.name, why=str(e))

    def settle(self, client: Client, error: str = "") -> None:
        waiters, client.waiters = client.waiters, []
        for waiter in waiters:
            waiter(error, client)

    def vanished(self, client: Client, why: str) -> None:
        self.log.info("pod_gone", lease=client.owner.name, why=why)
        self.settle(client, why)
        if client.lease:
            self._release_from_here(client, client.lease)
        self.drop(client)

    # The end of a lease ----------------------------------------------------------------------------

    def _let_go(self, client: Client) -> None:
        """Release the client's lease, over the pod's link if the link exists, and forget the client."""
        self.quiet(client)
        client.lease = lease = client.lease or client.offered
        if lease:
            self._release_from_pod(client, lease)
        self.drop(client)

    def _release_from_pod(self, client: Client, lease: Lease) -> None:
        """Remove the address from the link, so that no packet uses the address any more, then send RELEASE by a packet
        socket. RELEASE goes without ARP to the MAC from which the ACK came, so the link may be deleted immediately. A
        userspace datapath of Open vSwitch loses a packet that it has not yet read; the lease then ends by its time."""
        self.unassign(client)
        try:
            sock, link, _ = links.listen(client.owner, self.root, self.home, 0)
        except (LinkGone, OSError):
            self._release_from_here(client, lease)
            return
        client.mac = link.address
        packet = frames.to_server(client.release_message(), lease.address, lease.server)
        try:
            packet_sockets.send_to(sock, client.owner.ifname, packet, lease.server_mac or packet_sockets.BROADCAST)
        except OSError as e:
            self.log.warning("release_not_sent", lease=client.owner.name, why=str(e))
            return
        finally:
            self.closer.close(sock)
        self.log.info("lease_released", lease=client.owner.name, address=address.ip_text(lease.address), sent_by="pod")

    def _release_from_here(self, client: Client, lease: Lease) -> None:
        """Release a lease whose link no longer exists. RELEASE identifies the lease by client id and address, so the
        node may send it. A server that the node can reach frees the address now. Any other server frees the address
        when the lease expires."""
        try:
            packet_sockets.send_from_here(address.ip_text(lease.server), client.release_message())
        except OSError as e:
            self.log.warning("release_not_sent", lease=client.owner.name, why=str(e))
            return
        self.log.info("lease_released", lease=client.owner.name, address=address.ip_text(lease.address), sent_by="node")

    def drop(self, client: Client) -> None:
        self.quiet(client)
        client.timer = float("inf")
        if self.clients.get(client.owner.key) is client:
            del self.clients[client.owner.key]
            self.seen.pop(client.owner.key, None)
        self._remove_file(client.owner.key)
