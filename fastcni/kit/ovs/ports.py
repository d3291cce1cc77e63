"""Add, await, find, compare and remove a pod's port on a bridge of Open vSwitch.

A port is a row of table Port with one row of table Interface; both have the name of the pod's host end. external_ids of
the Port names the pod, as ovs-cni writes it; fastcni adds the container and the network.
"""

from __future__ import annotations

from fastcni.clients.errors import Away
from fastcni.clients.ovsdb import Refused, as_dict, as_list
from fastcni.kernel import waiting
from fastcni.kit.ovs.database import NO_VSWITCHD, Database
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.clients.ovsdb import Operation, Ovsdb, Row
    from fastcni.kit.call.request import Request
    from fastcni.kit.ovs.ovs_conf import OvsConf, PodArgs

OWNER = "ovs-cni.network.kubevirt.io"           # ovs-cni and fastcni delete each other's ports, by this owner
CONTAINER, NETWORK = "fastcni-container", "fastcni-network"
USERSPACE = "netdev"            # datapath_type of a bridge of the userspace datapath
COLUMNS = ["_uuid", "name", "external_ids"]
ANSWER_TIMEOUT_S = 3.0          # limit for ovs-vswitchd to apply the database's configuration


def select(table: str, where: list[list[Any]], *columns: str) -> Operation:
    return {"op": "select", "table": table, "where": where, "columns": [*columns]}


def has_ids(**ids: str) -> list[list[Any]]:
    """Return the condition of an operation that external_ids has all of `ids`."""
    return [["external_ids", "includes", ["map", [[key, value] for key, value in ids.items()]]]]


# -- before ADD -----------------------------------------------------------------------------------------------

def find_bridge(address: str, bridge: str, code: int = errors.TRY_AGAIN_LATER, answers: bool = False) -> str:
    """Check that OVSDB and ovs-vswitchd run, and that the bridge exists ("": any bridge). Return the bridge's
    datapath_type.

    answers: also require that ovs-vswitchd answers. Raises CniError with `code`.
    """
    with Database(address, away=code) as db:
        if why := trouble(db, answers):
            raise CniError(code, why, NO_VSWITCHD)
        (found,) = db.transact(select("Bridge", [["name", "==", bridge]] if bridge else [], "datapath_type"))
    if bridge and not found["rows"]:
        raise no_bridge(address, bridge, code)
    return found["rows"][0]["datapath_type"] if bridge else ""


def trouble(db: Ovsdb, answers: bool) -> str:
    """Return why ovs-vswitchd forwards no packets: it is not connected to the database or, with `answers`, does not
    answer. "": it works."""
    if not db.vswitchd_runs():
        return f"ovs-vswitchd is not connected to OVSDB at {db.address}"
    if answers:
        db.stream.deadline = waiting.monotonic() + ANSWER_TIMEOUT_S
        try:
            db.await_vswitchd()
        except Away:
            return f"ovs-vswitchd does not answer; it is connected to OVSDB at {db.address}"
    return ""


def no_bridge(address: str, bridge: str, code: int) -> CniError:
    return CniError(code, f"failed to find bridge {bridge}",
                    f"OVSDB at {address} has none of that name; `ovs-vsctl add-br {bridge}` makes it")


def vlan_of(conf: OvsConf, bridge: str, address: str) -> int | None:
    """Return the VLAN of the port's untagged frames, None for a trunk. address: OVSDB's. Raises CniError 11."""
    return conf.vlan if conf.vxlan is None else tunnel_vlan(address, bridge, conf.vxlan)


