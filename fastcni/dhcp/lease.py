"""Define Owner and Lease: the attachment, the server's options, the renewal times, and the CNI result.

Times are seconds of CLOCK_BOOTTIME, which continues while the node is suspended and does not jump.
"""

from __future__ import annotations

from fastcni.dhcp import packets
from fastcni.kit.dhcp import dhcp_conf, rpc
from fastcni.spec import address
from fastcni.spec import ipam as ipam_conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_LEASE_S = 3600          # the lease's length if the server gives none; the reference plugin's default
FOREVER_S = 0xFFFFFFFF          # the value of option 51 for a lease without end
T1_SHARE, T2_SHARE = 0.5, 0.875         # fractions of the lease, if the server gives no times (RFC 2131, 4.4.5)
MIN_RENEW_S, MIN_RENEW_SHARE = 60.0, 1 / 16     # shortest time between renewals: 60 s (RFC), or 1/16 of a short lease
ZERO_LEASE_S = 2 * int(MIN_RENEW_S)     # replaces a length of 0 seconds, so that the client renews each minute
MAX_ENTRIES = 64                # limit of routes, of name servers and of domains in a result: no server is trusted
SCOPE_LINK = 253
OF_RESULT = (packets.SUBNET_MASK, packets.ROUTERS, packets.STATIC_ROUTES, packets.CLASSLESS_ROUTES, packets.MTU,
             packets.DNS_SERVERS, packets.DOMAIN_NAME, packets.DOMAIN_SEARCH)
MIN_MTU = 68                    # RFC 2132, 5.1


class Owner:
    """The attachment of a lease, and the DHCP options that its client sends and requests.

    key               option 61 and the lease's name, "\\0container/network/ifname"
    container_id, network, ifname
    netns, inode      the path of the pod's namespace, and the number that identifies it
    provide           {code: content} of the options to send
    request           the codes of option 55
    priority          the metric of routes; 0: the kernel's default
    """

    __slots__ = ("container_id", "ifname", "inode", "key", "netns", "network", "priority", "provide", "request")

    def __init__(self, key: bytes, container_id: str, network: str, ifname: str, netns: str, inode: int,
                 provide: dict[int, bytes], request: bytes, priority: int) -> None:
        self.key, self.container_id, self.network, self.ifname = key, container_id, network, ifname
        self.netns, self.inode = netns, inode
        self.provide, self.request, self.priority = provide, request, priority

    @property
    def name(self) -> str:
        """Return the attachment's name for the log."""
        return f"{self.container_id} {self.ifname}"


class Lease:
    """The lease that a server has acknowledged.

    address, prefix   the packed address, and the length of its netmask in bits
    server            the packed address of the server, its option 54
    server_mac        the MAC that the ACK came from: the server's or a relay's
    options           {code: content} of the ACK
    mac               the MAC of the pod's link
    acked             when the client sent the acknowledged REQUEST; the lease begins at this time
    """

    __slots__ = ("acked", "address", "mac", "options", "prefix", "server", "server_mac")

    def __init__(self, address: bytes, prefix: int, server: bytes, server_mac: bytes, options: dict[int, bytes],
                 mac: bytes, acked: float) -> None:
        self.address, self.prefix, self.server, self.server_mac = address, prefix, server, server_mac
        self.options, self.mac, self.acked = options, mac, acked

    @property
    def seconds(self) -> float:
        """Return the length of the lease in seconds."""
        found = packets.number_of(self.options.get(packets.LEASE_TIME, b""), 4)
        return DEFAULT_LEASE_S if found is None else float("inf") if found == FOREVER_S else found

    @property
    def expires(self) -> float:
        return self.acked + self.seconds

    @property
    def least_pause(self) -> float:
        """Return the minimum seconds between two renewals, whatever times the server gives."""
        return min(MIN_RENEW_S, self.seconds * MIN_RENEW_SHARE)

    @property
    def t2(self) -> float:
        return self.acked + self._share(packets.T2, T2_SHARE, self.seconds)

    @property
    def t1(self) -> float:
        return self.acked + self._share(packets.T1, T1_SHARE, self.t2 - self.acked)

    def _share(self, code: int, share: float, most: float) -> float:
        """Return T1 or T2 in seconds: the value of option `code`, at least least_pause. If that value is missing, 0 or
        not below `most`, return `share` of the lease, at most `most`."""
        found = packets.number_of(self.options.get(code, b""), 4)
        return max(found, self.least_pause) if found and found < most else min(self.seconds * share, most)


