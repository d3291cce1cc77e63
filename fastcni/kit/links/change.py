"""Links changed and deleted, one request each, which waits until the kernel is done."""

from errno import ENODEV

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, wire


def delete_by_name(sock, name):
    """Delete a link and wait for it, for the rollback of ADD. A link that is gone is fine."""
    delete_now(sock, rtnl.del_link(Batch(), name=name))


def delete_by_index(sock, index):
    """The same for a link whose name changes."""
    delete_now(sock, rtnl.del_link(Batch(), index=index))


def delete_now(sock, batch):
    try:
        wire.exchange(sock, batch)
    except wire.NetlinkError as e:
        if e.errno != ENODEV:
            raise
