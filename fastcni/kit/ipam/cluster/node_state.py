"""Read and write the files in which this node keeps its blocks of an address space, and the addresses of its pods.

    <dataDir>/<space>/          a host-local directory with its lock, address files and index, see kit/ipam/store.py
        10.0.0.70               "<container id>\\r\\n<ifname>\\r\\n<network>\\r\\n<pod>\\r\\n<marks>\\r\\n<netns>"
        .cluster/blocks.json    the State: node, epoch, boot id, grid, blocks. Replaced by rename(2), under the lock
        .cluster/released       the time at which each address of these blocks was released, see released.py
        .cluster/pods/<digest>  a symbolic link whose text lists the addresses of a pod's interface
        .cluster/claim.lock     flock(2) around calls to the store, see claims.py; they do not hold the other lock

An address file's first two lines are its owner, as in host-local. <pod> is "namespace/name". <netns> is the path of the
pod's network namespace, by which a server checks whether the pod exists. <marks>: "single" if the IPClaim is released
with the address, "sticky" if the store keeps the claim for the pod, "shared" if its block is SHARED. The owner
"fastcni:single <pod>\\r\\n<ifname>" reserves an address of this node's block for an IPClaim that is KEPT or belongs to
another node.
"""

from __future__ import annotations

import posix

from fastcni._system import close_file, open_regular, read_file, write_file
from fastcni.kit.call import names
from fastcni.kit.call.files import make_directories
from fastcni.kit.ipam.address_files import AddressFiles
from fastcni.kit.ipam.cluster.grid import Own, Plan, family_of, to_int
from fastcni.kit.ipam.cluster.released import Released
from fastcni.kit.ipam.store import SPACE_DIRECTORY, Store, boot_id
from fastcni.spec import address, json
from fastcni.spec.errors import IO_FAILURE, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import History
    from fastcni.kit.ipam.cluster.grid import Range

DIRECTORY = SPACE_DIRECTORY
BLOCKS = f"{DIRECTORY}/blocks.json"
MAX_BYTES = 64 << 20
KEPT_OWNER = "fastcni:single"   # first word of the owner that reserves an address for an IPClaim; of all versions
KEPT_STATE = "kept"             # contract.KEPT
IP_CLAIM, STICKY = "single", "sticky"           # values of <marks>, which other versions of fastcni read
WRITE = posix.O_CREAT | posix.O_TRUNC | posix.O_NOFOLLOW


