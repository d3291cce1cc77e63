"""Find the attachment that an operator's text names, and collect its details: links, counters and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastcni.kernel import wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.call.similar import meant_id
from fastcni.kit.links import find as find_links
from fastcni.node.attachments.attachment import Cached, Inventory, NodeAttachment
from fastcni.node.attachments.links import counters
from fastcni.runtime.records import LO_IFNAME
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class HostLink:
    """A link of the host. counters: the kernel's counters of the link, {} if it no longer exists. master: the name of
    the link's bridge, or ""."""

    name: str
    index: int
    kind: str
    up: bool
    mtu: int
    mac: str
    master: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Details:
    """The details of an attachment. links: its links on the host. config, result, capability_args, args: from the
    cached result; {} and () if no result is cached."""

    links: tuple[HostLink, ...]
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    capability_args: Mapping[str, Any]
    args: tuple[tuple[str, str], ...]

    def as_document(self) -> dict[str, Any]:
        return {"links": [{"name": it.name, "index": it.index, "kind": it.kind, "up": it.up, "mtu": it.mtu,
                           "mac": it.mac, "master": it.master or None, "counters": dict(it.counters)}
                          for it in self.links],
                "result": dict(self.result) or None, "config": dict(self.config) or None,
                "capabilityArgs": dict(self.capability_args), "args": [list(pair) for pair in self.args]}


def find(inventory: Inventory, text: str, network: str = "") -> NodeAttachment:
    """Return the attachment that `text` names: CONTAINERID/IFNAME, the beginning of a container id, or NAMESPACE/NAME.
    network: the attachment's network, "" for any network; with multus, one interface has attachments of two networks.

    Raises CniError 4 unless exactly one attachment matches.
    """
    found = matching((it for it in inventory.attachments if network in ("", it.network)), text)
    if len(found) == 1:
        return found[0]
    if not found:
        similar = similar_to(inventory.attachments, text)
        raise CniError(errors.INVALID_ENVIRONMENT, f"no attachment of a container that begins with {text}, nor of a "
                       f"pod of this name{network and f', in network {network}'}",
                       "; ".join([similar or "`fastcni list` shows all attachments",
                                  *(f"not seen: {each}" for each in inventory.unseen)]))
    names = ", ".join(f"{it.container_id[:12]}/{it.ifname} ({it.network or 'unknown network'})" for it in found[:8])
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    raise CniError(errors.INVALID_ENVIRONMENT, f"{len(found)} attachments match {text}",
                   f"they are {names}{more}; name one with CONTAINERID/IFNAME and --network")


def matching(attachments: Iterable[NodeAttachment], text: str) -> list[NodeAttachment]:
    """Return the attachments that `text` names: NAMESPACE/NAME of a pod, else a container id, else the beginning of
    ids.

    A pod's loopback interface is included only if `text` names it, or if the pod has no other interface.
    """
    container, _, ifname = text.partition("/")
    attachments = list(attachments)
    if "/" in text and (found := [it for it in attachments if it.pod == text]):
        return [it for it in found if it.ifname != LO_IFNAME] or found
    found = [it for it in attachments if it.container_id.startswith(container) and ifname in ("", it.ifname)]
    found = [it for it in found if it.container_id == container] or found
    return found if ifname else [it for it in found if it.ifname != LO_IFNAME] or found


def similar_to(attachments: Iterable[NodeAttachment], text: str) -> str:
    """Return 'did you mean "..."?' with a similar container id or NAMESPACE/NAME; "" if no text is similar."""
    known = [name for it in attachments for name in (it.container_id, it.pod) if name]
    return meant_id(text, known) or meant_id(text.partition("/")[0], known)


def inspect_one(attachment: NodeAttachment) -> Details:
    """Return the Details of an attachment. Raises NetlinkError."""
    cached = attachment.cached or Cached("")
    return Details(host_links(attachment.links), cached.config, cached.result, cached.capability_args, cached.args)


def host_links(names: Iterable[str]) -> tuple[HostLink, ...]:
    """Return the existing links among `names`. Raises NetlinkError."""
    with wire.open_socket() as sock:
        found = [link for link in (find_links.link(sock, name) for name in names) if link]
        return tuple(host_link(sock, link) for link in found)


def host_link(sock: wire.Socket, link: Link) -> HostLink:
    master = find_links.link(sock, index=link.master) if link.master else None
    return HostLink(link.name, link.index, link.kind, link.up, link.mtu, link.mac, master.name if master else "",
                    counters(sock, link.index))
