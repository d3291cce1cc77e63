"""Connect nodes by vxlan: frames to other nodes' pods are sent inside UDP packets (RFC 7348).

Each family has a separate link, flannel.VNI or flannel-v6.VNI, whose address is the network address of the node's
subnet. For each other node, the kernel has three entries. A permanent neighbour maps the network address of the other
node's subnet to the MAC of its vxlan link. An FDB entry sends frames for this MAC to the other node's public address. A
route leads to the other node's subnet. With DirectRouting, a node on the same network has none of these entries, but a
route without a tunnel.

Keys of Backend and defaults: VNI 1, Port 0 (the kernel's port 8472), Learning false, GBP false, DirectRouting false,
MTU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.backends.host_gw import direct_route
from fastcni.agent.backends.keys import chosen_families, read_keys
from fastcni.agent.backends.vxlan_mac import derived_mac, kept_mac
from fastcni.agent.contract import ConfigurationError, Link, Neighbour, Node, Route, State, Station
from fastcni.kernel.devices.vxlan import DEFAULT_PORT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import Any

    from fastcni.agent.contract import Address, NetworkConf, Underlay

KEYS = {"VNI": 1, "Port": 0, "Learning": False, "GBP": False, "DirectRouting": False, "MTU": 0}
MAX_VNI = (1 << 24) - 1
# {family of the nodes' addresses: bytes}: inner Ethernet header 14, UDP 8, vxlan 8, outer IP header 20 or 40
OVERHEAD = {4: 50, 6: 70}
NAMES = {4: "flannel.{}", 6: "flannel-v6.{}"}


class Vxlan:
    """The vxlan backend (contract.Backend)."""

    name = "vxlan"

    def __init__(self, conf: NetworkConf, underlay: Underlay, directory: str, publishes: bool) -> None:
        keys = read_keys(conf.backend, KEYS)
        if not 0 <= keys["VNI"] <= MAX_VNI:
            raise ConfigurationError(f'Backend.VNI {keys["VNI"]}: expected 0 to {MAX_VNI}')
        if not 0 <= keys["Port"] <= 65535:
            raise ConfigurationError(f'Backend.Port {keys["Port"]}: expected 0 to 65535')
        self.families = chosen_families(conf, underlay)
        self.keys, self.underlay, self.publishes = keys, underlay, publishes
        self.macs = {family: kept_mac(directory, self._link(family)) if publishes else
                     derived_mac(underlay.public[family], keys["VNI"]) for family in self.families}

    def _link(self, family: int) -> str:
        return NAMES[family].format(self.keys["VNI"])

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        return {family: {"VNI": self.keys["VNI"], "VtepMAC": mac} for family, mac in self.macs.items()}

    def mtu(self) -> int:
        return self.keys["MTU"] or self.underlay.mtu - max(OVERHEAD[family] for family in self.families)

    def state(self, me: Node, others: Collection[Node]) -> State:
        neighbours, stations, routes, skipped = set(), set(), set(), {}
        macs = dict.fromkeys(self.macs.items(), me.name)
        for node in others:
            for family in self.families:
                if family not in node.subnets:
                    continue
                try:
                    if self.keys["DirectRouting"] and (route := direct_route(self.underlay, node, family)):
                        routes.add(route)
                        continue
                    mac, remote = self._tunnel_end(node, family)
                    if (holder := macs.setdefault((family, mac), node.name)) != node.name:
                        raise ValueError(f"node {holder} has its VtepMAC {mac}, too")
                except ValueError as e:
                    skipped[node.name] = str(e)
                    continue
                name, subnet = self._link(family), node.subnets[family]
                neighbours.add(Neighbour(name, subnet.network_address, mac))
                stations.add(Station(name, mac, remote))
                routes.add(Route(name, subnet, subnet.network_address, onlink=True))
        return State(tuple(self._links(me)), frozenset(neighbours), frozenset(stations), frozenset(routes),
                     skipped=skipped)

    def _links(self, me: Node) -> Iterator[Link]:
        for family in self.families:
            name = self._link(family)
            settings = {"id": self.keys["VNI"], "dev": self.underlay.name, "local": self.underlay.addresses[family],
                        "dstport": self.keys["Port"] or DEFAULT_PORT, "learning": self.keys["Learning"],
                        "gbp": self.keys["GBP"]}
            address = me.subnets[family].network_address
            # Only nodes send frames on this link, and no node is a router for the others: ignore router advertisements
            yield Link(name, "vxlan", self.mtu(), self.macs[family], settings, (f"{address}/{address.max_prefixlen}",),
                       {f"ipv6/conf/{name}/accept_ra": "0"} if family == 6 else {})

    def _tunnel_end(self, node: Node, family: int) -> tuple[str, Address]:
        """Return (MAC of the node's vxlan link, the node's public address). Raises ValueError if the record lacks one
        of them."""
        if node.backend != self.name:
            raise ValueError(f'its backend is "{node.backend}"')
        if family not in node.public:
            raise ValueError(f"the node has no public IPv{family} address")
        if not self.publishes:
            return derived_mac(node.public[family], self.keys["VNI"]), node.public[family]
        data = node.data.get(family, {})
        if data.get("VNI", self.keys["VNI"]) != self.keys["VNI"]:
            raise ValueError(f'its VNI is {data["VNI"]}')
        mac = str(data.get("VtepMAC", "")).lower()
        if len(mac) != 17 or len(bytes.fromhex(mac.replace(":", ""))) != 6:
            raise ValueError(f'its VtepMAC is "{mac}"')
        return mac, node.public[family]
