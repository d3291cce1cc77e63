"""Write and read the list of the network's other nodes, a file that the agent writes for `fastcni selftest --peer`.

    [{"name": "node-b", "addresses": ["192.0.2.2"], "subnets": ["10.244.2.0/24"]}]

name: the registry's key of the node's record. addresses: those at which other nodes reach the node. subnets: those of
its pods.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcni.agent import files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.contract import Node

DIRECTORY = "/run/fastcni/agent"           # of the agent's files; a reboot empties it, and removes the agent's links
NAME = "peers.json"


def write(directory: str, nodes: Iterable[Node]) -> None:
    """Write the list, unless the file already has it. Raises OSError."""
    path = Path(directory, NAME)
    text = json.dumps([{"name": node.name, "addresses": [str(each) for each in node.public.values()],
                        "subnets": [str(each) for each in node.subnets.values()]} for node in nodes])
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        files.write(path, text)


def read(directory: str) -> list[dict[str, Any]]:
    """Return the list; [] if no agent has written one. Raises OSError, ValueError."""
    try:
        found = json.loads(Path(directory, NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return found if isinstance(found, list) else []


def remove(directory: str) -> None:
    """Remove the list, for a node that leaves the network. Raises OSError."""
    Path(directory, NAME).unlink(missing_ok=True)
