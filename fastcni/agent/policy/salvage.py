"""What is still known of a pod whose record on disk is damaged: with an address, the pod is closed in both directions.

The labels of such a record are not used: a wrong label would open the pod. Its attachment belongs to a namespace that
no source can name, with one policy that selects all its pods and allows nothing.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from fastcni.agent.policy import ports
from fastcni.agent.policy.objects import EVERYTHING, Group, Policy
from fastcni.agent.policy.sources.unreadable import SUFFIX
from fastcni.spec import address

if TYPE_CHECKING:
    from fastcni.agent.policy.ports import Port

NAMESPACE = "(damaged record)"
CLOSED = Policy(NAMESPACE, f"pods{SUFFIX}", Group(NAMESPACE, EVERYTHING), (), ())
ADDRESSES = re.compile(r'"addresses": \[([^\]]*)\]')
PORT = re.compile(r'"port": ')


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
