"""The resolvers whose answers give the addresses of domain names in policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable

RESOLV_CONF = "/etc/resolv.conf"


def read_resolvers(servers: Iterable[str], path: str = RESOLV_CONF) -> list[bytes]:
    """Return the addresses of `servers`, or of resolv.conf(5) if `servers` is empty. Leave out addresses that no pod
    can query. Raises ValueError for a server that is no address."""
    found = [address.read_ip(text) for text in list(servers) or nameservers(path)]
    return [each for each in dict.fromkeys(found) if can_be_asked(each)]


def can_be_asked(packed: bytes) -> bool:
    """Whether a pod can send queries to an address: it is not loopback, unspecified, multicast or broadcast, and no
    link-local address of IPv6, which belongs to a link of the node."""
    if len(packed) == 4:
        return packed[0] not in (0, 127) and packed[0] < 224
    return any(packed[:15]) and not packed.startswith((b"\xfe\x80", b"\xff"))


def nameservers(path: str) -> list[str]:
    """Return the addresses of the nameservers in a file; none if the file cannot be read."""
    try:
        with open(path, errors="replace") as file:
            words = [line.split() for line in file]
    except OSError:
        return []
    texts = [each[1].partition("%")[0] for each in words if len(each) > 1 and each[0] == "nameserver"]
    return [text for text in texts if is_address(text)]


def is_address(text: str) -> bool:
    try:
        address.read_ip(text)
    except ValueError:
        return False
    return True
