"""Read the capability portMappings, which maps ports of the host to ports of the pod."""

from __future__ import annotations

from fastcni.spec import address as addresses
from fastcni.spec import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastcni.kit.call.request import Request
    from fastcni.spec.config import Section

PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}         # IPPROTO_*
MAX_MAPPINGS = 65536            # most mappings of a pod


class Mapping:
    """The mapping of a port of the host to a port of the pod.

    protocol: a key of PROTOCOLS. host_ip: a packed address, b"" for every address of the host. lengths: the families of
    the mapping, as address lengths: 4, 16 or both.
    """

    __slots__ = ("protocol", "host_port", "container_port", "host_ip", "lengths")

    def __init__(self, protocol: str, host_port: int, container_port: int, host_ip: bytes,
                 lengths: Sequence[int]) -> None:
        self.protocol, self.host_port, self.container_port = protocol, host_port, container_port
        self.host_ip, self.lengths = host_ip, lengths

    def __str__(self) -> str:
        if not self.host_ip:
            return f"{self.host_port}/{self.protocol}"
        text = addresses.ip_text(self.host_ip)
        return f"{f'[{text}]' if ':' in text else text}:{self.host_port}/{self.protocol}"


def read(conf: Section) -> list[Mapping]:
    """Read runtimeConfig.portMappings. A range becomes one Mapping for each of its ports. Raises CniError 7."""
    found: list[Mapping] = []
    for section in conf.section("runtimeConfig").sections("portMappings"):
        container_port, host_port = (read_port(section, key) for key in ("containerPort", "hostPort"))
        count = section.integer("range", default=1, low=1, high=65536 - max(container_port, host_port))
        if len(found) + count > MAX_MAPPINGS:
            raise errors.bad_config(f"runtimeConfig.portMappings: more than {MAX_MAPPINGS} ports")
        protocol, (host_ip, lengths) = read_protocol(section), read_host_ip(section)
        found += [Mapping(protocol, host_port + n, container_port + n, host_ip, lengths) for n in range(count)]
    check_distinct(found)
    return found


def read_port(section: Section, key: str) -> int:
    port = section.integer(key)
    if not 0 < port < 65536:
        name = {"hostPort": "host port", "containerPort": "container port"}[key]
        raise errors.bad_config(f"Invalid {name} number: {port}", f"{section.path(key)} is from 1 to 65535")
    return port


def read_protocol(section: Section) -> str:
    text = section.text("protocol")
    if text.lower() not in PROTOCOLS:
        raise section.wrong("protocol", f'unknown protocol "{text[:80]}"; there are {", ".join(PROTOCOLS)}')
    return text.lower()


def read_host_ip(section: Section) -> tuple[bytes, Sequence[int]]:
    """Return (packed address, lengths). 0.0.0.0 and :: mean every address of their family and become b""."""
    packed = section.ip("hostIP")
    if packed is None:
        return b"", (4, 16)
    return packed if any(packed) else b"", (len(packed),)


def check_distinct(mappings: Sequence[Mapping]) -> None:
    """Raise CniError 7 for a port that is mapped twice. As with bind(2), a mapping on all addresses (0.0.0.0, ::)
    conflicts with the same port on one address."""
    taken: dict[tuple[str, int, int], dict[bytes, Mapping]] = {}
    for mapping in mappings:
        for length in mapping.lengths:
            others = taken.setdefault((mapping.protocol, mapping.host_port, length), {})
            other = others.get(mapping.host_ip) or others.get(b"") or (not mapping.host_ip and first(others))
            if other:
                raise errors.bad_config(f"host port {mapping} is mapped twice",
                                        f"runtimeConfig.portMappings has {other} too")
            others[mapping.host_ip] = mapping


def first(found: dict[bytes, Mapping]) -> Mapping | None:
    return next(iter(found.values()), None)


def warn_of_processes(req: Request, mappings: Sequence[Mapping], lengths: Collection[int]) -> None:
    """Warn for each mapped port on which a process of the node listens. lengths: the lengths of the pod's addresses.

    No error if the kernel cannot list its sockets, because the mapping does not depend on the list.
    """
    from fastcni.kernel import wire
    from fastcni.kernel.sockets import inet_sockets

    for protocol in sorted({mapping.protocol for mapping in mappings}):
        by_port: dict[int, list[Mapping]] = {}
        for mapping in mappings:
            if mapping.protocol == protocol:
                by_port.setdefault(mapping.host_port, []).append(mapping)
        try:
            held = {mapping: it for it in inet_sockets.waiting(PROTOCOLS[protocol])
                    for mapping in by_port.get(it.port, ())
                    if any(it.serves(mapping.host_ip, length) for length in mapping.lengths if length in lengths)}
        except wire.NetlinkError:
            continue
        for mapping, it in held.items():
            req.warn(f"portmap: host port {mapping}: a process of the node listens on {addresses.ip_text(it.packed)}, "
                     "and packets from outside go to the pod; "
                     f"`fastcni explain {it.port}/{protocol}` names the process")
