"""Find the DNS resolvers of pods, whose answers give the addresses of domain names in policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable

RESOLV_CONF = "/etc/resolv.conf"


def read_resolvers(servers: Iterable[str], path: str = RESOLV_CONF) -> list[bytes]:
    """Return the packed addresses in `servers`, or in resolv.conf(5) if `servers` is empty, without addresses that no
    pod can query. Raises ValueError if an item of `servers` is no address."""
    found = [address.read_ip(text) for text in list(servers) or nameservers(path)]
    return [each for each in dict.fromkeys(found) if can_be_asked(each)]


def can_be_asked(packed: bytes) -> bool:
    """Return whether a pod can send queries to an address. False for loopback, unspecified, multicast and broadcast
    addresses, and for link-local addresses of IPv6, which are valid only on a link of the node."""
    if len(packed) == 4:
        return packed[0] not in (0, 127) and packed[0] < 224
    return any(packed[:15]) and not packed.startswith((b"\xfe\x80", b"\xff"))


def nameservers(path: str) -> list[str]:
    """Return the nameservers' addresses in a file like resolv.conf; [] if the file cannot be read."""
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
