"""The resolvers whose answers count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Iterable

RESOLV_CONF = "/etc/resolv.conf"
UNREACHABLE = (b"\x7f", bytes(15) + b"\1", b"\xfe\x80")         # loopback and link-local: no pod can ask these


def read_resolvers(servers: Iterable[str], path: str = RESOLV_CONF) -> list[bytes]:
    """Return the addresses of `servers`; without any, those of resolv.conf(5). Loopback and link-local addresses are
    left out. Raises ValueError for a server that is no address."""
    texts = list(servers) or nameservers(path)
    found = [address.read_ip(text) for text in texts]
    return [each for each in dict.fromkeys(found) if not each.startswith(UNREACHABLE)]


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
