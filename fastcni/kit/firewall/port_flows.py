"""Delete UDP and SCTP flows from conntrack after the host's ports have changed.

Without the deletion, packets of a client that keeps its source port still go to the previous pod. TCP flows need no
deletion, because TCP connections end by themselves.
"""

from __future__ import annotations

from errno import EINVAL, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import conntrack, rtnl, uapi, wire
from fastcni.kit.firewall.port_mappings import PROTOCOLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.portmap.keys import Conf

    Port = tuple[int, int, int]         # (family, protocol, port) as numbers of the kernel

WITHOUT_END = ("udp", "sctp")
FAMILIES = {4: uapi.AF_INET, 16: uapi.AF_INET6}        # keys: address length in bytes


def after_add(req: Request, conf: Conf) -> None:
    """Delete the flows to the mapped ports that end at the node itself, because they began before ADD. Flows that NAT
    has changed, such as DNS queries of other pods, stay."""
    with_warning(req, forget_untranslated, ports_of(conf, conf.pod))


def after_delete(req: Request, conf: Conf) -> None:
    """Delete the flows to the pod. If the pod's address is unknown, delete the flows to the node's ports that were
    mapped to the pod."""
    if conf.pod:
        protocols = {mapping.protocol for mapping in conf.mappings} & {*WITHOUT_END} if conf.mappings else WITHOUT_END
        with_warning(req, forget_translated, conf.pod, [PROTOCOLS[protocol] for protocol in protocols])
    else:
        with_warning(req, forget_at_node, ports_of(conf, FAMILIES))


def ports_of(conf: Conf, lengths: Iterable[int]) -> list[Port]:
    """Return the host's ports of the mappings for addresses of these lengths."""
    return [(FAMILIES[length], PROTOCOLS[mapping.protocol], mapping.host_port) for length in lengths
            for mapping in conf.mappings_for(length) if mapping.protocol in WITHOUT_END]


def with_warning(req: Request, function: Callable[..., None], *args: Any) -> None:
    """Call function(req, *args). A kernel error is only a warning, because new flows work without the deletion."""
    try:
        function(req, *args)
    except wire.NetlinkError as e:
        req.warn(f"older flows to the mapped ports may still go to their old destination: {e}")


def forget_untranslated(req: Request, ports: Sequence[Port]) -> None:
    for at in range(0, len(ports), wire.MAX_ASKED):
        some, batch = ports[at:at + wire.MAX_ASKED], Batch()
        for port in some:
            conntrack.forget_untranslated(batch, *port)
        if not wire.succeeds(req.mode.firewall, batch, (EINVAL,)):      # Linux before 6.8 answers EINVAL
            for port in some:
                forget_each(req, port, lambda flow: not flow.nat)


def forget_translated(req: Request, pod: dict[int, tuple[bytes, int]], protocols: Iterable[int]) -> None:
    for length, (packed, _) in pod.items():
        for protocol in protocols:
            if length == 16 or not wire.succeeds(
                    req.mode.firewall, conntrack.forget_translated(Batch(), protocol, packed), (EINVAL,)):
                forget_each(req, (FAMILIES[length], protocol), lambda flow: flow.replier == packed)    # noqa: B023


def forget_at_node(req: Request, ports: Iterable[Port]) -> None:
    for port in ports:
        forget_each(req, port, lambda flow: is_local(req, flow.destination))


def forget_each(req: Request, what: tuple[int, ...], wanted: Callable[[Any], bool]) -> None:
    """Find flows by `what`, see conntrack.find(). Delete the flows for which wanted(flow) is true."""
    for flow in conntrack.find(req.mode.firewall, *what):
        if wanted(flow):
            wire.exchange(req.mode.firewall, conntrack.delete(Batch(), flow), (ENOENT,))


def is_local(req: Request, packed: bytes) -> bool:
    """Return whether `packed` is an address of the node."""
    replies, refused = wire.attempt(req.mode.route, rtnl.get_route(Batch(), packed, "look up a flow's destination"))
    return not refused and rtnl.read_way(replies[0][1])[0] == uapi.RTN_LOCAL
