"""Examine the hops in Open vSwitch: the pod's port in the database, the VLANs of both ports, and the OpenFlow rules
between them.

Each function takes a Path and returns the Fault of its hop, or None.
"""

from __future__ import annotations

import glob
import os

from fastcni.clients.ovsdb import as_list
from fastcni.kit.ovs import ports
from fastcni.kit.ovs.database import Database
from fastcni.node.checks.ovs import host_of, is_usual, place_of, restart
from fastcni.spec import address as addresses
from fastcni.spec.errors import CniError
from fastcni.why.ends import OVS
from fastcni.why.report import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.clients.ovsdb import Row
    from fastcni.why.ends import End
    from fastcni.why.path import Path

TIMEOUT_S = 1.0
NATIVE = ("native-tagged", "native-untagged")       # values of vlan_mode in which untagged frames are in the VLAN `tag`


class Tables:
    """The rows of one database. bridges: {name: UUIDs of its ports}. ports, interfaces: {name: row}. trouble: why
    ovs-vswitchd carries no packets, or "". The constructor raises CniError."""

    __slots__ = ("bridges", "interfaces", "ports", "trouble")

    def __init__(self, address: str) -> None:
        with Database(address, TIMEOUT_S) as db:
            bridges, found, interfaces = db.transact(
                ports.select("Bridge", [], "name", "ports"),
                ports.select("Port", [], "_uuid", "name", "vlan_mode", "tag", "trunks"),
                ports.select("Interface", [], "name", "ofport", "error"))
            self.trouble = ports.trouble(db, answers=True)
        self.bridges = {row["name"]: as_list(row["ports"]) for row in bridges["rows"]}
        self.ports: dict[str, Row] = {row["name"]: row for row in found["rows"]}
        self.interfaces: dict[str, Row] = {row["name"]: row for row in interfaces["rows"]}

    def bridge_of(self, port: str) -> str:
        """Return the name of the bridge that has a port; "" if no bridge has the port."""
        uuid = self.ports[port]["_uuid"] if port in self.ports else None
        return next((name for name, found in self.bridges.items() if uuid in found), "")


def place(end: End) -> tuple[str, str, str]:
    """Return (address of the database, bridge, name of the port) that a pod's ADD used."""
    assert end.attachment
    address, bridge = place_of(end.attachment, end.keys(OVS))
    return address, bridge, end.host.name if end.host else host_of(end.attachment)


def port(path: Path, end: End) -> Fault | None:
    """Return the Fault if the pod's port is not on its bridge, or if ovs-vswitchd does not use the port."""
    hop = "target ovs port" if end is path.target else "ovs port"
    address, bridge, name = place(end)
    try:
        tables = Tables(address)
    except CniError as e:
        return Fault(hop, f"{e.msg}: the port of {end.name} cannot be examined", do=e.details)
    own = tables.bridge_of(name)
    if bridge not in tables.bridges:
        return Fault(hop, f"Open vSwitch has no bridge {bridge}, which {end.name} needs",
                     do=f"ovs-vsctl --db={address} add-br {bridge} && fastcni restore")
    if own != bridge:
        remove = f"ovs-vsctl --db={address} del-port {own} {name} && " if own else ""
        return Fault(hop, f"{name} of {end.name} is no port of the bridge {bridge} of Open vSwitch"
                     + (f" but of {own}" if own else ""), do=f"{remove}fastcni restore")
    if tables.trouble:
        return Fault(hop, f"{tables.trouble}: the bridge {bridge} handles no new connection", do=restart(address))
    if failed := ports.error_of(tables.interfaces.get(name, {})):
        return Fault(hop, f"ovs-vswitchd cannot use {name} of {end.name}: {failed}", f"{name}: {failed}",
                     do=f"ovs-vsctl --db={address} del-port {bridge} {name} && fastcni restore")
    return None


def untagged(row: Row) -> int | None:
    """Return the VLAN of a port's untagged frames; 0: no VLAN; None: the port drops untagged frames."""
    tag, mode = ports.tag_of(row), next(iter(as_list(row["vlan_mode"])), "")
    if mode in ("access", *NATIVE) or (not mode and tag is not None):
        return tag or 0
    trunks = as_list(row["trunks"])
    return 0 if not trunks or 0 in trunks else None


def vlan(path: Path) -> Fault | None:
    """Return the Fault if the two ports put untagged frames into different VLANs, or if a port drops them."""
    address = place(path.source)[0]
    try:
        tables = Tables(address)
    except CniError:
        return None                     # port() has reported the error
    both = [(end, place(end)[2]) for end in (path.source, path.target)]
    if not {name for _, name in both} <= tables.ports.keys():
        return None
    found = [untagged(tables.ports[name]) for _, name in both]
    if None not in found and found[0] == found[1]:
        return None
    configured = [end.keys(OVS).get("vlan") or 0 for end, _ in both]
    wrong = 0 if found[0] != configured[0] else 1               # the port to which `do` gives its configured VLAN
    name = both[wrong][1]
    wanted = configured[wrong] if found[wrong] != configured[wrong] else found[1 - wrong] or 0
    texts = [f"the port {it} of {end.name} " + ("drops untagged frames" if vid is None else
             f"puts untagged frames into {f'VLAN {vid}' if vid else 'no VLAN'}")
             for (end, it), vid in zip(both, found, strict=True)]
    return Fault("ovs VLAN", ", and ".join(texts),
                 f"{name}: vlan_mode {tables.ports[name]['vlan_mode']}, tag {found[wrong] or 'none'}",
                 do=f"ovs-vsctl --db={address} set Port {name} vlan_mode=access tag={wanted}")


def control(address: str) -> str:
    """Return the option -t of ovs-appctl for the ovs-vswitchd of a database; "" for the usual database."""
    if is_usual(address):
        return ""
    path = address.removeprefix("unix:")
    found = glob.glob(f"{glob.escape(os.path.dirname(path))}/ovs-vswitchd*.ctl") if path.startswith("/") else []
    return f"-t {found[0] if len(found) == 1 else 'SOCKET_OF_VSWITCHD'} "


def rules(path: Path) -> Fault | None:
    """Return the Fault if the packet enters the bridge at the source's port but does not leave it at the target's port.
    """
    source, target, spy = path.source, path.target, path.spy
    if spy is None or source.host is None or target.host is None or not spy.crossed(
            source.host.name, "ingress", arp=True) or spy.crossed(target.host.name, "egress", arp=True):
        return None
    address, bridge, own = place(source)
    name = place(target)[2]
    assert source.link and target.link
    kind, where = ("ipv6", "ipv6") if path.v6 else ("ip", "nw")
    return Fault("OpenFlow rules", f"the packet enters the bridge {bridge} of Open vSwitch at {own}, and does not "
                 f"leave the bridge at {name}", f"OpenFlow rules of {bridge}",
                 do=f"ovs-appctl {control(address)}ofproto/trace {bridge} in_port={own},dl_src={source.link.mac},"
                    f"dl_dst={target.link.mac},{kind},{where}_src={addresses.ip_text(path.sent_from)},"
                    f"{where}_dst={target.text}")
