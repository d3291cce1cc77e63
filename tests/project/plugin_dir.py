"""Fill a plugin directory with files of other programs that have unusual modes and times."""

import os
import stat

from project.plugin_file import write_executable

from fastcni.launcher import replaced
from fastcni.launcher.identify import is_own_file

FOREIGN = {"bridge": b"#!/bin/sh\necho bridge\n", "host-local": b"#!/bin/sh\necho host-local\n", "portmap": b"data"}
KEPT = replaced.DIRECTORY


def fill(directory):
    """Make the directory with the files FOREIGN and with a plugin of a type that fastcni does not have. Return the
    directory."""
    directory.mkdir()
    for name, data in FOREIGN.items():
        write_executable(directory / name, data)
    (directory / "portmap").chmod(0o2750)
    os.utime(directory / "bridge", ns=(1_000_000_001, 1_234_567_891))
    write_executable(directory / "dhcp", b"#!/bin/sh\n")
    return directory


def state(directory):
    """Return {name: bytes, mode and times} of other programs' files in the directory, without the files that fastcni
    keeps for uninstall."""
    found = {}
    for name in sorted(os.listdir(directory)):
        path, status = str(directory / name), os.lstat(directory / name)
        if stat.S_ISLNK(status.st_mode):
            found[name] = os.readlink(path)
        elif name != KEPT:
            found[name] = (directory / name).read_bytes(), status.st_mode, status.st_mtime_ns
            found[name] = "fastcni" if is_own_file(path) else found[name]
    return found
