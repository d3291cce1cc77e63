"""Make the JSON document that libcni caches for an attachment, in the file `results`/NETWORK-CONTAINERID-IFNAME."""

from __future__ import annotations

from fastcni.spec import json, result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

KIND = "cniCacheV1"
MAX_BYTES = 16 << 20            # the maximum size of a cache file

# Base64 and octal digits, see to_base64()
DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
OCTAL = b"01234567"
EIGHTS, ONES = bytes.maketrans(OCTAL, bytes(range(0, 64, 8))), bytes.maketrans(OCTAL, bytes(range(8)))
TO_DIGIT = bytes.maketrans(bytes(range(64)), DIGITS)
TO_HIGH = bytes.maketrans(DIGITS, b"".join(bytes([digit]) * 8 for digit in OCTAL))
TO_LOW = bytes.maketrans(DIGITS, OCTAL * 8)


def document(network: str, container_id: str, ifname: str, config: bytes, *, netns: str,
             args: Iterable[tuple[str, str]], capability_args: Mapping[str, Any],
             outcome: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document, with keys in libcni's order. config: the configuration's bytes. outcome: the result of
    ADD; None: the document has no result."""
    found: dict[str, Any] = {"kind": KIND, "containerId": container_id,
                             "config": to_base64(config), "ifName": ifname,
                             "networkName": network}
    if netns:
        found["netns"] = netns
    if pairs := [list(pair) for pair in args]:
        found["cniArgs"] = pairs
    if capability_args:
        found["capabilityArgs"] = sort_keys(capability_args)
    if outcome is not None:
        found["result"] = sort_keys(json.read(result.encode(outcome, indent=0)))
    return found


def to_base64(data: bytes) -> str:
    """Encode base64 (RFC 4648, section 4) without binascii, whose import takes a one-shot plugin 3 ms of processor
    time.

    A base64 digit has 6 bits, which are two octal digits; its value is 8 * (first digit) + (second digit). The bytes of
    one long integer are the values 8 * (first digit), the bytes of another are the second digits. Each byte of the sum
    of these integers is the value of one base64 digit, because no byte carries into the next.
    """
    size = (len(data) * 4 + 2) // 3                 # digits
    number = int.from_bytes(data, "big") << (size * 6 - len(data) * 8)
    octal = f"{number:0{2 * size}o}".encode()
    high, low = octal[0::2].translate(EIGHTS), octal[1::2].translate(ONES)
    values = (int.from_bytes(high, "big") + int.from_bytes(low, "big")).to_bytes(size, "big") if size else b""
    return values.translate(TO_DIGIT).decode() + "=" * (-size % 4)


def from_base64(text: str) -> bytes:
    """Decode base64. Raises ValueError."""
    digits = text.rstrip("=").encode("utf-8", "replace")
    size = len(digits) * 6 // 8                     # bytes
    if len(text) % 4 or len(text) - len(digits) > 2 or digits.translate(None, DIGITS):
        raise ValueError("not base64")
    octal = bytearray(b"0" * (2 * len(digits) + 1))
    octal[1::2], octal[2::2] = digits.translate(TO_HIGH), digits.translate(TO_LOW)
    return (int(octal, 8) >> (len(digits) * 6 - size * 8)).to_bytes(size, "big")


def sort_keys(value: Any) -> Any:
    """Return the value with the keys of its objects sorted, as Go prints generic maps."""
    if hasattr(value, "keys"):          # any mapping: the import of collections.abc would cost a one-shot plugin time
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [sort_keys(entry) for entry in value]
    return value
