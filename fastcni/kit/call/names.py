"""Derive names and marks from an attachment (network, container, ifname), so that DEL finds what ADD made. Read the
names of iptables chains in a configuration."""

from __future__ import annotations

import sys

from fastcni.spec.config import is_name, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.spec.config import Section

ADMIN_CHAIN = "CNI-ADMIN"       # the chain of the host's administrator, unless the network names another chain
MAX_CHAIN_LENGTH = 28           # XT_EXTENSION_MAXNAMELEN of linux/netfilter/x_tables.h, without the closing NUL
loaded_sha512: Callable[[bytes], Any] | None = None     # the constructor, after the first digest of this process


def digest(text: str, length: int, prefix: str = "") -> str:
    """Return `prefix` and the SHA-512 of `text` in lower-case hex, cut to `length` characters."""
    sha512 = loaded_sha512 or load_sha512()
    return prefix + sha512(text.encode()).hexdigest()[:length - len(prefix)]


def load_sha512() -> Callable[[bytes], Any]:
    """Import Python's SHA-512, and return its constructor.

    hashlib would load OpenSSL. The SHA-512 module is not in the plugin file: an import at the top of names.py could
    begin the main phase of Python's start while the plugin file's modules are half loaded."""
    global loaded_sha512
    if sys.hexversion >= 0x030C0000:
        from _sha2 import sha512
    else:
        from _sha512 import sha512
    loaded_sha512 = sha512
    return sha512


def chain(prefix: str, req: Request) -> str:
    """Return the name of the attachment's iptables chain, as the reference plugins derive it: 28 characters, such as
    CNI-e8f6f419596f7f47b3468487."""
    return container_chain(prefix, req.name, req.container_id)


def container_chain(prefix: str, name: str, container_id: str) -> str:
    """Return the name of a container's chain, as the reference plugins derive it from the network's name and the
    container id."""
    return digest(name + container_id, MAX_CHAIN_LENGTH, prefix)


def read_chain(keys: Section, key: str, default: str = "") -> str:
    """Return the value of `key`, the name of an iptables chain, or `default` if the key is absent or empty. Raises
    CniError 7."""
    name = keys.text(key) or default
    if name and not (is_name(name) and len(name) <= MAX_CHAIN_LENGTH):
        raise keys.wrong(key, f"not the name of a chain: {shown(name)}")
    return name


def network_mark(name: str) -> str:
    """Return the text with which the marks of all attachments of a network begin."""
    return digest(name, 16)


def mark(req: Request) -> str:
    """Return the comment of an attachment's nftables objects: hashes, which fastcni compares, then text for people.

        6c3bf4d2..-a7f0e5b8.., net: mynet, if: eth0, id: container1
    """
    text = f"net: {req.name}, if: {req.ifname}, id: {req.container_id}".replace('"', "")
    return f"{req.hashes}, {text}"


def hashes(name: str, container_id: str, ifname: str) -> str:
    """Return the hashes of a mark. fastcni compares only the hashes, because the text after the hashes may be cut."""
    return f"{network_mark(name)}-{digest(f'{ifname}:{container_id}', 16)}"
