"""Remove Open vSwitch ports of fastcni and ovs-cni whose pod no longer exists, when the server starts.

The server reads the database at the usual socket, and the databases that the cache files of pods name.
"""

from __future__ import annotations

import os

from fastcni.clients import ovsdb
from fastcni.daemon.log import few
from fastcni.kernel import wire
from fastcni.kit.ovs import cache, collect
from fastcni.kit.ovs.database import Database
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.clients.ovsdb import Row
    from fastcni.daemon.log import Logger


def remove_stale_ports(log: Logger, directory: str = cache.DIRECTORY, usual: str = ovsdb.DEFAULT_ADDRESS) -> None:
    named = cache.addresses(directory, lambda error: log.warning("ovs_ports_unread", address="", error=error))
    for address in sorted(({usual} if listens(usual) else set()) | named):
        try:
            gone = remove_from(address)
        except (CniError, OSError, ValueError) as e:
            log.warning("ovs_ports_unread", address=address, error=str(e))
            continue
        if gone:
            log.info("ovs_ports_removed", address=address, number=len(gone), ports=few([row["name"] for row in gone]),
                     owners=few([" ".join(collect.attachment_of(row)).strip() for row in gone]))


def remove_from(address: str) -> list[Row]:
    """Remove the stale ports of a database, and return them. Raises CniError, OSError, ValueError."""
    with wire.open_socket() as sock, Database(address) as db:
        return collect.remove_stale(db, sock)


def listens(address: str) -> bool:
    """Return whether a database's unix socket exists: most nodes have no Open vSwitch."""
    path = ovsdb.socket_address(address)
    return isinstance(path, str) and os.path.exists(path)