def tunnel_vlan(address: str, bridge: str, key: int) -> int | None:
    """Return the VLAN of the bridge's tunnels whose options:key is `key`, None if these tunnels have no VLAN. Raises
    CniError 11 if the bridge has no such tunnel."""
    with Database(address) as db:
        tunnels, bridges = db.transact(
            select("Interface", [["options", "includes", ["map", [["key", str(key)]]]]], "_uuid"),
            select("Bridge", [["name", "==", bridge]], "ports"))
        found = db.transact(*(select("Port", [["interfaces", "includes", row["_uuid"]]], "_uuid", "tag")
                              for row in tunnels["rows"]))
    mine = [port for row in bridges["rows"] for port in as_list(row["ports"])]
    tags = {tag_of(row) for result in found for row in result["rows"] if row["_uuid"] in mine}
    if len(tags) == 1:
        return tags.pop()
    why = f"its tunnels of that key are in different VLANs: {tags}" if tags else "it has no tunnel of that key"
    raise CniError(errors.TRY_AGAIN_LATER, f"vxlanID {key}: bridge {bridge}: {why}",
                   f"add one tunnel for every other node: `ovs-vsctl add-port {bridge} NAME tag=VLAN -- "
                   f"set interface NAME type=vxlan options:key={key} options:remote_ip=IP`")


def tag_of(port: Row) -> int | None:
    """Return the VLAN of a Port's column `tag`; None: the column is empty."""
    found: int | None = next(iter(as_list(port["tag"])), None)
    return found


# -- ADD ------------------------------------------------------------------------------------------------------

def add(req: Request, conf: OvsConf, args: PodArgs, bridge: str, name: str, vlan: int | None) -> None:
    """Add the port `name` in one transaction, and wait until ovs-vswitchd has set it up.

    Raises CniError 11 if this takes ovs-vswitchd longer than link_state_check_retries times link_state_check_interval.
    """
    with Database(conf.address) as db:
        try:
            db.monitor("Interface", ["ofport", "link_state", "error"], [["name", "==", name]],
                       after=operations(req, conf, args, bridge, name, vlan))
        except Refused as e:
            raise CniError(errors.INTERNAL, f"failed to add port {name} to bridge {bridge}: {e}",
                           "a wait that timed out means that the bridge was deleted") from None
        db.stream.deadline = waiting.monotonic() + conf.link_timeout_s
        try:
            await_port(db, bridge, name)
        except Away:
            raise CniError(errors.TRY_AGAIN_LATER, f"port {name} of bridge {bridge} is not up after "
                           f"{conf.link_timeout_s:g} s (OVSDB at {conf.address})",
                           f"{NO_VSWITCHD} link_state_check_retries and link_state_check_interval give it more time"
                           ) from None


def operations(req: Request, conf: OvsConf, args: PodArgs, bridge: str, name: str,
               vlan: int | None) -> tuple[Operation, ...]:
    """Return the operations of the transaction that adds a port. The transaction fails if the bridge does not exist, or
    if another bridge has a port of that name."""
    here = [["name", "==", bridge]]
    interface: Row = {"name": name}
    port: Row = {"name": name, "interfaces": ["named-uuid", "interface"], **vlan_columns(conf, vlan),
                 "external_ids": ["map", [*external_ids(req, args).items()]]}
    if conf.kind:
        interface["type"] = conf.kind
    if conf.ofport:
        interface["ofport_request"] = conf.ofport
    if args.ovn_port:
        interface["external_ids"] = ["map", [["iface-id", args.ovn_port]]]
    return (
        {"op": "wait", "table": "Bridge", "timeout": 0, "where": here, "columns": ["name"], "until": "==",
         "rows": [{"name": bridge}]},
        {"op": "insert", "table": "Interface", "row": interface, "uuid-name": "interface"},
        {"op": "insert", "table": "Port", "row": port, "uuid-name": "port"},
        {"op": "mutate", "table": "Bridge", "where": here, "mutations": [["ports", "insert", ["named-uuid", "port"]]]})


def vlan_columns(conf: OvsConf, vlan: int | None) -> Row:
    """Return the columns of a Port with its VLANs. vlan: see vlan_of()."""
    access = vlan is not None and not conf.trunk
    return {"vlan_mode": "access" if access else "trunk", "tag": vlan if access else ["set", []],
            "trunks": ["set", conf.trunk]}


def vlans(port: Row) -> dict[str, Any]:
    """Return the VLANs of a Port, or of the result of vlan_columns(), in a form that can be compared."""
    return {"vlan mode": next(iter(as_list(port["vlan_mode"])), None), "vlan tag": tag_of(port),
            "trunks": sorted(as_list(port["trunks"]))}


