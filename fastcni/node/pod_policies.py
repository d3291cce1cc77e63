"""Ask the agent which network policies apply to an address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastcni.kit import policies
from fastcni.runtime.parse import flattened
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.runtime.records import NetworkList

DIRECTIONS = ("ingress", "egress")
MAX_SHOWN = 5                   # limit of a domain name's addresses in a text


def sockets(networks: Iterable[NetworkList], directory: str = "") -> list[str]:
    """Return the agents' sockets that the networks' plugins `policy` name. directory: the --folder of one more agent,
    or ""."""
    found = {plugin.values.get("agentSocketPath") or policies.SOCKET for network in networks
             for plugin in flattened(network.plugins) if plugin.type == "policy"}
    return sorted(found | ({os.path.join(directory, os.path.basename(policies.SOCKET))} if directory else set()))


def texts_on(networks: Iterable[NetworkList], ip: str, directory: str = "") -> Iterator[str]:
    """Yield sentences from each agent about an address: the pod, its policies, its way out. directory: see
    sockets()."""
    for path in sockets(networks, directory):
        try:
            for pod in policies.ask(path, {"do": "explain", "address": ip})["pods"]:
                yield f"{ip} is of pod {pod['pod']}: {'; '.join(text(it, pod) for it in DIRECTIONS)}"
                yield from (names_text(ip, name, told) for name, told in pod.get("names", {}).items())
                if found := pod.get("egress_address"):
                    yield egress_text(ip, found)
        except policies.NoAgent as e:
            yield f"network policies on {ip} are not known: the agent at {path}: {e.why}"
        except CniError as e:
            yield f"network policies on {ip} are not known: {e.msg}"


def names_text(ip: str, name: str, told: list[str]) -> str:
    """Return a sentence: at which addresses of a domain name a pod may reach the name. told: these addresses, from the
    answer to `explain`."""
    more = f" and {len(told) - MAX_SHOWN} more" if len(told) > MAX_SHOWN else ""
    return (f"{ip} may reach {name} at {', '.join(told[:MAX_SHOWN])}{more}" if told else
            f"{ip} may reach {name}, but no DNS answer to {ip} has an address that is open now")


def egress_text(ip: str, found: dict[str, str]) -> str:
    """Return a sentence: from which address a pod leaves the cluster. found: a part of the answer to `explain`."""
    if not found["address"]:
        return f"{ip} does not leave the cluster: no node holds an address of EgressAddress {found['name']}"
    return (f"{ip} leaves the cluster from {found['address']} of EgressAddress {found['name']}, which the node "
            f"{found['node']} holds")


def text(direction: str, pod: dict[str, Any]) -> str:
    """Return as text which policies decide about a direction, in their order. pod: a part of the answer to `explain`;
    agents of earlier versions send no tiers."""
    names, admin, baseline = (pod[direction], *(pod.get(tier, {}).get(direction, ()) for tier in ("admin", "baseline")))
    parts = [f"first as the cluster policies {', '.join(admin)} say"] if admin else []
    if names:
        parts.append(f"only as {', '.join(names)} allows")
    elif baseline:
        parts.append(f"as the cluster policies {', '.join(baseline)} of tier Baseline say")
    return f"{direction} {', then '.join(parts)}" if parts else f"no policy restricts {direction}"
