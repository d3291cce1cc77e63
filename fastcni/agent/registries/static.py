"""Use a file as the registry: for a trial of the agent, or for a few nodes without etcd and Kubernetes.

Each node must have the same file. The agent reads a changed file within LOOK_S.

    {"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}},
     "nodes": [{"name": "one", "subnets": ["10.244.1.0/24"], "public": ["192.0.2.1"]},
               {"name": "two", "subnets": ["10.244.2.0/24"], "public": ["192.0.2.2"]}]}

The MAC of a node's vxlan link is derived from its public address, because nodes publish nothing.
"""

from __future__ import annotations

import json
import os
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from fastcni.agent import conf as confs
from fastcni.agent.contract import ConfigurationError, Node, SubnetLost
from fastcni.clients.errors import Away

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from fastcni.agent.contract import NetworkConf
    from fastcni.daemon.log import Logger

LOOK_S = 0.5                    # seconds between two checks of the file's inode, time and size


class Static:
    """The registry in a file (contract.Registry). path: the file. name: this node's name in the file."""

    publishes = False

    def __init__(self, path: str, name: str, log: Logger, wait: Callable[[float], object]) -> None:
        self.path, self.name, self.log, self.wait = path, name, log, wait
        self._read: dict[str, tuple[dict[str, Any], str, Node]] = {}    # {node's name: (its document, backend, Node)}

    def close(self) -> None:
        """Do nothing: the registry has no open files."""

    def conf(self) -> NetworkConf:
        return confs.read(json.dumps(self._document().get("network", {})))

    def join(self, conf: NetworkConf, me: Node) -> Node:
        own = self._own()
        missing = [family for family in conf.families if family not in own.subnets]
        if missing:
            raise ConfigurationError(f'{self.path}: node "{self.name}" has no IPv{missing[0]} subnet')
        return own

    def keep(self, me: Node) -> float:
        if self._own().subnets != me.subnets:
            raise SubnetLost(f'{self.path}: node "{self.name}" now has other subnets')
        return 3600.0

    def leave(self, me: Node) -> None:
        """Do nothing: the operator edits the file."""

    def ready(self, me: Node) -> None:
        """Do nothing: only Kubernetes has a condition for this."""

    def watch(self, changed: Callable[[Collection[Node]], object], stop: Callable[[], bool]) -> None:
        seen: object = None
        while not stop():
            try:
                found = os.stat(self.path)
                look = found.st_ino, found.st_mtime_ns, found.st_size
                if look != seen:
                    changed(self.nodes())
                seen = look
            except (OSError, ConfigurationError, Away) as e:
                if seen != str(e):
                    self.log.warning("registry_away", error=str(e))
                seen = str(e)
            self.wait(LOOK_S)

    def _own(self) -> Node:
        for node in self.nodes():
            if node.name == self.name:
                return node
        raise ConfigurationError(f'{self.path} has no node "{self.name}": --node-name names this node')

    def nodes(self) -> list[Node]:
        document = self._document()
        backend = confs.read(json.dumps(document.get("network", {}))).backend["Type"]
        nodes, found = document.get("nodes", []), []
        if not isinstance(nodes, list):
            raise ConfigurationError(f"{self.path}: nodes: not a list")
        for number, each in enumerate(nodes, 1):
            try:
                found.append((each, backend, self._read_again(each, backend)))
            except KeyError as e:
                raise ConfigurationError(f"{self.path}: nodes: number {number} has no key {e}") from None
            except (ValueError, TypeError, AttributeError) as e:
                raise ConfigurationError(f"{self.path}: nodes: number {number}: {e}") from None
        self._read = {each[2].name: each for each in found}
        return [node for _, _, node in found]

    def _read_again(self, document: dict[str, Any], backend: str) -> Node:
        """Return the Node that `document`, an item of "nodes", describes. If the item has not changed, return the
        previous Node, because parsing the addresses of 5,000 nodes takes 40 ms."""
        if not isinstance(document["name"], str):
            raise TypeError(f"a name is not a text: {document['name']}")
        former = self._read.get(document["name"])
        return former[2] if former and former[:2] == (document, backend) else read_node(document, backend)

    def _document(self) -> dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8") as file:
                document = json.load(file)
        except OSError as e:
            raise Away(f"{self.path}: {e.strerror}") from None
        except (ValueError, RecursionError) as e:
            raise ConfigurationError(f"{self.path}: {e}") from None
        if not isinstance(document, dict):
            raise ConfigurationError(f"{self.path}: not a JSON object")
        return document


def read_node(document: dict[str, Any], backend: str) -> Node:
    subnets = [ip_network(text) for text in document["subnets"]]
    public = [ip_address(text) for text in document["public"]]
    return Node(document["name"], {each.version: each for each in subnets}, {each.version: each for each in public},
                backend, document.get("data", {}))
