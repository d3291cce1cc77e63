"""Encode and read a node's record in etcd, in flannel's format: the key has the subnets, the value has JSON.

    /coreos.com/network/subnets/10.5.52.0-24                        with IPv4 only
    /coreos.com/network/subnets/10.5.52.0-24&2001:cafe:42:1::-64    with both families; 0.0.0.0-0&... with IPv6 only

    {"PublicIP": "192.0.2.7", "PublicIPv6": null, "BackendType": "vxlan", "BackendData": {"VNI": 1, "VtepMAC": "..."}}
"""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from fastcni.agent.contract import Node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.agent.contract import Address, Prefix

NO_IPV4 = "0.0.0.0-0"
PUBLIC = {4: "PublicIP", 6: "PublicIPv6"}
DATA = {4: "BackendData", 6: "BackendV6Data"}


def key_of(subnets: Mapping[int, Prefix]) -> str:
    """Return the last part of a record's key, such as 10.5.52.0-24. subnets: {family: subnet}."""
    first = str(subnets[4]).replace("/", "-") if 4 in subnets else NO_IPV4
    return f"{first}&{str(subnets[6]).replace('/', '-')}" if 6 in subnets else first


def value_of(node: Node) -> str:
    public = {PUBLIC[4]: str(node.public.get(4, "0.0.0.0")),
              PUBLIC[6]: str(node.public[6]) if 6 in node.public else None}
    data = {DATA[family]: data for family, data in sorted(node.data.items()) if data}
    return json.dumps({**public, "BackendType": node.backend, **data}, separators=(",", ":"))


def read(key: str, value: str) -> Node:
    """Return the Node that a record describes. key: the last part of the record's key, which becomes the Node's name.
    Raises ValueError."""
    document = read_json(value)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    data = {family: document[name] for family, name in DATA.items() if isinstance(document.get(name), dict)}
    return Node(key, read_subnets(key), dict(read_public(document)), str(document.get("BackendType", "")), data)


def read_subnets(key: str) -> dict[int, Prefix]:
    subnets = [ip_network(part.replace("-", "/")) for part in key.split("&") if part != NO_IPV4]
    if not subnets or len({subnet.version for subnet in subnets}) != len(subnets):
        raise ValueError(f"{key!r}: expected one subnet for each address family")
    return {subnet.version: subnet for subnet in subnets}


def read_public(document: Mapping[str, object]) -> list[tuple[int, Address]]:
    found = []
    for family, name in PUBLIC.items():
        if text := document.get(name):
            address = read_address(str(text), family)
            if int(address):
                found.append((family, address))
    return found


def read_json(text: str) -> Any:
    """Decode JSON. Raises ValueError, also for JSON with too many levels."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_address(text: str, family: int) -> Address:
    """Return the address of this family in `text`. Raises ValueError."""
    found = ip_address(text)
    if found.version != family:
        raise ValueError(f"expected an IPv{family} address, got {text}")
    return found