def read_lease(ack: packets.Message, server_mac: bytes, sent: float) -> Lease:
    """Return the Lease of an ACK. sent: when the client sent the acknowledged REQUEST. Raises PacketError; if the
    netmask is missing, with the reference plugin's text."""
    mask = ack.options.get(packets.SUBNET_MASK, b"")
    if not mask:
        raise packets.PacketError("DHCP option Subnet Mask not found in DHCPACK")
    try:
        prefix = rpc.prefix_of(mask)
    except ValueError as e:
        raise packets.PacketError(str(e)) from None
    if len(mask) != 4 or ack.yiaddr == packets.NO_ADDRESS:
        raise packets.PacketError("a DHCPACK without an address or with a netmask that is none")
    options = ack.options
    if packets.number_of(options.get(packets.LEASE_TIME, b""), 4) == 0:
        options = options | {packets.LEASE_TIME: ZERO_LEASE_S.to_bytes(4, "big")}
    return Lease(ack.yiaddr, prefix, packets.address_of(options.get(packets.SERVER_ID, b"")), server_mac, options,
                 ack.chaddr, sent)


def result_of(lease: Lease, priority: int = 0) -> dict[str, Any]:
    """Return the lease as a CNI result in the 1.1.0 shape.

    The gateway is the first router of option 3. If the server sent option 121, the routes are only the routes of option
    121; otherwise the routes of option 33 and the default route. Each route has the MTU of option 26.
    """
    routers = packets.addresses_of(lease.options.get(packets.ROUTERS, b""))
    gateway = routers[0] if routers else None
    return ipam_conf.make_result([(lease.address, lease.prefix, gateway)], routes_of(lease, gateway, priority),
                                 dns_of(lease.options))


def changed_options(before: Lease, after: Lease) -> list[str]:
    """Return the names of the options used by result_of() in which the two leases differ."""
    return [name for name, code in dhcp_conf.OPTION_NAMES.items()
            if code in OF_RESULT and before.options.get(code) != after.options.get(code)]


def routes_of(lease: Lease, gateway: bytes | None, priority: int) -> list[dict[str, Any]]:
    if packets.CLASSLESS_ROUTES in lease.options:
        found = list(packets.classless_routes(lease.options[packets.CLASSLESS_ROUTES]))
    else:
        found = list(packets.static_routes(lease.options.get(packets.STATIC_ROUTES, b"")))
        if gateway:
            found.append((packets.NO_ADDRESS, 0, gateway))
    mtu = packets.number_of(lease.options.get(packets.MTU, b""), 2) or 0
    more = {"mtu": mtu} if mtu >= MIN_MTU else {}
    if priority:
        more["priority"] = priority
    return [{"dst": address.cidr_text(dst, prefix), "gw": address.ip_text(via), **more,
             **({"scope": SCOPE_LINK} if via == packets.NO_ADDRESS else {})}
            for dst, prefix, via in found[:MAX_ENTRIES]]


def dns_of(options: dict[int, bytes]) -> dict[str, Any]:
    servers = packets.addresses_of(options.get(packets.DNS_SERVERS, b""))[:MAX_ENTRIES]
    dns = {"nameservers": [address.ip_text(server) for server in servers],
           "domain": packets.text_of(options.get(packets.DOMAIN_NAME, b"")),
           "search": packets.domains(options.get(packets.DOMAIN_SEARCH, b""))[:MAX_ENTRIES]}
    return {key: value for key, value in dns.items() if value}
