"""The network policies that hold for an address: the agent knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.kit import policies
from fastcni.runtime.parse import flattened
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.runtime.records import NetworkList

DIRECTIONS = ("ingress", "egress")


def sockets(networks: Iterable[NetworkList]) -> list[str]:
    """Where the networks' plugin `policy` asks the agent."""
    return sorted({plugin.values.get("agentSocketPath") or policies.SOCKET for network in networks
                   for plugin in flattened(network.plugins) if plugin.type == "policy"})


def texts_on(networks: Iterable[NetworkList], ip: str) -> Iterator[str]:
    """Sentences on an address, of each agent."""
    for path in sockets(networks):
        try:
            for pod in policies.ask(path, {"do": "explain", "address": ip})["pods"]:
                yield f"{ip} is of pod {pod['pod']}: {'; '.join(text(it, pod[it]) for it in DIRECTIONS)}"
        except policies.Away as e:
            yield f"network policies on {ip} are not known: the agent at {path}: {e}"
        except CniError as e:
            yield f"network policies on {ip} are not known: {e.msg}"


def text(direction: str, names: list[str]) -> str:
    return f"{direction} only as {', '.join(names)} allows" if names else f"no policy restricts {direction}"
