"""Make the JSON document of libcni's cache file of an attachment: `results`/NETWORK-CONTAINERID-IFNAME."""

from __future__ import annotations

from fastcni.spec import json, result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

KIND = "cniCacheV1"
MAX_BYTES = 16 << 20            # limit of a file


def document(network: str, container_id: str, ifname: str, config: bytes, *, netns: str,
             args: Iterable[tuple[str, str]], capability_args: Mapping[str, Any],
             outcome: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document, its keys in libcni's order. config: the configuration's bytes. outcome: the result."""
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
    from binascii import b2a_base64  # in a shared object that most plugins need not load

    return b2a_base64(data, newline=False).decode()


def from_base64(text: str) -> bytes:
    """Decode base64. Raises ValueError."""
    from binascii import a2b_base64

    return a2b_base64(text, strict_mode=True)


def sort_keys(value: Any) -> Any:
    """Return the value with the keys of its objects sorted, as the Go library prints generic maps."""
    if hasattr(value, "keys"):          # any mapping: the import of collections.abc would cost a one-shot plugin time
        return {key: sort_keys(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [sort_keys(entry) for entry in value]
    return value
