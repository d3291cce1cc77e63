"""Check and complete the network of `podman network create -d fastcni`."""

from __future__ import annotations

from fastcni.kit.podman.network import Network, find_list, unsupported
from fastcni.spec import json, netavark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.spec.config import Section

BRIDGE = "podman-{:.8}"         # the bridge's name if podman names no interface; {} is the network's id


def complete(stdin: bytes) -> tuple[bytes, list[str]]:
    """Return (the completed network as JSON, warnings). stdin: the network as JSON. podman itself adds the gateways
    later. Raises CniError 2, 6 and 7."""
    keys = netavark.read(stdin)
    network, warnings = Network(keys), []
    if network.conflist:
        find_list(network.conflist)
    else:
        check_subnets(keys, network)
    values = {**keys.values, "ipam_options": {**keys.section("ipam_options").values}}
    if not network.bridge:
        values["network_interface"] = BRIDGE.format(keys.text("id"))
    if network.conflist and not network.subnets:
        network.ipam = "none"           # the IPAM plugin of the conflist gives the addresses
    values["ipam_options"]["driver"] = network.ipam
    if keys.flag("dns_enabled"):
        # netavark registers names with aardvark-dns only for its own drivers
        values["dns_enabled"] = False
        warnings.append("fastcni: containers of this network are not found by name: netavark's plugins have no DNS")
    return json.write(values), warnings


def check_subnets(keys: Section, network: Network) -> None:
    """Raise CniError 2 if the network needs a subnet that podman has not chosen, because the plugin does not choose
    subnets."""
    if network.ipam == "none":
        return
    if not network.subnets:
        raise unsupported("a choice of the subnet", "name one: --subnet 10.89.7.0/24")
    if keys.flag("ipv6_enabled") and not any(len(packed) == 16 for packed, _, _ in network.subnets):
        raise unsupported("a choice of the IPv6 subnet", "name one: --subnet fd00:89:7::/64")
