"""Load BPF programs, and create, pin and read BPF maps by bpf(2), without libbpf and BTF (linux/bpf.h).

The functions take and return file descriptors of programs and maps. A pin is a path in bpffs that keeps a program or a
map when no process has a descriptor of it.
"""

from __future__ import annotations

import posix
import sys
from errno import EACCES, ENOENT, ENOSPC

from fastcni._system import address_of, bpf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    # {name: (instructions, ((index of an instruction that loads a map, the map's name), ...))}
    Programs = Mapping[str, tuple[bytes, tuple[tuple[int, str], ...]]]

ORDER = sys.byteorder
MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MAP_DELETE_ELEM, PROG_LOAD, OBJ_PIN, OBJ_GET = 0, 1, 2, 3, 5, 6, 7
PROG_TEST_RUN, OBJ_GET_INFO_BY_FD, MAP_LOOKUP_BATCH = 10, 15, 24
MAP_TYPE_HASH, PROG_TYPE_SCHED_CLS = 1, 3
F_NO_PREALLOC = 1
PSEUDO_MAP_FD = 1               # the source register of a 64-bit load whose value is a map's descriptor
INSTRUCTION_BYTES = 8
BATCH = 4096                    # the most elements in one answer; each bucket of the hash table must fit in one answer
LOG_BYTES = 1 << 18


class Refused(OSError):
    """The kernel's verifier rejected a program. why: the last line of the verifier's log."""

    def __init__(self, error: OSError, why: str) -> None:
        super().__init__(error.errno, f"{error.strerror}: {why}" if why else error.strerror)


def u32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, ORDER) for number in numbers)


def u64(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, ORDER) for number in numbers)


def create_hash(key_bytes: int, value_bytes: int, elements: int) -> int:
    """Create a hash map for up to `elements` elements, without allocating their memory in advance. Return the map's
    descriptor. Raises OSError."""
    return bpf(MAP_CREATE, bytearray(u32(MAP_TYPE_HASH, key_bytes, value_bytes, elements, F_NO_PREALLOC)))


def pin(fd: int, path: str) -> None:
    """Pin the program or map `fd` at `path`. Raises OSError: EEXIST if the pin exists, EPERM if `path` is not in
    bpffs."""
    name = bytearray(path.encode() + b"\0")
    bpf(OBJ_PIN, bytearray(u64(address_of(name)) + u32(fd)))


def get(path: str) -> int:
    """Return a new descriptor of the program or map that is pinned at `path`. Raises OSError: ENOENT if the pin does
    not exist."""
    name = bytearray(path.encode() + b"\0")
    return bpf(OBJ_GET, bytearray(u64(address_of(name)) + u32(0, 0)))


def program_id(fd: int) -> int:
    """Return the kernel's id of a loaded program. Raises OSError. struct bpf_prog_info begins with type, id:u32."""
    info = bytearray(8)
    bpf(OBJ_GET_INFO_BY_FD, bytearray(u32(fd, len(info)) + u64(address_of(info))))
    return int.from_bytes(info[4:], ORDER)


def load(instructions: bytes, relocations: tuple[tuple[int, str], ...], maps: Mapping[str, int]) -> int:
    """Load a program for cls_bpf, the BPF classifier of traffic control, and return the program's descriptor.
    relocations: (index of an instruction that loads a map, the map's name). maps: {name: descriptor}. Raises OSError;
    Refused if the verifier rejects the program."""
    code, licence = bytearray(instructions), bytearray(b"Apache-2.0\0")
    for index, name in relocations:
        at = index * INSTRUCTION_BYTES
        code[at + 1] = code[at + 1] & 0x0F | PSEUDO_MAP_FD << 4
        code[at + 4:at + 8] = u32(maps[name])
    head = u32(PROG_TYPE_SCHED_CLS, len(code) // INSTRUCTION_BYTES) + u64(address_of(code), address_of(licence))
    try:
        return bpf(PROG_LOAD, bytearray(head))
    except OSError as e:
        if e.errno != EACCES:               # only the verifier answers EACCES; other errors are about rights and memory
            raise
        log = bytearray(LOG_BYTES)
        try:
            return bpf(PROG_LOAD, bytearray(head + u32(1, LOG_BYTES) + u64(address_of(log))))
        except OSError as again:
            lines = log.rstrip(b"\0").decode("ascii", "replace").strip().split("\n")
            raise Refused(again, lines[-2] if len(lines) > 1 else "") from None


def run(fd: int, frame: bytes) -> None:
    """Run the program `fd` once, with an Ethernet frame as its input. Raises OSError.

    union bpf_attr: prog_fd, retval, data_size_in, data_size_out:u32 | data_in, data_out:u64 | repeat:u32
    """
    data = bytearray(frame)
    bpf(PROG_TEST_RUN, bytearray(u32(fd, 0, len(data), 0) + u64(address_of(data), 0) + u32(1)))


def element(fd: int, key: bytearray, value: bytearray | None = None) -> bytearray:
    """Return union bpf_attr for a call of bpf(2) about one element. The caller must keep `key` and `value` until bpf()
    has returned."""
    return bytearray(u32(fd, 0) + u64(address_of(key), 0 if value is None else address_of(value), 0))


def update(fd: int, key: bytes, value: bytes) -> None:
    """Add or replace an element. Raises OSError: E2BIG if the map is full."""
    name, data = bytearray(key), bytearray(value)
    bpf(MAP_UPDATE_ELEM, element(fd, name, data))


def look_up(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of a key, None if the map does not have the key. Raises OSError."""
    name, data = bytearray(key), bytearray(value_bytes)
    try:
        bpf(MAP_LOOKUP_ELEM, element(fd, name, data))
    except OSError as e:
        if e.errno != ENOENT:
            raise
        return None
    return bytes(data)


def delete(fd: int, key: bytes) -> bool:
    """Delete an element. Return whether the map had it. Raises OSError."""
    name = bytearray(key)
    try:
        bpf(MAP_DELETE_ELEM, element(fd, name))
    except OSError as e:
        if e.errno != ENOENT:
            raise
        return False
    return True


def elements(fd: int, key_bytes: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the elements of a map. Elements that are added or deleted during the call may be missing. Raises OSError.

    union bpf_attr: in_batch, out_batch, keys, values:u64 | count, map_fd:u32 | elem_flags, flags:u64
    """
    place, began, size = bytearray(key_bytes), False, BATCH
    while True:
        keys, values = bytearray(size * key_bytes), bytearray(size * value_bytes)
        where = address_of(place)
        attributes = bytearray(u64(where if began else 0, where, address_of(keys), address_of(values)) + u32(size, fd)
                               + u64(0, 0))
        last = False
        try:
            bpf(MAP_LOOKUP_BATCH, attributes)
        except OSError as e:
            if e.errno == ENOSPC:           # a bucket has more elements than the buffer
                size *= 2
                continue
            if e.errno != ENOENT:
                raise
            last = True                     # this answer has the last elements
        count = int.from_bytes(attributes[32:36], ORDER)
        for number in range(count):
            yield (bytes(keys[number * key_bytes:(number + 1) * key_bytes]),
                   bytes(values[number * value_bytes:(number + 1) * value_bytes]))
        if last:
            return
        began = True


def close(*fds: int) -> None:
    for fd in fds:
        posix.close(fd)
