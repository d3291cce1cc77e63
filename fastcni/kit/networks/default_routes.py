"""Keep only the default route that `default-route` in the pod's annotation asks for, in a pod with several networks."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.links import find, routing
from fastcni.spec import address, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.pod import Pod
    from fastcni.kit.networks.network import Network

    Added = list[tuple[Network, dict[str, Any]]]

FAMILIES = (uapi.AF_INET, uapi.AF_INET6)


def check(networks: list[Network]) -> None:
    """Raise CniError 7 if the networks ask for two default routes of one address family."""
    families = [rtnl.family_of(gateway) for network in networks for gateway in network.gateways or ()]
    if len(families) != len(set(families)):
        raise errors.bad_config("default-route: two gateways of one address family",
                                "one network gives the pod its default route")


def arrange(pod: Pod, added: Added) -> list[int]:
    """Delete the replaced default routes, in the pod and in the results, and add the requested default routes.

    A requested gateway replaces every other default route of its family. A network whose `gateways` is [] gives no
    default route. Returns the indexes of the changed results. Raises NetlinkError.
    """
    asked = {rtnl.family_of(gateway) for network, _ in added for gateway in network.gateways or ()}
    changed = []
    for place, (network, result) in enumerate(added):
        families = set(FAMILIES) if network.gateways is not None else asked
        if not families:
            continue
        link = find.link(pod.inside, network.ifname)
        if link is None:                            # a network without an interface
            continue
        delete(pod, link.index, families)
        kept = [route for route in result.get("routes", ()) if family_of_default(route) not in families]
        if kept != result.get("routes", []) or network.gateways:
            result["routes"] = kept + [add(pod, link.index, gateway, network) for gateway in network.gateways or ()]
            changed.append(place)
    return changed


def family_of_default(route: dict[str, Any]) -> int:
    """Return the address family of a result's default route, 0 for another route."""
    packed, prefix = address.read_cidr(route["dst"])
    return 0 if prefix else rtnl.family_of(packed)


def delete(pod: Pod, index: int, families: set[int]) -> None:
    found = routing.of_link(routing.routes(pod.inside, sorted(families)), index)
    routing.send(pod.inside, [routing.again(payload, delete=True, what="delete default route")
                              for route, payload in found if not route.prefix], routing.GONE)


def add(pod: Pod, index: int, gateway: bytes, network: Network) -> dict[str, Any]:
    """Add the default route that a network's key default-route asks for. Return the route in the shape of a result's
    routes."""
    text = address.ip_text(gateway)
    what = f"add default route by {text}, the default-route of {network.definition.name}"
    wire.exchange(pod.inside, rtnl.route(Batch(), bytes(len(gateway)), 0, index=index, gateway=gateway, what=what))
    return {"dst": "0.0.0.0/0" if len(gateway) == 4 else "::/0", "gw": text}