class State:
    """The content of blocks.json. To change a State, copy() it, change the copy, and Space.save() the copy.

    node, epoch, boot   as of the last join. node is "" if this node has not joined
    store, history      key_of() of the store's settings, and the last History of this store, see later_history()
    grid                {"4": prefix length of a block, "6": ...}
    blocks              {cidr: Own}: the blocks out of which this node gives addresses
    lost                cidrs of blocks that this node has lost. Pods with an address in such a block keep the address
    later               [{"address", "container", "ifname", "to": "", "kept" or "held"}]: IPClaims that the store has to
                        release or keep, or that this node has to claim again
    hold                the pause in which this node claims no block, because the store was restored: see hold.py

    The states of a node on this machine; states.py has its states in the store. rejoin() leads from each state to
    joined, or to holding after a restore of the store.

    state       if                                                      gives addresses of `blocks`     claims blocks
    new         node is ""                                              has no blocks                   after rejoin()
    unknown     not confirmed in this boot, or `store` has changed      after confirm()                 after rejoin()
    joined      no other state                                          yes                             yes
    stale       not confirmed for allocate.CONFIRM_S                    yes; an ADD calls confirm()     yes
    cut off     not confirmed for serve_after_loss                      no                              no
    holding     `hold` is not None                                      yes                             no
    """

    __slots__ = ("blocks", "boot", "epoch", "grid", "history", "hold", "later", "lost", "node", "numbers", "plans",
                 "store")

    def __init__(self, document: dict[str, Any]) -> None:
        get = document.get
        self.node: str = get("node", "")
        self.epoch: int = get("epoch", 0)
        self.boot: str = get("boot", "")
        self.store: str = get("store", "")
        name, revision, *more = get("history", ("", 0))
        self.history: History = name, revision, more[0] if more else -revision     # earlier versions wrote two values
        self.grid: dict[str, int] = get("grid", {})
        self.blocks = {row[0]: Own(*row) for row in get("blocks", ())}
        self.lost: list[str] = get("lost", [])
        self.later: list[dict[str, str]] = get("later", [])
        self.hold: Any = get("hold") or None
        self.plans: dict[Range, Plan] = {}
        self.numbers: dict[tuple[int, int], Own] | None = None

    def to_dict(self) -> dict[str, Any]:
        blocks = [[own.cidr, own.epoch, own.since, own.at] for own in self.blocks.values()]
        return {**self._without_blocks(), "blocks": blocks}

    def _without_blocks(self) -> dict[str, Any]:
        return {"node": self.node, "epoch": self.epoch, "boot": self.boot, "store": self.store,
                "history": list(self.history), "grid": dict(self.grid), "lost": list(self.lost),
                "later": [dict(one) for one in self.later], "hold": self.hold}

    def copy(self, **fields: Any) -> State:
        """Return a copy that the caller may change, in which `fields` replace members. Both States share the Own
        objects, which never change."""
        new = State(self._without_blocks())
        new.blocks = dict(self.blocks)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    def later_history(self, now: History) -> History:
        """Return the value of `history` after the store's history() has returned `now`, if `now` shows no restore of
        the store."""
        return now[0], now[1], max(now[2], self.history[2])

    def add_block(self, cidr: str, epoch: int, since: float) -> None:
        """Add a block of this node. Give it a free place in the table of released addresses."""
        self.numbers = None
        self.plans.clear()
        if cidr in self.blocks:
            old = self.blocks[cidr]
            self.blocks[cidr] = Own(cidr, epoch, since, old.at)
            return
        own, at = Own(cidr, epoch, since, 0), 0
        for other in sorted(self.blocks.values(), key=lambda one: one.at):
            if other.at - at >= own.size():
                break
            at = max(at, other.at + other.size())
        own.at = at
        self.blocks[cidr] = own
        if cidr in self.lost:
            self.lost.remove(cidr)

    def drop_block(self, cidr: str) -> None:
        """Remove a block from `blocks`, so that no more addresses are given out of it. The block keeps its place in the
        table of released addresses while a pod has one of its addresses."""
        self.numbers = None
        self.plans.clear()
        if self.blocks.pop(cidr, None) and cidr not in self.lost:
            self.lost.append(cidr)

    def own_block(self, packed: bytes) -> Own | None:
        """Return this node's block that contains `packed`, or None."""
        bits = len(packed) * 8
        prefix = self.grid.get(family_of(bits))
        if prefix is None:
            return None
        if self.numbers is None:
            self.numbers = {(own.bits, own.first >> own.shift): own for own in self.blocks.values()}
        return self.numbers.get((bits, to_int(packed) >> bits - prefix))

    def plan(self, range_: Range) -> Plan:
        """Return the Plan of a range: which of its addresses are in this node's blocks."""
        if range_ not in self.plans:
            self.plans[range_] = Plan(self.blocks.values(), self.grid.get(range_.family, 0), range_)
        return self.plans[range_]


class Cache:
    """The cached content of a blocks.json. last: (identity and times of the file, State). flat_seen: the monotonic time
    of the last check of the flat file. flat_changed: whether the flat file has changed since the Keys were read.

    fd is the open file. While it is open, a file that replaces it has another inode number. So the cache detects the
    replacement even if both files have the same time stamp."""

    __slots__ = ("fd", "flat_changed", "flat_seen", "last")

    def __init__(self) -> None:
        self.flat_changed, self.flat_seen, self.fd = False, 0.0, -1
        self.last: tuple[tuple[int, int, int, int], State] | None = None

    def keep(self, fd: int, look: tuple[int, int, int, int], state: State) -> None:
        self.__del__()
        self.fd, self.last = fd, (look, state)

    def __del__(self) -> None:
        if self.fd >= 0:
            close_file(self.fd)


