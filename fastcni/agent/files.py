"""Write the agent's files: /run/flannel/subnet.env, which the flannel plugin reads, and the network's conflist.

A reader never sees half a file. The agent writes the conflist last, because a runtime that finds it starts pods.
"""

from __future__ import annotations

import json
import os
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni._system import open_regular
from fastcni.kit import flannel_files
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.contract import NetworkConf, Node, Prefix

VARIABLES = {4: ("FLANNEL_NETWORK", "FLANNEL_SUBNET"), 6: ("FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET")}
PLUGINS = [{"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
           {"type": "portmap", "capabilities": {"portMappings": True}}]
POLICY = {"type": "policy", "capabilities": {"labels": True}}
# {whether the conflist has the policy plugin: the text of the conflist}
CONFLISTS = {policies: json.dumps({"name": "cbr0", "cniVersion": "1.0.0", "plugins": PLUGINS + [POLICY] * policies},
                                  indent=2) + "\n" for policies in (False, True)}


def write_subnet(path: str, conf: NetworkConf, me: Node, mtu: int, masquerades: bool) -> None:
    """Write subnet.env. A subnet is written as its first usable address, as flanneld does. Raises OSError."""
    lines = []
    for family, (network, subnet) in VARIABLES.items():
        if family in conf.families:
            own = me.subnets[family]
            lines += [f"{network}={conf.families[family].network}", f"{subnet}={own[1]}/{own.prefixlen}"]
    lines += [f"{flannel_files.MTU}={mtu}", f"{flannel_files.MASQUERADES}={str(masquerades).lower()}"]
    write(Path(path), "".join(f"{line}\n" for line in lines))


def read_former(path: str) -> Mapping[int, Prefix]:
    """Return this node's previous subnets from subnet.env; {} if the file is missing or unreadable."""
    try:
        found = [ip_network(text) for text in flannel_files.read_subnet(path).subnets]
    except CniError:
        return {}
    return {subnet.version: subnet for subnet in found}


def write_conflist(path: str, policies: bool) -> bool:
    """Write the conflist, unless the file exists with other text than the agent's. policies: add the policy plugin.
    Return whether the file now has this conflist. Raises OSError."""
    try:
        text = read(path)
    except FileNotFoundError:
        text = CONFLISTS[not policies]
    except ValueError:
        return False
    if text == CONFLISTS[not policies]:
        write(Path(path), CONFLISTS[policies])
        return True
    return text == CONFLISTS[policies]


def is_ours(path: str) -> bool:
    """Return whether the agent or flanneld wrote the file: a subnet.env, or the agent's conflist without edits."""
    try:
        text = read(path)
    except (OSError, ValueError):
        return False
    return text in CONFLISTS.values() or text.startswith("FLANNEL_")


def read(path: str | Path) -> str:
    """Return the text of a regular file. Raises OSError, also if the file is a FIFO, because open(2) would block;
    ValueError if the file is not UTF-8."""
    with open(path, encoding="utf-8", opener=open_regular) as file:
        return file.read()


def write(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Write a file in one step: readers see either the old file or the new file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    fd = open_regular(str(new), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with open(fd, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(fd)
    os.replace(new, path)
