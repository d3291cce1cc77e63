"""Read the network's configuration, flannel's net-conf.json (flannel's Documentation/configuration.md).

    {"Network": "10.244.0.0/16", "SubnetLen": 24, "Backend": {"Type": "vxlan"}}

The IPv4 keys are Network, SubnetLen, SubnetMin, SubnetMax and EnableIPv4 (default true). The IPv6 keys are IPv6Network,
IPv6SubnetLen, IPv6SubnetMin, IPv6SubnetMax and EnableIPv6 (default false). Without the key Backend, the backend is
vxlan, as flannel's documentation says; flanneld itself uses udp.
"""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from fastcni.agent.contract import FAMILIES, ConfigurationError, Family, NetworkConf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.agent.contract import Prefix

PREFIXES = {4: "", 6: "IPv6"}                   # {family: the beginning of its keys, as in IPv6SubnetLen}
ENABLED = {4: True, 6: False}
LENGTHS = {4: 24, 6: 64}                        # {family: the default prefix length of a node's subnet}
LONGEST_NETWORK, LONGEST_SUBNET = {4: 28, 6: 124}, {4: 30, 6: 126}
LEAST_BITS = 2                                  # a subnet is this much longer than the network: at least four subnets


def read(text: str) -> NetworkConf:
    """Decode `text`, the network's configuration as JSON. Raises ConfigurationError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigurationError(f"the network's configuration is not JSON: {e}") from None
    if not isinstance(document, dict):
        raise ConfigurationError("the network's configuration is not a JSON object")
    keys = {key.lower(): value for key, value in document.items() if value is not None}
    families = {family: read_family(keys, family) for family in FAMILIES if enabled(keys, family)}
    if not families:
        raise ConfigurationError("EnableIPv4 and EnableIPv6 are both false")
    backend = keys.get("backend", {})
    if not isinstance(backend, dict):
        raise ConfigurationError(f"Backend: expected an object, got {backend!r}")
    kind = next((value for key, value in backend.items() if key.lower() == "type" and value), "vxlan")
    return NetworkConf(families, {**backend, "Type": kind})


def enabled(keys: Mapping[str, Any], family: int) -> bool:
    value = keys.get(f"enableipv{family}", ENABLED[family])
    if not isinstance(value, bool):
        raise ConfigurationError(f"EnableIPv{family}: expected true or false, got {value!r}")
    return value


def read_family(keys: Mapping[str, Any], family: int) -> Family:
    """Read the keys of one address family. keys: {key in lower case: value}. Raises ConfigurationError."""
    prefix = PREFIXES[family]
    network = read_network(keys.get(f"{prefix}network".lower(), ""), f"{prefix}Network", family)
    if network.prefixlen > LONGEST_NETWORK[family]:
        raise ConfigurationError(f"{prefix}Network {network}: /{LONGEST_NETWORK[family]} at most")
    least = network.prefixlen + LEAST_BITS
    length = keys.get(f"{prefix}subnetlen".lower(), 0) or max(LENGTHS[family], least)
    if type(length) is not int or not least <= length <= LONGEST_SUBNET[family]:
        raise ConfigurationError(f"{prefix}SubnetLen {length!r}: {least} to {LONGEST_SUBNET[family]} for {network}")
    size = 1 << (network.max_prefixlen - length)
    first = subnet_at(int(network.network_address) + size, length, family)
    last = subnet_at(int(network.broadcast_address) + 1 - size, length, family)
    return Family(network, length, read_bound(keys, f"{prefix}SubnetMin", network, first),
                  read_bound(keys, f"{prefix}SubnetMax", network, last))


def read_network(text: Any, key: str, family: int) -> Prefix:
    try:
        found = ip_network(text if isinstance(text, str) and "/" in text else "", strict=False)
        if found.version != family:
            raise ValueError("of the other family")
    except ValueError:
        raise ConfigurationError(f"{key}: expected an IPv{family} network, got {text!r}") from None
    return found


def read_bound(keys: Mapping[str, Any], key: str, network: Prefix, usual: Prefix) -> Prefix:
    """Return the subnet whose address is the value of `key` (SubnetMin or SubnetMax); `usual` if the key is absent."""
    text = keys.get(key.lower())
    if not text:
        return usual
    try:
        found = ip_network(f"{ip_address(text)}/{usual.prefixlen}")
    except ValueError:
        raise ConfigurationError(f"{key} {text!r}: expected the address of a subnet /{usual.prefixlen}") from None
    if found.version != network.version or found.network_address not in network:
        raise ConfigurationError(f"{key} {text} is not in {network}")
    return found


def subnet_at(number: int, length: int, family: int) -> Prefix:
    return ip_network((number.to_bytes(4 if family == 4 else 16, "big"), length))
