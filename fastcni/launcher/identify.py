"""Recognise a program in a plugin directory: a plugin file of fastcni, a Go plugin, or another program."""

from __future__ import annotations

import os
import stat
import subprocess
import zipfile
from dataclasses import dataclass

from fastcni.kit.call import search
from fastcni.launcher import pack

FASTCNI, GO, OTHER = "fastcni", "go", "other"
MAX_ELF_BYTES = 1 << 20         # the most bytes before the zip of fastcni's plugin file
PROGRAM = (b"\x7fELF", b"#!")   # execve(2)
GO_MARK = b"\xff Go buildinf:"  # buildInfoMagic of Go's debug/buildinfo
VERSION_S = 5                   # seconds in which a plugin must print its version


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its version, "" if it is unknown.

    kind: FASTCNI, GO or OTHER. size: in bytes. target: the target of a symbolic link, or "". interpreter, python: the
    path and the version of the Python that a plugin file of fastcni starts, or "". core: the path of the
    python_core.elf that the plugin file starts instead, or "". core_fields: the properties by which the plugin file
    recognises its python_core.elf, see launcher/core.py. damaged: whether a plugin file of fastcni lacks its end, or a
    file is no program at all.
    """

    kind: str
    version: str
    size: int
    target: str = ""
    interpreter: str = ""
    python: str = ""
    core: str = ""
    core_fields: tuple[int, ...] = ()
    damaged: bool = False

    @property
    def is_own(self) -> bool:
        """Return whether this is a plugin file of fastcni, and not a symbolic link to such a file."""
        return self.kind == FASTCNI and not self.target

    def __str__(self) -> str:
        """Return a text such as "Go plugin, version v1.9.1" or "program of 12,345 bytes"."""
        if self.kind == OTHER:
            text = f"program of {self.size:,} bytes"
        else:
            text = f"{'fastcni' if self.kind == FASTCNI else 'Go plugin'}, version {self.version or 'unknown'}"
        return f"link to {self.target} ({text})" if self.target else text


def identify(path: str) -> Program | None:
    """Return the Program at a path, None if no file exists. Runs a Go plugin to ask for its version. Raises OSError."""
    try:
        link = os.lstat(path)
    except FileNotFoundError:
        return None
    target = os.readlink(path) if stat.S_ISLNK(link.st_mode) else ""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Program(OTHER, "", 0, target)
    if not stat.S_ISREG(found.st_mode):         # a FIFO or a device is not opened
        return Program(OTHER, "", found.st_size, target)
    with open(path, "rb") as file:
        head = file.read(MAX_ELF_BYTES)
        if search.is_own(path):
            version, damaged = own_version(path)
            return Program(FASTCNI, version, found.st_size, target, *pack.read_config(head), damaged=damaged)
        is_go = head.startswith(b"\x7fELF") and GO_MARK in head + file.read()
    if is_go:
        return Program(GO, go_version(path), found.st_size, target)
    return Program(OTHER, "", found.st_size, target, damaged=not head.startswith(PROGRAM))


def is_program(path: str) -> bool:
    """Return whether a file begins as a program does, see execve(2). Runs no program. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(max(map(len, PROGRAM))).startswith(PROGRAM)


def is_own_file(path: str) -> bool:
    """Return whether a path is a plugin file of fastcni, and not a symbolic link to such a file. Runs no program."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and search.is_own(path)
    except FileNotFoundError:
        return False


def own_version(path: str) -> tuple[str, bool]:
    """Return (version of the fastcni that packed a plugin file, "" if the file has no version; whether the file's zip
    is damaged)."""
    try:
        with zipfile.ZipFile(path) as members:
            return members.read(pack.VERSION_MEMBER).decode(), False
    except (KeyError, UnicodeDecodeError):
        return "", False
    except zipfile.BadZipFile:
        return "", True


def go_version(path: str) -> str:
    """Return the version that a Go plugin prints, as in "CNI bridge plugin v1.9.1"; "" if it prints another text."""
    try:
        done = subprocess.run([path, "--version"], env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=VERSION_S, errors="replace", check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    line = (done.stderr or done.stdout).partition("\n")[0]
    version = line.partition(" plugin ")[2] if line.startswith("CNI ") else ""
    return "" if version == "version unknown" or not version.isprintable() else version.removeprefix("version ")
