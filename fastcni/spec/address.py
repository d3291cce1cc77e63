"""Convert IP addresses between CNI's text and packed bytes (4 or 16), by the rules of Go."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

MAPPED = bytes(10) + b"\xff\xff"        # ::ffff:0:0/96, which Go always treats as IPv4


def read_ip(text: str) -> bytes:
    """Return the 4 or 16 bytes of the IP address `text`, which has no prefix length. Raises ValueError."""
    try:
        if ":" not in text:
            return inet_pton(AF_INET, text)
        packed = inet_pton(AF_INET6, text)
    except (OSError, ValueError, TypeError):
        raise ValueError(f"invalid IP address: {text}") from None
    return packed[12:] if packed.startswith(MAPPED) else packed


def ip_text(packed: bytes) -> str:
    """Return a packed address as text; IPv6 in the form of RFC 5952."""
    if len(packed) == 4:
        return inet_ntop(AF_INET, packed)
    if not any(packed[:12]) and any(packed[12:14]):     # inet_ntop(3) prints these addresses as ::1.2.3.4
        return f"::{int.from_bytes(packed[12:14], 'big'):x}:{int.from_bytes(packed[14:], 'big'):x}"
    if packed.startswith(MAPPED):
        return inet_ntop(AF_INET, packed[12:])
    return inet_ntop(AF_INET6, packed)


def read_cidr(text: str) -> tuple[bytes, int]:
    """Parse the text `address/prefix`. Return (packed address with its host bits, prefix length). Raises ValueError."""
    try:
        ip, _, length = text.partition("/")
        if not length.isdigit() or not length.isascii():
            raise ValueError
        prefix = int(length)
        if ":" not in ip:
            packed = inet_pton(AF_INET, ip)
            if prefix > 32:
                raise ValueError
            return packed, prefix
        packed = read_ip(ip)
        if prefix > 128:
            raise ValueError
    except (OSError, ValueError, AttributeError):
        raise ValueError(f"invalid CIDR address: {text}") from None
    return packed, prefix if len(packed) == 16 else max(prefix - 96, 0)


def cidr_text(packed: bytes, prefix: int) -> str:
    """Return the text `address/prefix`, the reverse of read_cidr()."""
    return f"{ip_text(packed)}/{prefix}"


def link_local(mac: bytes) -> bytes:
    """Return the link-local address that the kernel derives from a MAC: fe80::/64 and the modified EUI-64 (RFC 4291,
    appendix A)."""
    return b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:]


def host_mask(packed: bytes, prefix: int) -> int:
    """Return an integer in which the host bits of the address are 1."""
    return (1 << 8 * len(packed) - prefix) - 1


def network(packed: bytes, prefix: int) -> bytes:
    """Return the address with its host bits zero."""
    return (int.from_bytes(packed, "big") & ~host_mask(packed, prefix)).to_bytes(len(packed), "big")


def in_subnet(packed: bytes, subnet: bytes, prefix: int) -> bool:
    """Return whether an address is in a subnet; `subnet` may have host bits."""
    return len(packed) == len(subnet) and network(packed, prefix) == network(subnet, prefix)


def broadcast(packed: bytes, prefix: int) -> bytes:
    """Return the address with its host bits one."""
    return (int.from_bytes(packed, "big") | host_mask(packed, prefix)).to_bytes(len(packed), "big")


def plus(packed: bytes, n: int) -> bytes:
    """Return the address `packed` plus `n`; n may be negative. Raises OverflowError if the sum is no address."""
    return (int.from_bytes(packed, "big") + n).to_bytes(len(packed), "big")


def is_loopback(packed: bytes) -> bool:
    """Return whether the address is in 127.0.0.0/8, or is ::1."""
    return packed[:1] == b"\x7f" if len(packed) == 4 else packed == bytes(15) + b"\x01"
