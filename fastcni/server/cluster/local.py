"""Read and change the local state of one address space for the server's thread, see kit/ipam/cluster/node_state.py.

Each method opens and locks the directory for some 0.1 ms, so requests wait no longer than that. No method contacts the
store.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from fastcni.kit.ipam.address_files import address_of, is_attachment, owner_of
from fastcni.kit.ipam.cluster import hold
from fastcni.kit.ipam.cluster.allocate import holder_text
from fastcni.kit.ipam.cluster.contract import IMPORTED, SHARED
from fastcni.kit.ipam.cluster.grid import block_of, ends, ip_text, read_block, to_int
from fastcni.kit.ipam.cluster.ip_claims import forget_kept
from fastcni.kit.ipam.cluster.node_state import IP_CLAIM, KEPT_OWNER, Space, SpaceFiles, State, kept_owner, more_lines
from fastcni.kit.ipam.cluster.upkeep import held_in, room_of
from fastcni.spec.address import read_ip

MAX_TRIED = 256                 # addresses; for a larger block the directory is listed instead of trying each file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any

    from fastcni.daemon.log import Logger
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Block, History, IPClaim, Node
    from fastcni.kit.ipam.cluster.upkeep import Room


class LocalSpace:
    """The files of one address space on this node: its blocks and addresses. keys: a network's keys."""

    def __init__(self, keys: Keys, log: Logger) -> None:
        self.keys, self.log = keys, log

    def open(self, create: bool = False) -> Space:
        return Space(self.keys, self.warn, create)

    def warn(self, text: str) -> None:
        """Log a warning of a library function."""
        self.log.debug("address_warning", text=text)

    # Reading

    def count(self, networks: Iterable[Keys]) -> tuple[State, list[Room], int]:
        """Return (the state in this node's files, upkeep.room_of() for each range of these networks, the number of
        this node's blocks without an address in use). Raises CniError."""
        with self.open() as space:
            if space is None:
                return State({}), [], 0
            ranges = {str(one): one for keys in networks for one in keys.ranges}
            return (space.state, [room_of(space, one) for one in ranges.values()],
                    sum(not held_in(space, own) for own in space.state.blocks.values()))

    def holders(self, cidrs: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return {cidr: holders of addresses of the block}, the holders in the form of a Use. Takes no lock. Raises
        CniError."""
        found = {}
        for cidr in cidrs:
            bits, network, prefix = read_block(cidr)
            first, last = ends(bits, network, prefix)
            few = last - first < MAX_TRIED
            names = (ip_text(bits, at) for at in range(first, last + 1)) if few else self._names_in(bits, first, last)
            found[cidr] = [holder for holder in self._read(names) if holder["container"]]
        return found

    def _names_in(self, bits: int, first: int, last: int) -> list[str]:
        """Return the names of the address files from `first` to `last`, sorted by address."""
        with self.open_files() as files:
            held = sorted(to_int(packed) for name in files.names()
                          if (packed := address_of(name)) is not None and len(packed) * 8 == bits)
        return [ip_text(bits, at) for at in held if first <= at <= last]

    def all_holders(self) -> list[dict[str, Any]]:
        """Return each attachment with an address in this space. Takes no lock. Raises CniError."""
        return [holder for holder in self._read() if holder["container"]]

    def claimed_addresses(self) -> list[str]:
        """Return the addresses that a file holds for an IP claim, or that were imported. Takes no lock. Raises
        CniError."""
        return [holder["address"] for holder in self._read()
                if not holder["container"] or holder["network"] == IMPORTED]

    def _read(self, names: Iterable[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the holders of the addresses `names`; None: the holders of all addresses."""
        with self.open_files() as files:
            for name in files.names() if names is None else names:
                if (holder := read_holder(files, name)) and address_of(name) is not None:
                    yield holder

    @contextmanager
    def open_files(self) -> Iterator[SpaceFiles]:
        """Open the files of the directory, without its lock."""
        files = SpaceFiles(self.keys.data_dir, self.keys.space, self.warn, False)
        files.open(True)
        try:
            yield files
        finally:
            os.close(files.fd)

    def block_of(self, state: State, packed: bytes) -> str:
        """Return the cidr of the block of an address; "" while the block size is unknown."""
        prefix = state.grid.get("4" if len(packed) == 4 else "6")
        return "" if prefix is None else block_of(packed, prefix)

    def held_outside(self) -> dict[str, list[str]]:
        """Return the addresses of attachments in blocks of other nodes: {cidr: addresses}. Raises CniError."""
        with self.open() as space:
            state = space.state if space else State({})
        found: dict[str, list[str]] = {}
        for holder in self.all_holders():
            cidr = self.block_of(state, read_ip(holder["address"]))
            if IP_CLAIM not in holder["marks"] and cidr and cidr not in state.blocks:
                found.setdefault(cidr, []).append(holder["address"])
        return found

    # Changing

    def forget_ip_claim(self, address: str) -> None:
        """Release an address that a file holds for an IP claim, or that was imported. Raises CniError."""
        with self.open() as space:
            if space is None:
                return
            forget_kept(space, address)
            owner = space.files.read_owner(address)
            if owner and space.files.note(address)[0] == IMPORTED:
                space.drop_file(read_ip(address), owner)

    def note_node(self, node: Node, history: History) -> None:
        """Record that the store has confirmed this node. Raises CniError."""
        with self.open() as space:
            if space is None or not space.state.node:
                return
            space.times.note_confirmed(True)
            state = space.state.copy(epoch=node.epoch, boot=node.boot_id, history=space.state.later_history(history))
            if state.to_dict() != space.state.to_dict():
                space.save(state)

    def stop_claims(self) -> None:
        """Begin the pause in which this node claims no block, also not for one-shot ADDs (hold.py). Raises CniError."""
        self._change(lambda state: setattr(state, "hold", hold.begin(self.keys.store)))

    def add(self, block: Block) -> None:
        """Record a block of this node. Raises CniError."""
        self._change(lambda state: state.add_block(block.cidr, block.epoch, block.since))

    def forget_lost(self, held: Collection[str]) -> None:
        """Forget blocks of other nodes in which no attachment has an address any more. Raises CniError."""
        self._change(lambda state: setattr(state, "lost", [cidr for cidr in state.lost if cidr in held]))

    def _change(self, change: Callable[[State], object]) -> None:
        with self.open() as space:
            if space is None:
                return
            state = space.state.copy()
            change(state)
            if state.to_dict() != space.state.to_dict():
                space.save(state)

    def release(self, holder: dict[str, Any], is_gone: Callable[[dict[str, Any]], bool]) -> bool:
        """Release the address of an attachment, as DEL does. Return False, and change nothing, if a request has made
        the attachment again, or if is_gone(holder) is no longer true. Raises CniError."""
        with self.open() as space:
            if space is None or read_holder(space.files, holder["address"]) != holder or not is_gone(holder):
                return False
            return space.release(read_ip(holder["address"]), owner_of(holder["container"], holder["ifname"]))

    def take_imported(self, ip_claim: IPClaim) -> bool:
        """Make the address file of an IP claim that was imported for a pod of this node, so that DEL finds the
        file. Return whether this call made the file. Raises CniError."""
        with self.open(create=True) as space:
            if space is None or any(one["address"] == ip_claim.address for one in space.state.later):
                return False
            space.files.more = more_lines(ip_claim.network, ip_claim.pod, f"{IP_CLAIM} {SHARED}")
            return space.take(read_ip(ip_claim.address), owner_of(ip_claim.container, ip_claim.ifname))

    def take_ip_claim(self, ip_claim: IPClaim) -> str:
        """Hold an address for an IP claim. Return the attachment that has the address; "" if the address is now
        held, or if the claim's own attachment has it. Raises CniError."""
        packed = read_ip(ip_claim.address)
        with self.open() as space:
            if space is None:
                return ""
            space.files.more = more_lines(ip_claim.network, ip_claim.pod)
            if space.take(packed, kept_owner(ip_claim.pod, ip_claim.ifname)):
                return ""
            owner = space.files.read(ip_claim.address) or b""
            if is_kept(owner) or owner == owner_of(ip_claim.container, ip_claim.ifname):
                return ""
            return holder_text(space, packed)


def read_holder(files: SpaceFiles, name: str) -> dict[str, Any] | None:
    """Return the holder of an address in the form of a Use, with its marks and its namespace's path. None if the
    address is free. "container" is "" if the file holds the address for an IP claim or by an operator's remark."""
    owner = files.read_owner(name)
    if owner is None:
        return None
    container, _, ifname = owner.decode("utf-8", "replace").partition("\r\n") if is_attachment(owner) else ("", "", "")
    network, pod, marks = files.note(name)
    return {"address": name, "container": container, "ifname": ifname, "network": network, "pod": pod, "marks": marks,
            "netns": files.netns(name), "since": made(files, name)}


def made(files: SpaceFiles, name: str) -> float:
    """Return when a file was written, in unix seconds; 0.0 if the file no longer exists."""
    try:
        return os.stat(name, dir_fd=files.fd, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def is_kept(owner: bytes) -> bool:
    """Return whether the owner in an address's file is an IP claim."""
    return owner.startswith(KEPT_OWNER.encode())