class SpaceFiles(AddressFiles):
    """Address files with more lines than host-local's. The first two lines are the owner.

    more   the lines after the owner, for files that take() creates
    notes  {name: [network, pod, marks, netns]} of the files read so far
    """

    __slots__ = ("more", "notes")

    def __init__(self, data_dir: str, network: str, warn: Callable[[str], object], sync: bool = False) -> None:
        super().__init__(data_dir, network, warn, sync)
        self.more = b""
        self.notes: dict[str, list[str]] = {}

    def read(self, name: str) -> bytes | None:
        content = super().read(name)
        if content is None or content.count(b"\r\n") < 2:
            return content
        container, ifname, *notes = content.split(b"\r\n")
        self.notes[name] = [note.decode("utf-8", "replace") for note in notes]
        return container + b"\r\n" + ifname

    def create(self, name: str, owner: bytes) -> bytes | None:
        return super().create(name, owner + self.more)

    def replace(self, name: str, owner: bytes) -> None:
        """Replace an address file by one with another owner, atomically. Raises CniError 5."""
        self.changed = True
        try:
            write_file(f"{DIRECTORY}/new", owner + self.more, WRITE, self.fd, sync=self.sync)
            posix.rename(f"{DIRECTORY}/new", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as e:
            raise self.error("replace", name, e) from None

    def note(self, name: str) -> list[str]:
        """Return [network, pod, marks] of an address file that was read, [""] * 3 if the file has only an owner."""
        return [*self.notes.get(name, ()), "", "", ""][:3]

    def netns(self, name: str) -> str:
        """Return the path of the network namespace in an address file that was read, "" if the file has none."""
        return "".join(self.notes.get(name, ())[3:4])


def more_lines(network: str, pod: str, marks: str = "", netns: str = "") -> bytes:
    netns = netns if netns.isprintable() else ""
    return f"\r\n{network}\r\n{pod}\r\n{marks}\r\n{netns}".rstrip("\r\n").encode()


class Space(Store):
    """The directory of an address space, open and locked inside `with`; see kit/ipam/store.py. `with` returns None if
    the directory does not exist and create is False.

    state     the current State
    times     the table of released addresses
    """

    __slots__ = ("keys", "state", "times")
    FILES = SpaceFiles
    files: SpaceFiles
    state: State
    times: Released

    def __init__(self, keys: Keys, warn: Callable[[str], object], create: bool = False,
                 release_former: bool = True) -> None:
        super().__init__(keys.data_dir, keys.space, warn, create, keys.fsync, release_former)
        self.keys = keys
        self.times = Released()

    def __enter__(self) -> Space | None:
        if super().__enter__() is None:
            return None
        try:
            self._open_state()
        except OSError as e:
            self._close()
            raise CniError(IO_FAILURE, f"open {self.files.path}/{DIRECTORY}: {e.strerror} (errno {e.errno})") from None
        except BaseException:
            self._close()
            raise
        return self

    def _close(self) -> None:
        self.times.close()
        super()._close()

    def _is_of_another_kind(self) -> bool:
        self.index.plain = False        # host-local may have used the directory before
        return False

    def _begin_boot(self) -> None:
        self._open_state()              # needed to release addresses of the previous boot
        super()._begin_boot()

    def _open_state(self) -> None:
        if self.times.directory < 0:
            self.state = read_state(self.files, self.keys.cache)
            self.times.directory, self.times.boot = self.files.fd, boot_id()

    def save(self, state: State) -> None:
        """Write a State to blocks.json, and use it from now on. No code may change it afterwards. Raises CniError 5."""
        new, directory, fd = f"{BLOCKS}.new", self.files.fd, -1
        try:
            write_file(new, json.write(state.to_dict()), WRITE, directory, sync=self.files.sync)
            fd = open_regular(new, posix.O_RDONLY, directory=directory)       # before another program replaces the file
            posix.rename(new, BLOCKS, src_dir_fd=directory, dst_dir_fd=directory)
            self.keys.cache.keep(fd, look_of(posix.fstat(fd)), state)   # rename(2) has changed the file's ctime
        except OSError as e:
            if fd >= 0:
                close_file(fd)
            raise self.files.error("write", BLOCKS, e) from None
        self.state = state

    def hand_over(self, packed: bytes, old: bytes, new: bytes, more: bytes) -> None:
        """Give a held address another owner, atomically. old, new: the owners. more: the lines after the new owner."""
        self.files.more = more
        self.index.reserve()
        self.files.replace(address.ip_text(packed), new)
        self.index.drop(packed, old)
        self.index.hold(packed, new)

    def release(self, packed: bytes, owner: bytes) -> bool:
        """Release the address if `owner` has it, and record the time. Return whether the address was released.

        If the address has an IP claim in the store, first add the claim to State.later. A sticky address stays reserved
        for its pod.
        """
        if not self._has_owner(packed, owner):
            return False
        name = address.ip_text(packed)
        network, pod, marks = self.files.note(name)
        if IP_CLAIM in marks or STICKY in marks:
            container, _, ifname = owner.decode().partition("\r\n")
            entry = {"address": name, "container": container, "ifname": ifname,
                     "to": KEPT_STATE if STICKY in marks else ""}
            self.save(self.state.copy(later=[*self.state.later, entry]))
        if STICKY in marks and self.state.own_block(packed):
            self.hand_over(packed, owner, kept_owner(pod, ifname), more_lines(network, pod))
            return True
        self.drop_file(packed, owner)
        return True

    def network_of(self, name: str) -> str:
        return self.files.note(name)[0] or self.network

    def drop_file(self, packed: bytes, owner: bytes) -> None:
        """Remove the file of an address of `owner`, and record the time."""
        self.files.remove(address.ip_text(packed))
        self.index.drop(packed, owner)
        self.note_released(packed)

    def note_released(self, packed: bytes) -> None:
        if own := self.state.own_block(packed):
            self.times.release(own.place(packed))

    # -- pods -----------------------------------------------------------------------------------------

    def addresses_of_pod(self, pod: str, ifname: str) -> list[bytes]:
        """Return the packed addresses that a pod's interface last got: hints, which the caller has to check in the
        files."""
        try:
            text = posix.readlink(pod_link(pod, ifname), dir_fd=self.files.fd)
        except OSError:
            return []
        return [bytes.fromhex(one) for one in text.split(",")]

    def note_pod(self, pod: str, ifname: str, addresses: list[bytes]) -> None:
        """Record the addresses of a pod's interface. The record is only a hint, so a failure only logs a warning."""
        link, text = pod_link(pod, ifname), ",".join(packed.hex() for packed in addresses)
        try:
            try:
                posix.symlink(text, link, dir_fd=self.files.fd)
            except FileExistsError:
                posix.unlink(link, dir_fd=self.files.fd)
                posix.symlink(text, link, dir_fd=self.files.fd)
        except OSError as e:
            self.files.warn(str(self.files.error("note the pod in", link, e)))

    def forget_pod(self, pod: str, ifname: str) -> None:
        try:
            posix.unlink(pod_link(pod, ifname), dir_fd=self.files.fd)
        except FileNotFoundError:
            return
        except OSError as e:
            self.files.warn(str(self.files.error("forget the pod in", pod_link(pod, ifname), e)))


class MadeSpace(Space):
    """A Space that creates its directory if needed."""

    __slots__ = ()

    def __init__(self, keys: Keys, warn: Callable[[str], object]) -> None:
        super().__init__(keys, warn, create=True)

    def __enter__(self) -> MadeSpace:
        super().__enter__()
        return self


def state_of(keys: Keys, warn: Callable[[str], object]) -> State:
    """Return the State of an address space. Make the space's directory if needed."""
    with MadeSpace(keys, warn) as space:
        return space.state


def pod_link(pod: str, ifname: str) -> str:
    return f"{DIRECTORY}/pods/{names.digest(f'{pod} {ifname}', 32)}"


def kept_owner(pod: str, ifname: str) -> bytes:
    """Return the owner that reserves an address for an IPClaim: unlike an attachment's, its first line has a blank."""
    return f"{KEPT_OWNER} {pod or '-'}\r\n{ifname or '-'}".encode()


def look_of(found: posix.stat_result) -> tuple[int, int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read_state(files: SpaceFiles, cache: Cache) -> State:
    """Return the State in blocks.json, or a new State if the file is missing or damaged. Creates missing directories.
    Raises OSError."""
    try:
        look = look_of(posix.stat(BLOCKS, dir_fd=files.fd))
        last = cache.last
        if last is not None and last[0] == look:
            return last[1]
        fd = open_regular(BLOCKS, posix.O_RDONLY, directory=files.fd)
    except FileNotFoundError:
        make_directories(f"{files.path}/{DIRECTORY}/pods", 0o700, 0o700)
        return State({})
    try:
        state = State(json.read(read_file(f"/proc/self/fd/{fd}", posix.O_RDONLY, MAX_BYTES)))
        cache.keep(fd, look_of(posix.fstat(fd)), state)
    except (json.JsonError, AttributeError, TypeError, ValueError) as e:
        # A power cut can damage the file. The address files show the held addresses, and rejoin() reads the blocks.
        close_file(fd)
        files.warn(f"{files.path}/{BLOCKS} is damaged, asking the store for this node's blocks: {e}")
        return State({})
    except BaseException:
        close_file(fd)
        raise
    return state
