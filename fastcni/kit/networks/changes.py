"""Compare the networks of a running pod with the networks that its annotation names now.

fastcni detaches a network that an earlier annotation named and the present annotation does not name. Networks from the
configuration stay.
"""

from __future__ import annotations

from fastcni.kit.networks.network import ifname_at
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.kit.networks.network import Network
    from fastcni.kit.networks.selection import Selection

    Added = tuple[Network, dict[str, Any]]


class Plan:
    """The changes of a pod's networks. stays: (network, selection); the selection is None for a network from the
    configuration. leaves: the networks to detach. joins: (selection, interface name) of the networks to attach."""

    __slots__ = ("stays", "leaves", "joins")

    def __init__(self) -> None:
        self.stays: list[tuple[Network, Selection | None]] = []
        self.leaves: list[Network] = []
        self.joins: list[tuple[Selection, str]] = []

    def __bool__(self) -> bool:
        return bool(self.leaves or self.joins)


def make_plan(attached: Iterable[Network], selections: list[Selection], defaults: Iterable[str]) -> Plan:
    """Find the changes by which a pod gets the networks of its annotation.

    attached: the pod's networks in the order of its list. defaults: titles of the configuration's `defaultNetworks`,
    for pods that Multus added.

    A selection matches an attachment to its network: the attachment with the selection's interface. If the selection
    names no interface: the attachment whose interface has the selection's index, such as net1; otherwise any
    attachment, which keeps its interface. An attachment without a result is incomplete, so the plan detaches the
    network and attaches it again.
    """
    free: list[Network] = []
    plan, titles = Plan(), list(defaults)
    for place, network in enumerate(attached):
        if network.definition.title in titles and not network.standing:
            titles.remove(network.definition.title)
            network.standing = True
        if network.standing or not place:
            plan.stays.append((network, None))
        else:
            free.append(network)
    standing = len(plan.stays)
    found: dict[int, Network] = {}
    for exact in (True, False):
        for index, selection in enumerate(selections):
            wanted = selection.ifname or (ifname_at(standing + index, "") if exact else "")
            match = next((it for it in free if "prevResult" in it.given and it.definition.title == title_of(selection)
                          and it.ifname == (wanted or it.ifname)), None) if index not in found else None
            if match:
                free.remove(match)
                found[index] = match
    plan.leaves = free
    plan.stays += [(found[index], selections[index]) for index in sorted(found)]
    taken = {network.ifname for network, _ in plan.stays} | {it.ifname for it in selections}
    for index, selection in enumerate(selections):
        if index not in found:
            ifname = selection.ifname or first_free(standing + index, taken)
            taken.add(ifname)
            plan.joins.append((selection, ifname))
    return plan


def title_of(selection: Selection) -> str:
    return f"{selection.namespace}/{selection.name}"


def first_free(place: int, taken: set[str]) -> str:
    """Return the interface name for the index `place` in the pod's list. If a network has that name, return the first
    free name."""
    found, number = ifname_at(place, ""), 0
    while found in taken:
        number += 1
        found = ifname_at(number, "")
    return found


def with_results(networks: Iterable[Network]) -> list[Added]:
    """Return [(network, its result in the newest shape)] of attached networks; a network without result has {}."""
    return [(it, results.to_version(results.create_any(it.given["prevResult"]), "1.1.0")
             if "prevResult" in it.given else {}) for it in networks]


def devices_of(networks: Iterable[Network]) -> set[str]:
    """Return the ids of the devices that the networks use."""
    plugins = [plugin for network in networks for plugin in network.definition.conf.values["plugins"]]
    return {device for plugin in plugins if isinstance(device := plugin.get("deviceID"), str)}
