"""Connect nodes by WireGuard: packets to other nodes' pods are sent encrypted inside UDP packets.

Each other node is a peer whose allowed IPs are its subnets. One route sends packets for the complete network to the
link. The agent makes a private key once, stores it in its directory, and publishes the public key.

Mode      separate (the default): one link for each family, flannel-wg and flannel-wg-v6. Nodes send a pod's packets
          between node addresses of the same family. ipv4, ipv6, auto: one link, flannel-wg, for pods of both families.
          The mode is the family of the nodes' addresses; auto uses IPv4 if this node has an IPv4 address

Keys of Backend and defaults: ListenPort 51820, ListenPortV6 51821, PSK (none), PersistentKeepaliveInterval 0 s (none),
Mode, MTU.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

from fastcni.agent.backends import wireguard_key
from fastcni.agent.backends.keys import chosen_families, read_keys
from fastcni.agent.contract import ConfigurationError, Link, Node, Route, State, WireguardPeer
from fastcni.kernel.devices.wireguard import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from fastcni.agent.contract import NetworkConf, Prefix, Underlay

KEYS = {"ListenPort": 51820, "ListenPortV6": 51821, "PSK": "", "PersistentKeepaliveInterval": 0, "Mode": "separate",
        "MTU": 0}
MODES = ("separate", "auto", "ipv4", "ipv6")
LINKS = {4: "flannel-wg", 6: "flannel-wg-v6"}
OVERHEAD = 80                   # outer IPv6 header 40, UDP 8, WireGuard 32


class Wireguard:
    """The wireguard backend (contract.Backend)."""

    name = "wireguard"

    def __init__(self, conf: NetworkConf, underlay: Underlay, directory: str, publishes: bool) -> None:
        self.keys, self.underlay, self.conf = read_keys(conf.backend, KEYS), underlay, conf
        if not publishes:
            raise ConfigurationError("Backend wireguard needs a registry in which nodes publish their keys")
        mode = self.keys["Mode"]
        if mode not in MODES:
            raise ConfigurationError(f'Backend.Mode "{mode}": expected one of {", ".join(MODES)}')
        self.preshared = decode_key(self.keys["PSK"], "Backend.PSK") if self.keys["PSK"] else b""
        self.families = list(conf.families) if mode != "separate" else chosen_families(conf, underlay)
        one = {"ipv4": 4, "ipv6": 6, "auto": 4 if 4 in underlay.addresses else 6}.get(mode)
        # {family of the nodes' addresses: (name of the link, families of pods' packets)}
        self.tunnels = {family: (LINKS[family], [family]) for family in self.families} if one is None else {
            one: (LINKS[4], self.families)}
        for family in self.tunnels:
            if family not in underlay.addresses:
                raise ConfigurationError(f'link "{underlay.name}" has no IPv{family} address')
        self.private = wireguard_key.kept(directory)
        self.public = b64encode(wireguard_key.public(self.private)).decode()

    def data(self) -> Mapping[int, Mapping[str, Any]]:
        return {family: {"PublicKey": self.public} for family in self.families}

    def mtu(self) -> int:
        return self.keys["MTU"] or self.underlay.mtu - OVERHEAD

    def state(self, me: Node, others: Collection[Node]) -> State:
        peers, skipped = set(), {}
        for node in others:
            for outer, (name, families) in self.tunnels.items():
                subnets = tuple(node.subnets[family] for family in families if family in node.subnets)
                try:
                    if subnets:
                        peers.add(self._peer(node, outer, name, subnets))
                except ValueError as e:
                    skipped[node.name] = str(e)
        routes = {Route(name, self.conf.families[family].network)
                  for name, families in self.tunnels.values() for family in families}
        return State(tuple(self._link(me, outer) for outer in self.tunnels), routes=frozenset(routes),
                     peers=frozenset(peers), skipped=skipped)

    def _link(self, me: Node, outer: int) -> Link:
        name, families = self.tunnels[outer]
        port = self.keys["ListenPortV6" if name == LINKS[6] else "ListenPort"]
        addresses = [me.subnets[family].network_address for family in families]
        return Link(name, "wireguard", self.mtu(), settings={"private_key": self.private, "listen_port": port},
                    addresses=tuple(f"{address}/{address.max_prefixlen}" for address in addresses))

    def _peer(self, node: Node, outer: int, name: str, subnets: tuple[Prefix, ...]) -> WireguardPeer:
        """Return the peer for another node. outer: the family of the nodes' addresses. name: the link's name. Raises
        ValueError if the node's record lacks its key or address."""
        if node.backend != self.name:
            raise ValueError(f'its backend is "{node.backend}"')
        key = next((str(data["PublicKey"]) for data in node.data.values() if "PublicKey" in data), "")
        if outer not in node.public:
            raise ValueError(f"the node has no public IPv{outer} address")
        decoded = decode_key(key, "its PublicKey")
        port = self.keys["ListenPortV6" if name == LINKS[6] else "ListenPort"]
        return WireguardPeer(name, decoded, node.public[outer], port, subnets, self.preshared,
                             self.keys["PersistentKeepaliveInterval"])


def decode_key(text: str, what: str) -> bytes:
    """Decode a base64 key as wg(8) prints it. Return 32 bytes. what: the key's name in the error. Raises
    ConfigurationError, which is a ValueError."""
    try:
        key = b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f'{what} is "{text}", which is no key of {KEY_BYTES} bytes in base64')
    return key
