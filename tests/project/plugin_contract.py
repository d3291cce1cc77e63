"""Let the type checker (`make lint`) compare each plugin module with the Protocol fastcni.plugin.Plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.plugins import (
    bandwidth,
    bridge,
    chain,
    cluster,
    dhcp,
    dummy,
    firewall,
    flannel,
    host_device,
    host_local,
    ipvlan,
    loopback,
    macvlan,
    multus,
    ovs,
    policy,
    portmap,
    ptp,
    sbr,
    static,
    tap,
    tuning,
    vlan,
    vrf,
)

if TYPE_CHECKING:
    import fastcni_hello

    from fastcni.plugin import Plugin

    EXAMPLE: Plugin = fastcni_hello

PLUGINS: tuple[Plugin, ...] = (
    bandwidth, bridge, chain, cluster, dhcp, dummy, firewall, flannel, host_device, host_local, ipvlan, loopback,
    macvlan, multus, ovs, policy, portmap, ptp, sbr, static, tap, tuning, vlan, vrf)
