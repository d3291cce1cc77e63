"""Choose the MAC of a node's vxlan link: stored in the agent's directory, or derived from the node's address."""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.agent.files import read, write
from fastcni.kernel import wire
from fastcni.kit.links import find

if TYPE_CHECKING:
    from fastcni.agent.contract import Address

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


def kept_mac(directory: str, name: str) -> str:
    """Return the MAC that `directory` stores for the link `name`. If no MAC is stored, store and return the MAC of the
    existing link, which flanneld may have made; without a link, a random MAC. Raises OSError."""
    path = Path(directory, f"{name}.mac")
    try:
        text = read(path).strip()
    except (FileNotFoundError, ValueError):
        text = ""
    if not MAC.fullmatch(text):
        text = present_mac(name) or random_mac()
        write(path, f"{text}\n")
    return text


def present_mac(name: str) -> str:
    with wire.open_socket() as sock:
        link = find.link(sock, name)
    return link.mac if link else ""


def derived_mac(address: Address, vni: int) -> str:
    """Return the MAC of the node at a public address, for a registry in which nodes do not publish MACs. All nodes
    derive the same, locally administered MAC from this address."""
    digest = hashlib.sha256(f"fastcni vxlan {vni} {address}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (2, *digest[:5]))


def random_mac() -> str:
    """Return a random, locally administered unicast MAC (IEEE 802: bit 1 of the first byte set, bit 0 clear)."""
    first, *rest = secrets.token_bytes(6)
    return ":".join(f"{byte:02x}" for byte in (first & 0xFC | 2, *rest))
