"""Open the backend that connects the nodes: vxlan, host-gw, ipip or wireguard, as in flannel.

    keys           reads the keys of `Backend`
    vxlan          frames inside UDP packets
    vxlan_mac      the MAC of the vxlan link
    host_gw        routes to the nodes, without a tunnel
    ipip           packets inside IPv4 packets
    wireguard      encrypted packets inside UDP packets
    wireguard_key  the node's private key
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.backends import host_gw, ipip, vxlan, wireguard
from fastcni.agent.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.agent.contract import Backend, NetworkConf, Underlay

TABLE: dict[str, Callable[[NetworkConf, Underlay, str, bool], Backend]] = {
    "vxlan": vxlan.Vxlan,
    "host-gw": host_gw.HostGw,
    "ipip": ipip.Ipip,
    "wireguard": wireguard.Wireguard,
}


def open_backend(conf: NetworkConf, underlay: Underlay, directory: str, publishes: bool) -> Backend:
    """Return the backend that the configuration names. directory: the directory for MACs and keys, which must persist
    when the agent restarts. publishes: Registry.publishes. Raises ConfigurationError, OSError."""
    kind = conf.backend.get("Type", "")
    if kind not in TABLE:
        raise ConfigurationError(f'Backend.Type "{kind}": fastcni has {", ".join(TABLE)}')
    return TABLE[kind](conf, underlay, directory, publishes)
