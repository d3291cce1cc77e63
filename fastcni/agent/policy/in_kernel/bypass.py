"""Find out whether a bridge forwards packets past the policies. Without the sysctls of br_netfilter, no chain of the
family inet sees packets from port to port of a bridge. The kernel does not notify of changes of these sysctls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni._netlink import Batch, attributes
from fastcni.agent.policy.in_kernel.decisions import Ports
from fastcni.kernel import nft, rtnl, sysctl, uapi, wire
from fastcni.kit.links import find

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.evaluate import Connection
    from fastcni.agent.policy.in_kernel.nft_read import Table
    from fastcni.kernel.wire import Socket

# {address length: the sysctl for all bridges}, {address length: the attribute for a single bridge}
SYSCTLS = {4: "net.bridge.bridge-nf-call-iptables", 16: "net.bridge.bridge-nf-call-ip6tables"}
SWITCHES = {4: uapi.IFLA_BR_NF_CALL_IPTABLES, 16: uapi.IFLA_BR_NF_CALL_IP6TABLES}


def why(tables: Iterable[Table], connection: Connection) -> str:
    """Return why a bridge forwards the connection's packets past the policies, and the command that ends this; "" if no
    bridge does. A bridge counts only if the tables list its ports. Raises OSError."""
    name = SYSCTLS[len(connection.source)]
    value = sysctl.read(name) if sysctl.exists(name) else "missing"
    if value == "1" or not any(on_one_bridge(Ports.of(table, connection), len(connection.source)) for table in tables
                               if table.family == nft.NFPROTO_BRIDGE):
        return ""
    return (f"packets from port to port of a bridge bypass the policies: {name} is {value}; to mend it: "
            f"modprobe br_netfilter && sysctl -w {name}=1")


def on_one_bridge(ports: Ports, length: int) -> bool:
    """Return whether both ports are ports of one bridge whose own setting does not make the kernel call the hooks.
    length: the address length, bytes."""
    if not (ports.source and ports.destination):
        return False
    with wire.open_socket() as sock:
        links = [find.link(sock, name.rstrip(b"\0").decode()) for name in (ports.source, ports.destination)]
        source, destination = (link.master if link else 0 for link in links)
        return bool(source) and source == destination and not switched_on(sock, source, length)


def switched_on(sock: Socket, bridge: int, length: int) -> bool:
    """Return whether the own setting of the bridge with index `bridge` makes the kernel call the hooks of a family,
    even if the sysctl is 0. length: the address length of the family, bytes."""
    for kind, payload in wire.exchange(sock, rtnl.get_link(Batch(), index=bridge)):
        if kind == uapi.RTM_NEWLINK:
            info = attributes(attributes(payload, len(rtnl.ANY_LINK)).get(uapi.IFLA_LINKINFO, b""))
            return attributes(info.get(uapi.IFLA_INFO_DATA, b"")).get(SWITCHES[length]) == b"\1"
    return False
