"""Add the routes of the plugin ptp at both ends of its veth pair. No subnet is on-link; the host end is the pod's
gateway."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import configure
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.pod import PodLink


def configure_host(link: PodLink, *, dad: bool) -> None:
    """Give the host end the gateways' addresses, and a route to each address of the pod. Raises NetlinkError."""
    host, result = link.host, link.result
    if any(":" in ip["address"] for ip in result["ips"]):
        configure.check_mtu(host)
    batch = Batch()
    for gateway, text in {addresses.read_ip(ip["gateway"]): ip["gateway"] for ip in result["ips"]}.items():
        rtnl.new_address(batch, host.index, gateway, 8 * len(gateway), nodad=not dad,
                         what=f"failed to add IP addr ({text}) to veth")
    for (packed, _), ip in zip(link.ips, result["ips"], strict=True):
        rtnl.route(batch, packed, 8 * len(packed), index=host.index, scope=uapi.RT_SCOPE_HOST,
                   what=f"failed to add route on host: {ip['address']}")
    wire.exchange(link.pod.host, batch)


def configure_pod(link: PodLink, *, ipv6: bool, dad: bool) -> None:
    """Configure the pod's link, with routes that send all packets through the gateways. See configure.pod_link()."""
    configure.pod_link(link.pod, link.inside, link.result, ips=link.ips, ipv6=ipv6, dad=dad,
                       then=lambda batch: route_through_gateways(batch, link))


def route_through_gateways(batch: Batch, link: PodLink) -> None:
    """Add requests that route all packets through the gateway, even packets to the pod's subnet. The requests replace
    the on-link route that the kernel has added.

        10.9.0.1 scope link src 10.9.0.2
        10.9.0.0/24 via 10.9.0.1 src 10.9.0.2
    """
    inside = link.inside
    done: set[bytes | tuple[bytes, int]] = set()        # subnets and gateways whose routes are in the batch
    for (packed, prefix), ip in zip(link.ips, link.result["ips"], strict=True):
        gateway = addresses.read_ip(ip["gateway"])
        network, bits = addresses.network(packed, prefix), 8 * len(packed)
        scope, own_subnet = uapi.RT_SCOPE_LINK, prefix < bits and (network, prefix) not in done
        if own_subnet:                  # the kernel makes no on-link route for a host address
            rtnl.route(batch, network, prefix, index=inside.index, scope=scope, delete=True,
                       what=f"failed to delete route {ip['address']}")
        if gateway not in done:
            rtnl.route(batch, gateway, bits, index=inside.index, scope=scope, source=packed,
                       what=f"failed to add route {ip['gateway']}")
        if own_subnet:
            rtnl.route(batch, network, prefix, index=inside.index, gateway=gateway, source=packed,
                       what=f"failed to add route {ip['address']} via {ip['gateway']}")
        done |= {gateway, (network, prefix)}
