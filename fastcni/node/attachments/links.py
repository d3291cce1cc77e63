"""Read the host's links that lead to pods, by rtnetlink. This needs no root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.shaping.ifbs import MARK
from fastcni.node.attachments.attachment import FASTCNI, LINK, Sighting
from fastcni.node.attachments.tables import read_mark

VETH = re.compile(r"veth[0-9a-f]{8}")           # names that fastcni and the reference plugins give to host ends
IFB = re.compile(r"bwp[0-9a-f]{12}")            # names of the ifb links of the plugin bandwidth
COUNTERS = ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped")


def read_links(links: Iterable[Link]) -> Iterator[Sighting]:
    """Yield a Sighting for each link whose name or alias comes from a CNI plugin."""
    for link in links:
        if link.kind == "ifb" and IFB.fullmatch(link.name):
            known = read_mark(link.alias.removeprefix(MARK)) if link.alias.startswith(MARK) else {}
            yield Sighting(LINK, link.name, "ifb of bandwidth", known.get("network", ""), known.get("id", ""),
                           known.get("ifname", ""), bool(known.get("cut")), known.get("hashes", ""),
                           links=(link.name,), author=FASTCNI if known else "")
        elif link.kind == "veth" and VETH.fullmatch(link.name):
            yield Sighting(LINK, link.name, "veth", links=(link.name,))


def counters(sock: wire.Socket, index: int) -> dict[str, int]:
    """Return {name of a field of rtnl_link_stats64: value} of a link; {} if the link no longer exists. Raises
    NetlinkError."""
    batch = Batch().begin(uapi.RTM_GETLINK, uapi.NLM_F_ACK, rtnl.ifinfomsg(index), f"read counters of link {index}")
    replies = wire.exchange(sock, batch, (ENODEV,))
    if not replies:
        return {}
    return dict(zip(COUNTERS, rtnl.read_counters(replies[0][1], len(COUNTERS)), strict=False))
