"""Protect a pod whose record on disk is damaged or lost: find its addresses and port, and close it in both directions.

The record's own text may name the pod's addresses and its port. Else the kernel's tables do, which outlive the agent:
a pod lives no longer than they do, unless another program removes them. A port that the tables hold, whose link
exists and that no record names, is the port of such a pod.

The labels of a damaged record are not used: a wrong label would open the pod. The pod's attachment belongs to a
namespace that no source can name, with one policy that selects all its pods and allows nothing.
"""

from __future__ import annotations

import json
import re

from fastcni.agent.policy import ports
from fastcni.agent.policy.objects import EVERYTHING, Group, Policy
from fastcni.agent.policy.ports import Port
from fastcni.agent.policy.sources.unreadable import SUFFIX
from fastcni.kernel.nft_elements import padded, read_ifname
from fastcni.spec import address

NAMESPACE = "(damaged record)"
CLOSED = Policy(NAMESPACE, f"pods{SUFFIX}", Group(NAMESPACE, EVERYTHING), (), ())
ADDRESSES = re.compile(r'"addresses": \[([^\]]*)\]')
PORT = re.compile(r'"port": ')
ETH_ALEN = 6
LINK_LOCAL = re.compile(rb"\xfe[\x80-\xbf]")


def addresses_of(text: str) -> tuple[bytes, ...]:
    """Return the addresses that the text of a record names, without those that cannot be read."""
    found = []
    for listed in ADDRESSES.findall(text):
        for one in re.findall(r'"([^"]*)"', listed):
            try:
                found.append(address.read_ip(one))
            except ValueError:
                continue
    return tuple(dict.fromkeys(found))


def port_of(text: str) -> Port | None:
    """Return the port that the text of a record names; None if its description cannot be read."""
    for match in PORT.finditer(text):
        try:
            return ports.read(json.JSONDecoder().raw_decode(text, match.end())[0])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return None


def held(name: bytes, bridged: bool, keys: list[bytes]) -> tuple[Port, tuple[bytes, ...]]:
    """Return a port that the kernel's tables hold, and its pod's addresses. Arguments: see Ruleset.held_ports().

    Further MACs and prefixes of the pod are not known, so the pod cannot use them. At a link that is no port of a
    bridge, the MAC is not known and has no effect.
    """
    before = padded(ETH_ALEN) if bridged else 0
    mac = keys[0][:ETH_ALEN] if bridged and keys else bytes(ETH_ALEN)
    addresses = dict.fromkeys(key[before:] for key in keys if not LINK_LOCAL.match(key[before:]))
    return Port(read_ifname(name), bridged, mac), tuple(addresses)
