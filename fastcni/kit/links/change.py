"""Change or delete a link by one netlink request. Each function returns when the kernel has answered."""

from __future__ import annotations

from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket


def link(sock: Socket, index: int, *, what: str, up: bool | None = None, promisc: bool | None = None,
         address: bytes | None = None, master: int | None = None, name: str | None = None) -> None:
    """Set the given properties of a link: flags, MAC, master (an index; 0: none), name (only while the link is down).

    If the kernel rejects the request, raises NetlinkError, whose text begins with `what`.
    """
    wire.exchange(sock, rtnl.set_link(Batch(), index, up=up, promisc=promisc, address=address, master=master,
                                      name=name, what=what))


def delete_by_name(sock: Socket, name: str) -> None:
    """Delete a link, for the rollback of an ADD; wait until it no longer exists. A missing link is no error."""
    wire.exchange(sock, rtnl.del_link(Batch(), name=name), (ENODEV,))


def delete_by_index(sock: Socket, index: int) -> None:
    """Delete a link as delete_by_name() does, but by its index, for a link whose name may change."""
    wire.exchange(sock, rtnl.del_link(Batch(), index=index), (ENODEV,))
