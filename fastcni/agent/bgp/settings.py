"""Read the settings file of `fastcni agent --bgp`.

    {"as": 64512, "peers": [{"address": "192.0.2.254", "as": 64513}], "spaces": ["/var/lib/cni/networks/default"]}

as          this node's AS number
peers       the routers, each with "address" and "as". Optional: "password" for TCP-MD5; "multihop", the number of hops
            to a router that is not a neighbour. Peers with an IPv4 address get the IPv4 prefixes, IPv6 peers the IPv6
            prefixes
spaces      directories of address spaces of the IPAM type `cluster`, <dataDir>/<space>. Their blocks are announced, too
router_id   an IPv4 address; by default the node's public IPv4 address
engine      "bird" or "frr"; by default bird
config      the file that the agent writes; by default /etc/bird/fastcni.conf or /etc/frr/fastcni.conf. The operator's
            configuration of BIRD must include this file, and needs a `protocol device`
socket      BIRD's control socket, by default /run/bird/bird.ctl; or the directory of FRR's sockets, by default /run/frr
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcni.agent.contract import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.contract import Address

MAX_AS = (1 << 32) - 1
PATHS = {"bird": ("/etc/bird/fastcni.conf", "/run/bird/bird.ctl"), "frr": ("/etc/frr/fastcni.conf", "/run/frr")}
NAMES = {"bird": "BIRD", "frr": "FRR"}
# {key: type}; read_as() checks AS numbers
KEYS = {"as": object, "peers": list, "spaces": list, "router_id": str, "engine": str, "config": str, "socket": str}
PEER_KEYS = {"address": str, "as": object, "password": str, "multihop": int}
TYPE_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a number"}


class BgpError(Exception):
    """The BGP engine does not answer, or rejects the configuration. The error's text contains the engine's error
    text."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A router that is a BGP peer. asn: its AS number. password: for TCP-MD5, or "". multihop: the maximum number of
    hops to the router; 0 for a neighbour."""

    address: Address
    asn: int
    password: str
    multihop: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in the file of --bgp."""

    asn: int
    peers: tuple[Peer, ...]
    spaces: tuple[str, ...]
    router_id: str
    config: str
    socket: str
    engine: str = "bird"


def read_settings(path: str) -> Settings:
    """Read the settings file. Raises ConfigurationError, which names the file and the key. Unknown keys are errors."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        check_keys("", document, KEYS)
        for number, each in enumerate(document.get("peers", []), 1):
            check_keys(f"peer {number}: ", each, PEER_KEYS)
        engine = document.get("engine", "bird")
        if engine not in PATHS:
            raise ValueError(f"engine: expected one of {', '.join(PATHS)}, got {engine!r}")
        config, socket = PATHS[engine]
        peers = tuple(Peer(ip_address(it["address"]), read_as(it["as"]), quotable(it.get("password", ""), engine),
                           it.get("multihop", 0)) for it in document["peers"])
        return Settings(read_as(document["as"]), peers, tuple(document.get("spaces", ())),
                        str(ip_address(document["router_id"])) if "router_id" in document else "",
                        document.get("config", config), document.get("socket", socket), engine)
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from None
    except KeyError as e:
        raise ConfigurationError(f"{path}: the key {e} is missing") from None
    except ValueError as e:
        raise ConfigurationError(f"{path}: {e}") from None


def check_keys(where: str, value: Any, keys: Mapping[str, type]) -> None:
    """Raise ValueError if `value` is not an object, or has an unknown key or a value of another type. If a misspelt
    `password` were ignored, the session would have no password. where: the beginning of the error's text."""
    check_type(where, value, dict)
    for key, each in value.items():
        if key not in keys:
            raise ValueError(f"{where}the key '{key}' is not known; possible are {', '.join(keys)}")
        check_type(f"{where}{key}: ", each, keys[key])


def check_type(where: str, value: Any, kind: type) -> None:
    """Raise ValueError, without the value, which may be a password."""
    if not isinstance(value, kind):
        raise ValueError(f"{where}expected {TYPE_NAMES[kind]}")


def read_as(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_AS:
        raise ValueError(f"as: expected a number from 1 to {MAX_AS}, got {value!r}")
    return value


def quotable(text: str, engine: str) -> str:
    """Return `text`, a password, if the engine's configuration can contain this password. Raises ValueError."""
    if '"' in text or not text.isprintable():
        raise ValueError(f"password: {NAMES[engine]} takes no quotes and no control characters in it")
    if engine == "frr" and " " in text:
        raise ValueError("password: FRR takes no blanks in it")
    return text
