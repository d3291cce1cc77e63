"""Make and store this node's private WireGuard key. The kernel computes the public key."""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from pathlib import Path

from fastcni._netlink import Batch
from fastcni.agent.contract import ConfigurationError
from fastcni.agent.files import read, write
from fastcni.agent.links import remove
from fastcni.kernel import genl, rtnl, uapi, wire
from fastcni.kernel.devices import wireguard
from fastcni.kit.links import find

FILE = "wgkey"
PROBE = "flannel-wg-key"        # a temporary link, by which the kernel computes a public key


def kept(directory: str) -> bytes:
    """Return the private key stored in `directory`, 32 bytes. Without a valid file, make and store a new key. Raises
    OSError."""
    path = Path(directory, FILE)
    try:
        key = b64decode(read(path).strip(), validate=True)
    except (FileNotFoundError, ValueError):
        key = b""
    if len(key) != wireguard.KEY_BYTES:
        key = new()
        write(path, b64encode(key).decode() + "\n", mode=0o400)
    return key


def new() -> bytes:
    """Return a random private key, 32 bytes, with the bits that Curve25519 fixes (RFC 7748, section 5)."""
    key = bytearray(secrets.token_bytes(wireguard.KEY_BYTES))
    key[0] &= 0xF8
    key[31] = key[31] & 0x7F | 0x40
    return bytes(key)


def public(private: bytes) -> bytes:
    """Return the public key for the key `private`. Raises ConfigurationError if the kernel has no WireGuard, and
    NetlinkError."""
    with wire.open_socket() as sock, wire.open_socket(uapi.NETLINK_GENERIC) as generic:
        try:
            remove(sock, PROBE)         # an agent that was killed in this function has left the link
            wire.exchange(sock, rtnl.new_link(Batch(), PROBE, "wireguard", None))
        except wire.NetlinkError as e:
            raise ConfigurationError(f"Backend wireguard: {e}; does this kernel have WireGuard?") from None
        try:
            index = find.new_link(sock, PROBE).index
            family = genl.family_id(generic, wireguard.FAMILY)
            wire.exchange(generic, wireguard.set_device(Batch(), family, index, private, 0))
            return wireguard.read_device(generic, family, index).public_key
        finally:
            wire.exchange(sock, rtnl.del_link(Batch(), name=PROBE))
