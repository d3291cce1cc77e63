"""The blocks of cluster-wide addresses that this node has, by its own files. Changes nothing, and asks no store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastcni.kit.ipam.cluster import stores
from fastcni.kit.ipam.cluster.node_state import BLOCKS, State
from fastcni.node.address_dirs import networks
from fastcni.spec import json


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The blocks of a space. folder: of the space. node: this node's name in the store. where: the store for people."""

    folder: str
    space: str
    node: str
    where: str
    blocks: int


def held(data_dirs: Iterable[str], unseen: list[str]) -> Iterator[HeldBlocks]:
    """Yield the spaces of which this node has blocks. data_dirs: as of address_dirs.cluster_dirs()."""
    for where in data_dirs:
        for space in networks(where, unseen):
            folder = os.path.join(where, space)
            try:
                with open(os.path.join(folder, BLOCKS), "rb") as file:
                    state = State(json.read(file.read()))
                if state.blocks:
                    yield HeldBlocks(folder, space, state.node, store_text(state.store), len(state.blocks))
            except (FileNotFoundError, NotADirectoryError):
                continue                    # the folder of a network of host-local, for instance
            except (OSError, json.JsonError, AttributeError, TypeError, ValueError) as e:
                unseen.append(f"{folder}/{BLOCKS}: {e}")


def store_text(key: str) -> str:
    """A store for people, from what tells it from others. Raises JsonError."""
    return stores.store_text(json.read(key.encode())) if key else "a store"
