"""Write and read peers.json, the list of the network's other nodes, for `fastcni selftest --peer`.

    [{"name": "node-b", "addresses": ["192.0.2.2"], "subnets": ["10.244.2.0/24"]}]

name: the registry's key of the node's record. addresses: the addresses at which other nodes reach the node. subnets:
the subnets of the node's pods.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcni.agent import files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.contract import Node

DIRECTORY = "/run/fastcni/agent"           # the agent's files; a reboot removes these files and the agent's links
NAME = "peers.json"


def write(directory: str, nodes: Iterable[Node]) -> None:
    """Write the list of `nodes` to peers.json in `directory`, unless the file already has this list. Raises OSError."""
    path = Path(directory, NAME)
    text = json.dumps([{"name": node.name, "addresses": [str(each) for each in node.public.values()],
                        "subnets": [str(each) for each in node.subnets.values()]} for node in nodes])
    if not path.is_file() or files.read(path) != text:
        files.write(path, text)


def read(directory: str) -> list[dict[str, Any]]:
    """Return the list in peers.json; [] if the file does not exist. Raises OSError, ValueError."""
    try:
        found = json.loads(files.read(Path(directory, NAME)))
    except FileNotFoundError:
        return []
    return found if isinstance(found, list) else []


def remove(directory: str) -> None:
    """Remove peers.json: the node leaves the network. Raises OSError."""
    Path(directory, NAME).unlink(missing_ok=True)
