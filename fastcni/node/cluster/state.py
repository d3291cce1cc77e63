"""Read this node's blocks of cluster-wide addresses from its own files, without contacting a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastcni.kit.ipam.address_files import address_of
from fastcni.kit.ipam.cluster import conf, stores
from fastcni.kit.ipam.cluster.node_state import BLOCKS, State
from fastcni.node.attachments.address_dirs import networks
from fastcni.spec import json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The blocks that a node has in an address space. directory: the space's directory. node: this node's name in the
    store. where: the store as text. blocks, addresses: how many blocks and addresses this node holds."""

    directory: str
    space: str
    node: str
    where: str
    blocks: int
    addresses: int


def held(data_dirs: Iterable[str], unseen: list[str]) -> Iterator[HeldBlocks]:
    """Yield the address spaces in which this node has blocks. data_dirs: the result of address_dirs.cluster_dirs()."""
    for directory, state in states(data_dirs, unseen):
        if state.blocks:
            count = sum(address_of(name) is not None for name in os.listdir(directory))
            yield HeldBlocks(directory, os.path.basename(directory), state.node, store_text(state.store),
                             len(state.blocks),
                             count)


def used(data_dirs: Iterable[str], unseen: list[str]) -> Iterator[conf.Keys]:
    """Yield the Keys, without ranges, of each address space that this node has joined. The network of a space may be
    missing in this node's files: with Multus, the API server has the network."""
    for directory, state in states(data_dirs, unseen):
        if state.node and state.store:
            try:
                yield conf.read_keys(section_of(directory, state))
            except CniError as e:
                unseen.append(f"{directory}/{BLOCKS}: {e}")


def section_of(directory: str, state: State) -> Section:
    """Return the parts of a space's configuration that this node's state records. Raises JsonError."""
    where, space = os.path.split(directory)
    return Section({"name": space, "ipam": {"type": "cluster", "network_name": space, "dataDir": where, "node_name":
                                            state.node, "store": json.read(state.store.encode())}})


def states(data_dirs: Iterable[str], unseen: list[str]) -> Iterator[tuple[str, State]]:
    """Yield (directory, state) of each address space that has a state file in one of the dataDirs."""
    for where in data_dirs:
        for space in networks(where, unseen):
            directory = os.path.join(where, space)
            try:
                with open(os.path.join(directory, BLOCKS), "rb") as file:
                    state = State(json.read(file.read()))
                    store_text(state.store)
            except (FileNotFoundError, NotADirectoryError):
                continue                    # for example the directory of a network of host-local
            except (OSError, json.JsonError, AttributeError, TypeError, ValueError) as e:
                unseen.append(f"{directory}/{BLOCKS}: {e}")
                continue
            yield directory, state


def store_text(key: str) -> str:
    """Return a store as text. key: the JSON text that identifies the store. Raises JsonError."""
    return stores.store_text(json.read(key.encode())) if key else "a store"
