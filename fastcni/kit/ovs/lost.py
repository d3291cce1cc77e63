"""Add the port of a running pod again, if the database of Open vSwitch has lost it: another program has deleted the
port or its bridge, or the database was made anew.
"""

from __future__ import annotations

from fastcni.clients.ovsdb import Refused
from fastcni.kit.ovs import cache, ports
from fastcni.kit.ovs.database import Database
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ovs.ovs_conf import OvsConf, PodArgs

TIMEOUT_S = 1.0                 # rules of the firewall that were lost at the same time wait for this answer


class Names:
    """The names of ports and bridges in a database, or the error for which they are unknown. trouble: why ovs-vswitchd
    carries no packets, "" if it is connected to the database.

    One replay restores all pods of a node: it asks each database once, however many pods there are.
    """

    __slots__ = ("ports", "bridges", "trouble", "error")

    def __init__(self, address: str) -> None:
        self.ports: set[str] = set()
        self.bridges: set[str] = set()
        self.trouble = ""
        self.error: CniError | None = None
        try:
            with Database(address, TIMEOUT_S) as db:
                found = db.transact(ports.select("Port", [], "name"), ports.select("Bridge", [], "name"))
                self.trouble = ports.trouble(db, answers=False)
        except CniError as e:
            self.error = e
            return
        self.ports, self.bridges = ({row["name"] for row in result["rows"]} for result in found)

    def close(self) -> None:
        """Nothing is open."""


def restore(req: Request, conf: OvsConf, args: PodArgs, bridge: str, previous: dict[str, Any]) -> None:
    """Add the port again if no bridge has it. previous: the result of the ADD. Raises CniError."""
    address = cache.address_in(cache.read(req, conf)) or conf.address       # as DEL does
    names = req.mode.cluster_store(("ovs", address), lambda: Names(address))
    if names.error:
        raise CniError(names.error.code, names.error.msg, names.error.details)
    host = next(iter(results.host_interfaces(previous)), "")
    if not host or host in names.ports:
        return
    if bridge not in names.bridges:
        raise ports.no_bridge(address, bridge, errors.TRY_AGAIN_LATER)
    vlan = ports.vlan_of(conf, bridge, address)
    with Database(address) as db:
        try:
            db.transact(*ports.operations(req, conf, args, bridge, host, vlan))
        except Refused as e:
            if host in Names(address).ports:        # another replay was first
                return
            raise CniError(errors.INTERNAL, f"failed to add port {host} to bridge {bridge} again: {e}") from None
