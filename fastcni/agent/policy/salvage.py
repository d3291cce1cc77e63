"""Protect a pod whose record on disk is damaged or lost: find the pod's addresses and port, and close the pod in both
directions.

The text of a damaged record may still name the pod's addresses and port. Otherwise the agent finds the port in the
kernel's tables, which exist as long as the pod unless another program removes them. If the tables have a port whose
link exists, and no record names the port, its pod's record is damaged or lost.

The agent does not use the labels of a damaged record, because a wrong label could allow the pod too much. The agent
puts the pod into a namespace whose name no source can use. One policy selects all pods of this namespace and allows
nothing.
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
    """Return the readable addresses, packed, in the text of a damaged record."""
    found = []
    for listed in ADDRESSES.findall(text):
        for one in re.findall(r'"([^"]*)"', listed):
            try:
                found.append(address.read_ip(one))
            except ValueError:
                continue
    return tuple(dict.fromkeys(found))


def port_of(text: str) -> Port | None:
    """Return the port in the text of a damaged record; None if the text has no readable port."""
    for match in PORT.finditer(text):
        try:
            return ports.read(json.JSONDecoder().raw_decode(text, match.end())[0])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return None


def held(name: bytes, bridged: bool, keys: list[bytes]) -> tuple[Port, tuple[bytes, ...]]:
    """Return (port, its pod's addresses) for a port that Ruleset.held_ports() found in the kernel's tables;
    held_ports() describes the arguments.

    The port lacks the pod's further MACs and prefixes, so the pod cannot use them. For a routed link (ptp) the MAC is
    unknown: the port has the MAC zero, which has no effect.
    """
    before = padded(ETH_ALEN) if bridged else 0
    mac = keys[0][:ETH_ALEN] if bridged and keys else bytes(ETH_ALEN)
    addresses = dict.fromkeys(key[before:] for key in keys if not LINK_LOCAL.match(key[before:]))
    return Port(read_ifname(name), bridged, mac), tuple(addresses)