def external_ids(req: Request, args: PodArgs) -> dict[str, str]:
    """Return external_ids for the pod's Port: ovs-cni's keys, and fastcni's two keys."""
    return {"owner": OWNER, "contNetns": req.netns, "contIface": req.ifname, "contPodUid": args.pod_uid,
            CONTAINER: req.container_id, NETWORK: req.name}


def await_port(db: Ovsdb, bridge: str, name: str) -> None:
    """Wait until ovs-vswitchd has given the port a number and reports its link up. Raises Away, CniError."""
    state: Row = {}
    while state.get("link_state") != "up" or not numbered(state):
        changed = db.next_update("Interface")
        if changed is None:
            raise CniError(errors.TRY_AGAIN_LATER, f"port {name} has left bridge {bridge}",
                           "another program has deleted the port or the bridge")
        state |= changed
        if failed := error_of(state):
            raise CniError(errors.INTERNAL, f"ovs-vswitchd cannot use port {name} of bridge {bridge}: {failed}")


def numbered(state: Row) -> bool:
    return isinstance(state.get("ofport"), int) and state["ofport"] > 0


def error_of(state: Row) -> str:
    """Return why ovs-vswitchd could not set up an Interface, "" if it has no error or has not tried yet."""
    error: str = next(iter(as_list(state.get("error", ["set", []]))), "")
    return error or ("no OpenFlow port number" if state.get("ofport") == -1 else "")


# -- DEL ------------------------------------------------------------------------------------------------------

def find(db: Ovsdb, req: Request) -> list[Row]:
    """Return the ports that fastcni added for the request's attachment, and those that ovs-cni added for CNI_NETNS."""
    ours = has_ids(owner=OWNER, contIface=req.ifname, **{CONTAINER: req.container_id})
    theirs = has_ids(owner=OWNER, contIface=req.ifname, contNetns=req.netns)
    first, second = db.transact(select("Port", ours, *COLUMNS), select("Port", theirs, *COLUMNS))
    # In the second answer, skip fastcni's ports: they may belong to another container with the same namespace path.
    more = [row for row in second["rows"] if req.netns and CONTAINER not in as_dict(row["external_ids"])]
    return [*first["rows"], *more]


def remove(db: Ovsdb, rows: list[Row]) -> None:
    """Remove ports from all bridges."""
    if rows:
        db.transact(*map(removal, rows))


def removal(row: Row) -> Operation:
    """Return the operation that removes a port from its bridge. The database itself deletes a Port without
    references."""
    return {"op": "mutate", "table": "Bridge", "where": [["ports", "includes", row["_uuid"]]],
            "mutations": [["ports", "delete", row["_uuid"]]]}


def forget(req: Request, address: str) -> None:
    """Remove the attachment's ports. Missing ports are no error."""
    with Database(address) as db:
        remove(db, find(db, req))


# -- CHECK ----------------------------------------------------------------------------------------------------

def check(conf: OvsConf, address: str, bridge: str, name: str, vlan: int | None) -> None:
    """For CHECK: raise CniError if the port differs from the network's keys. address: OVSDB's."""
    from fastcni.kit.links import checks

    with Database(address) as db:
        ports, interfaces, bridges = db.transact(
            select("Port", [["name", "==", name]], "_uuid", "vlan_mode", "tag", "trunks"),
            select("Interface", [["name", "==", name]], "ofport", "link_state", "error"),
            select("Bridge", [["name", "==", bridge]], "ports"))
        why = trouble(db, True)
    port, state = next(iter(ports["rows"]), None), next(iter(interfaces["rows"]), None)
    if port is None or state is None or not any(port["_uuid"] in as_list(row["ports"]) for row in bridges["rows"]):
        raise checks.wrong(f"Error: bridge {bridge} has no port {name}")
    if why:
        raise checks.wrong(f"Error: {why}", NO_VSWITCHD)
    if failed := error_of(state):
        raise checks.wrong(f"Error: interface {name} is in error state", failed)
    checks.same(f"port {name} link state", state["link_state"], "up")
    wanted = vlans(vlan_columns(conf, vlan))
    for subject, found in vlans(port).items():
        checks.same(f"port {name} {subject}", found, wanted[subject])
