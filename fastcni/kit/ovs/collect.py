"""Remove ports of fastcni and ovs-cni whose pod no longer exists: for GC, for DEL, and at the server's start.

A port is stale if its link no longer exists: the kernel deletes both ends of a veth pair with the pod's namespace.
fastcni never changes ports of the operator or of other programs. fastcni checks only the ports of bridges whose link is
in this network namespace, because a process does not see the links of switches in other namespaces.

ovs-cni finds stale ports by Interface.error, but in the userspace datapath this column stays empty until ovs-vswitchd
restarts.
"""

from __future__ import annotations

from fastcni.clients.ovsdb import as_dict, as_list
from fastcni.kit.links import change, find
from fastcni.kit.ovs import cache, ports
from fastcni.kit.ovs.database import Database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.clients.ovsdb import Ovsdb, Row
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.request import Request
    from fastcni.kit.ovs.ovs_conf import OvsConf


def gc(req: Request, conf: OvsConf) -> None:
    """Remove the network's ports without a valid attachment, with their links and files, and each stale port. Raises
    CniError."""
    valid = req.valid_attachments
    with Database(conf.address) as db:
        owned, links = look(db, req.mode.route)
        gone = [row for row in owned if row["name"] not in links
                or (network_of(row) == req.name and attachment_of(row) not in valid)]
        ports.remove(db, gone)
    for row in gone:
        change.delete_by_name(req.mode.route, row["name"])
        req.release(f"port {row['name']}", " ".join(attachment_of(row)).strip())
    for attachment in [*cache.attachments(conf.directory, req.name, req.warn)]:
        if attachment not in valid:
            cache.delete(conf.directory, *attachment)


def remove_stale(db: Ovsdb, sock: Socket) -> list[Row]:
    """Remove the stale ports, and return them. sock: a socket in the switch's network namespace."""
    owned, links = look(db, sock)
    gone = [row for row in owned if row["name"] not in links]
    ports.remove(db, gone)
    return gone


def look(db: Ovsdb, sock: Socket) -> tuple[list[Row], set[str]]:
    """Return (the pods' ports on bridges of this network namespace, the names of all links)."""
    owned, bridges = db.transact(ports.select("Port", ports.has_ids(owner=ports.OWNER), *ports.COLUMNS),
                                 ports.select("Bridge", [], "name", "ports"))
    if not owned["rows"]:
        return [], set()
    links = {link.name for link in find.all_links(sock)}        # read after the ports: an ADD makes the link first
    here = [uuid for row in bridges["rows"] if row["name"] in links for uuid in as_list(row["ports"])]
    return [row for row in owned["rows"] if row["_uuid"] in here], links


def network_of(row: Row) -> str:
    """Return the network of a port, "" for a port of ovs-cni."""
    return as_dict(row["external_ids"]).get(ports.NETWORK, "")


def attachment_of(row: Row) -> tuple[str, str]:
    """Return (container id, ifname) of a port; ovs-cni writes no container id."""
    ids = as_dict(row["external_ids"])
    return ids.get(ports.CONTAINER, ""), ids.get("contIface", "")
