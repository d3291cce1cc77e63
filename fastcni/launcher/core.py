"""Describe python_core.elf and the interpreter's shared objects for the launcher, so that it starts no damaged file.

The launcher compares size, modification time and a digest with the file (programs.h). The digest covers the bytes that
the kernel and the dynamic linker use before main(), when no signal handler exists. Damage in other bytes leads to a
signal, which python_core.c catches.
"""

from __future__ import annotations

import os
import struct
import subprocess

from fastcni.launcher.modules import read

PAGE_BYTES = 4096
CALLS_BYTES, MAIN_BYTES = 4 * PAGE_BYTES, 2 * PAGE_BYTES        # see Elf.before_main()
PT_LOAD, PT_DYNAMIC = 1, 2  # elf.h
MAX_PARTS, LIBRARIES_BYTES = 5, 504  # struct config of launcher.c
WORD_BITS = 64

# Code that prints the shared objects of the process: /proc/self/maps has a line for each part of a file, see proc(5)
SHARED_OBJECTS = """
import posix, sys
fields = [line.split(None, 5) for line in open("/proc/self/maps")]
own = posix.readlink("/proc/self/exe")
print(*dict.fromkeys(path.rstrip("\\n") for *_, path in (it for it in fields if len(it) == 6 and "x" in it[1])
                     if path[0] == "/" and path.rstrip("\\n") != own), sep="\\n")
"""


class Elf:
    """The program headers of a 64-bit program. Source: elf(5), Elf64_Ehdr and Elf64_Phdr.

    entry: the address of the first instruction. segments: [(type, flags, offset, address, bytes in the file)].
    """

    __slots__ = ("entry", "segments")

    def __init__(self, image: bytes) -> None:
        self.entry, table = struct.unpack_from("<QQ", image, 24)
        size, count = struct.unpack_from("<HH", image, 54)
        self.segments = [struct.unpack_from("<IIQQ8xQ", image, table + size * i) for i in range(count)]

    def offset(self, address: int) -> int:
        """Return the offset in the file of the byte at a memory address."""
        return next(at + address - start for kind, _, at, start, size in self.segments
                    if kind == PT_LOAD and start <= address < start + size)

    def before_main(self) -> list[tuple[int, int]]:
        """Return [(offset, bytes)] of the parts that are used before main() has set its signal handlers:

        - all bytes up to the code, which are the dynamic linker's tables, and the first bytes of the code, by which
          functions of shared objects are called (.plt)
        - the code from the first instruction to the end of main(). The linker places main() directly behind the first
          instructions, because setup.py compiles it with -fno-reorder-functions
        - the first page of each later segment (constants and initial functions)
        """
        first = self.offset(self.entry)
        code = max(at for kind, _, at, *_ in self.segments if kind == PT_LOAD and at <= first)
        later = [at & ~7 for kind, _, at, *_ in self.segments if kind in (PT_LOAD, PT_DYNAMIC) and at > first]
        return [(0, code + CALLS_BYTES), (first - first % PAGE_BYTES, MAIN_BYTES),
                *((at, PAGE_BYTES) for at in sorted(later))]


def fields_of(path: str, *, with_time: bool) -> tuple[int, ...]:
    """Return the fields of struct config by which the launcher recognises the python_core.elf at `path`: size in bytes,
    modification time in ns since 1970, digest, and MAX_PARTS pairs (offset, bytes) of the parts that the digest covers.
    with_time: whether the launcher checks the time; otherwise the time is 0. Raises PackError, OSError."""
    image = read(path)
    parts = Elf(image).before_main()
    pairs = [*parts, *[(0, 0)] * MAX_PARTS][:MAX_PARTS]
    return (len(image), os.stat(path).st_mtime_ns if with_time else 0, digest(image, parts),
            *(number for pair in pairs for number in pair))


def is_installed(path: str, fields: tuple[int, ...]) -> bool:
    """Return whether the launcher would accept the file at `path` as the python_core.elf with these fields_of().
    Raises PackError, OSError."""
    try:
        return fields_of(path, with_time=bool(fields[1])) == fields
    except (struct.error, StopIteration):       # not an ELF program
        return False


NO_CORE = (0,) * (3 + 2 * MAX_PARTS)


def digest(image: bytes, parts: list[tuple[int, int]]) -> int:
    """Return the digest that programs.h computes of some parts of a file. A change of one word always changes the
    digest."""
    mask, value = (1 << WORD_BITS) - 1, 0
    for at, size in parts:
        for word in struct.unpack_from(f"<{size // 8}Q", image, at):
            value = ((value << 5 | value >> (WORD_BITS - 5)) + word) & mask
    return value


def libraries_of(interpreter: str) -> list[str]:
    """Return the paths of the shared objects that a start of the interpreter loads, as many as fit the launcher's
    field; [] if the interpreter does not start."""
    try:
        done = subprocess.run([interpreter, "-ISB", "-X", "utf8", "-c", SHARED_OBJECTS], capture_output=True, text=True,
                              errors="surrogateescape", timeout=60, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return []
    # The order of the memory map differs from process to process.
    paths = sorted(path for path in done.stdout.splitlines() if os.path.isabs(path) and os.path.exists(path))
    while sum(len(os.fsencode(path)) + 1 for path in paths) >= LIBRARIES_BYTES:
        paths.pop()
    return paths
