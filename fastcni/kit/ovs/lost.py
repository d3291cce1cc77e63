"""Restore the port of a running pod in the database of Open vSwitch, after another program has deleted, moved or
changed the port, or after the bridge or the database was created again.
"""

from __future__ import annotations

from fastcni.clients.ovsdb import Refused, as_list
from fastcni.kit.ovs import cache, ports
from fastcni.kit.ovs.database import Database
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.clients.ovsdb import Operation, Row
    from fastcni.kit.call.request import Request
    from fastcni.kit.ovs.ovs_conf import OvsConf, PodArgs

TIMEOUT_S = 1.0                 # limit of OVSDB's answer; the restoration of firewall rules waits for this answer


class Names:
    """The ports and bridges of a database, or the error because of which they are unknown.

    ports: {name: its row, with its bridge's name as "bridge"}. trouble: why ovs-vswitchd forwards no packets, or "".
    See ports.trouble().

    A restoration of all pods of a node uses the same Names for all pods, so it reads each database only once.
    """

    __slots__ = ("ports", "bridges", "trouble", "error", "tunnels")

    def __init__(self, address: str, answers: bool = False) -> None:
        self.ports: dict[str, Row] = {}
        self.bridges: set[str] = set()
        self.tunnels: dict[tuple[str, int | None], int | None] = {}
        self.trouble = ""
        self.error: CniError | None = None
        try:
            with Database(address, TIMEOUT_S) as db:
                found, bridges = db.transact(
                    ports.select("Port", [], "_uuid", "name", "vlan_mode", "tag", "trunks"),
                    ports.select("Bridge", [], "name", "ports"))
                self.trouble = ports.trouble(db, answers)
        except CniError as e:
            self.error = e
            return
        owners = {uuid[1]: row["name"] for row in bridges["rows"] for uuid in as_list(row["ports"])}
        self.bridges = {row["name"] for row in bridges["rows"]}
        self.ports = {row["name"]: {**row, "bridge": owners.get(row["_uuid"][1], "")} for row in found["rows"]}

    def vlan_of(self, conf: OvsConf, bridge: str, address: str) -> int | None:
        """Return ports.vlan_of(). Read the database only once for each tunnel. Raises CniError 11."""
        key = bridge, conf.vxlan
        if conf.vxlan is None:
            return conf.vlan
        if key not in self.tunnels:
            self.tunnels[key] = ports.vlan_of(conf, bridge, address)
        return self.tunnels[key]

    def has(self, name: str, bridge: str) -> bool:
        return name in self.ports and self.ports[name]["bridge"] == bridge

    def has_vlans(self, name: str, conf: OvsConf, vlan: int | None) -> bool:
        """Return whether the port `name` has the VLANs that ADD gives it."""
        return ports.vlans(self.ports[name]) == ports.vlans(ports.vlan_columns(conf, vlan))

    def close(self) -> None:
        """Do nothing, because no connection stays open."""


def restore(req: Request, conf: OvsConf, args: PodArgs, bridge: str, previous: dict[str, Any]) -> None:
    """Add the pod's port to the bridge again if it is missing, and restore the port's VLANs. previous: the result of
    the ADD. Raises CniError."""
    address = cache.address_in(cache.read(req, conf)) or conf.address       # the address that DEL uses
    names = req.mode.cluster_store(("ovs", address), lambda: Names(address))
    if names.error:
        raise CniError(names.error.code, names.error.msg, names.error.details)
    host = next(iter(results.host_interfaces(previous)), "")
    if not host:
        return
    if bridge not in names.bridges:
        raise ports.no_bridge(address, bridge, errors.TRY_AGAIN_LATER)
    vlan = names.vlan_of(conf, bridge, address)
    if not names.has(host, bridge):
        elsewhere = [ports.removal(names.ports[host])] if host in names.ports else []
        operations: tuple[Operation, ...] = *elsewhere, *ports.operations(req, conf, args, bridge, host, vlan)
    elif not names.has_vlans(host, conf, vlan):
        ids = [*ports.external_ids(req, args).items()]          # if another program added the port, it has no ids
        operations = ({"op": "update", "table": "Port", "where": [["name", "==", host]],
                       "row": ports.vlan_columns(conf, vlan)},
                      {"op": "mutate", "table": "Port", "where": [["name", "==", host]],
                       "mutations": [["external_ids", "insert", ["map", ids]]]})
    else:
        return
    with Database(address) as db:
        try:
            db.transact(*operations)
        except Refused as e:
            if Names(address).has(host, bridge):        # another process has restored the port
                return
            raise CniError(errors.INTERNAL, f"failed to add port {host} to bridge {bridge} again: {e}") from None
