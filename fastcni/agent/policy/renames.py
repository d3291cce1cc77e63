"""Follow the ports of pods whose links another program renames.

The rules find a port by the name of its link, and a renamed link keeps its index and its MAC. The kernel reports a
rename as a uevent of NETLINK_KOBJECT_UEVENT, a text that begins with the action:

    move@/devices/virtual/net/NEW
"""

from __future__ import annotations

from dataclasses import replace
from errno import ENOBUFS
from typing import TYPE_CHECKING

from fastcni.kernel import filters, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.agent.policy.attached import Attachment
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket


def watch() -> Socket:
    """Return a socket that receives the kernel's uevents about renamed links. After a uevent, call moved(), because
    links may have new names. Raises OSError."""
    sock = wire.open_socket(uapi.NETLINK_KOBJECT_UEVENT, groups=(uapi.UEVENT_GROUP_KERNEL,))
    filters.attach(sock, filters.begins(b"move"))
    sock.setblocking(False)
    return sock


def discard(sock: Socket) -> None:
    """Discard the datagrams that wait on a non-blocking netlink socket, even if they are no netlink messages. Raises
    OSError."""
    while True:
        try:
            sock.recv(1)
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != ENOBUFS:          # ENOBUFS: the kernel has dropped datagrams
                raise


def moved(attachments: Iterable[Attachment], links: Iterable[Link]) -> Iterator[tuple[Attachment, Attachment]]:
    """Yield (attachment, the attachment with the port's current values) for each attachment whose port's link has
    another name, index or MAC than recorded. links: all links of the node.

    The link with the recorded index and MAC is the pod's. If no such link exists, the pod's link is the one with the
    recorded name: the link was made again, or its MAC was changed. If no such link exists either, the port does not
    change. If the link belongs to another pod, or to a later ADD, the attachment gets the port None.
    """
    by_index = {link.index: link for link in links}
    by_name = {link.name: link for link in by_index.values()}
    ordered = sorted(attachments, key=lambda it: it.sequence)
    known = {it.id: link for it in ordered
             if it.port and (link := by_index.get(it.port.index)) and link.address == it.port.link_mac}
    owners = {link.index: id for id, link in known.items()}
    for it in ordered:
        if not (port := it.port) or not (link := known.get(it.id) or by_name.get(port.name)):
            continue
        if owners.get(link.index, it.id) != it.id:
            yield it, replace(it, port=None)
        elif (link.name, link.index, link.address) != (port.name, port.index, port.link_mac):
            yield it, replace(it, port=replace(port, name=link.name, index=link.index, link_mac=link.address))
