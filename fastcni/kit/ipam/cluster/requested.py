"""Read the pod's identity, and the addresses that the pod requests by CNI_ARGS, args.cni.ips and runtimeConfig.ips.

    IP=10.0.0.5 or IP=10.0.0.5/24,fd00::5/64    the requested addresses
    GATEWAY=10.0.0.1                            the gateway of the requested addresses outside of all ranges
    K8S_POD_NAMESPACE, K8S_POD_NAME             the pod, by which another sandbox of the pod finds its addresses

A requested address in a range is given from that range. Any other requested address needs a prefix length, and is put
into the result unchanged, as in whereabouts.
"""

from __future__ import annotations

from fastcni.spec import address
from fastcni.spec import ipam as ipam_conf
from fastcni.spec.config import read_args
from fastcni.spec.errors import INVALID_CONFIG, INVALID_ENVIRONMENT, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni.kit.call.request import Request
    from fastcni.kit.ipam.cluster.grid import Range
    from fastcni.spec.config import Section

    Address = tuple[bytes, int, bytes | None]

ARGS = ("IP", "GATEWAY", "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID")


class Requested:
    """The addresses that a pod requests. pod: "namespace/name", "" if unknown. wanted: for each range the requested
    packed address or None. extra: requested addresses outside of all ranges, [(packed, prefix length, packed gateway or
    None)]."""

    __slots__ = ("extra", "pod", "wanted")
    extra: list[Address]
    pod: str
    wanted: list[bytes | None]


def read_requested(req: Request, ranges: Sequence[Range]) -> Requested:
    """Read the pod's identity and its requested addresses. Raises CniError 4 and 7."""
    found = Requested()
    args = read_args(req.args, ARGS) if req.args else {}
    found.pod = read_pod(args)
    configured = req.conf.once(read_configured)
    if not args.get("IP") and not configured and not args.get("GATEWAY"):
        found.wanted, found.extra = [None] * len(ranges), []
        return found
    listed = [read_listed(text) for text in split(args.get("IP", ""))]
    inside = [packed for packed, _ in listed if any(one.contains(packed) for one in ranges)]
    found.wanted = assign(ranges, list(dict.fromkeys([*inside, *configured])))
    found.extra = [(packed, need_prefix(packed, prefix), None) for packed, prefix in listed if packed not in inside]
    for text in split(args.get("GATEWAY", "")):
        gateway = read_gateway(text)
        found.extra = [(packed, prefix, gateway if address.in_subnet(gateway, packed, prefix) else old)
                       for packed, prefix, old in found.extra]
    return found


def read_pod(args: dict[str, str]) -> str:
    """Return "namespace/name" of the pod, "" outside of Kubernetes. args: CNI_ARGS."""
    name = args.get("K8S_POD_NAME", "")
    return f"{args.get('K8S_POD_NAMESPACE', '')}/{name}" if name else ""


def assign(ranges: Sequence[Range], asked: list[bytes]) -> list[bytes | None]:
    """Return for each range its requested address, packed, or None. Raises CniError 7 if an address of `asked` is in no
    range, or if its range excludes it."""
    wanted: list[bytes | None] = []
    left = list(asked)
    for one in ranges:
        packed = next((p for p in left if one.contains(p)), None)
        wanted.append(packed)
        if packed is None:
            continue
        left.remove(packed)
        if not one.has(int.from_bytes(packed, "big")):
            why = "is the gateway" if packed == one.gateway else "is excluded, or outside of the bounds"
            raise CniError(INVALID_CONFIG, f"requested IP address {address.ip_text(packed)} {why} of range {one}")
    if left:
        raise CniError(INVALID_CONFIG,
                       f"failed to allocate all requested IPs: {' '.join(map(address.ip_text, left))}",
                       f"each of the ranges {'; '.join(map(str, ranges))} gives one address")
    return wanted


def read_configured(conf: Section) -> list[bytes]:
    """Return the addresses of args.cni.ips and runtimeConfig.ips, packed. Raises CniError 7."""
    return ipam_conf.requested_addresses(conf, lambda text: read_net(text)[0])


def read_listed(text: str) -> tuple[bytes, int]:
    """Return an address of the list IP=, packed, and its prefix length, or -1 without prefix length."""
    try:
        packed, prefix = read_net(text)
    except ValueError as e:
        raise CniError(INVALID_ENVIRONMENT, f"CNI_ARGS: IP: {e}") from None
    return packed, prefix if "/" in text else -1


def need_prefix(packed: bytes, prefix: int) -> int:
    if prefix < 0:
        raise CniError(INVALID_ENVIRONMENT, f"CNI_ARGS: IP={address.ip_text(packed)} is in no range",
                       "such an address needs its prefix length, as 10.0.0.5/24")
    return prefix


def read_gateway(text: str) -> bytes:
    try:
        return address.read_ip(lenient(text))
    except ValueError:
        raise CniError(INVALID_ENVIRONMENT, f"CNI_ARGS: GATEWAY: invalid IP address: {text[:80]}") from None


def split(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")] if text else []


def read_net(text: str) -> tuple[bytes, int]:
    """Return (packed address, prefix length). The host bits stay. The prefix length is optional, by default 32 or 128.
    Raises ValueError."""
    text = lenient(text)
    if "/" in text:
        return address.read_cidr(text)
    packed = address.read_ip(text)
    return packed, len(packed) * 8


def lenient(text: str) -> str:
    """Return the text of an address without leading zeros in its IPv4 parts: 010.000.0.1 becomes 10.0.0.1."""
    if ".0" not in text and not text.startswith("0") and ":0" not in text:
        return text
    ip, slash, prefix = text.partition("/")
    head, colon, four = ip.rpartition(":")
    if "." in four:
        four = ".".join(part.lstrip("0") or "0" if part else part for part in four.split("."))
    return f"{head}{colon}{four}{slash}{prefix}"
