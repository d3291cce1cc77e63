"""Keep leases on disk, one file each, so that they survive the daemon and the node's reboot.

A file is a line with a version and a checksum, and the lease as JSON. The daemon writes a temporary file and renames
it, so a killed daemon leaves a complete file. The daemon does not sync the file to disk: after a power cut all pods
start again, and a pod whose file is damaged may get another address.
"""

from __future__ import annotations

import hashlib
import json
import os

from fastcni._system import write_file
from fastcni.dhcp.lease import Lease, Owner
from fastcni.kernel import sysctl
from fastcni.kit.dhcp.lease_path import STATE_DIR, SUFFIX, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAGIC = "fastcni-dhcp 1"
DAMAGED = ".damaged"
MAX_BYTES = 1 << 20


class Damaged(Exception):
    """The file is not a valid lease; the text says why."""


class Saved:
    """A lease from its file. boot: the id of the boot in which the file was written. ends: when the lease expires by
    the wall clock. Leases of another boot need `ends`, because their other times are of that boot's CLOCK_BOOTTIME."""

    __slots__ = ("boot", "ends", "lease", "owner")

    def __init__(self, owner: Owner, lease: Lease, boot: str, ends: float) -> None:
        self.owner, self.lease, self.boot, self.ends = owner, lease, boot, ends


class LeaseFiles:
    """The directory of the leases, created if it is missing. Raises OSError."""

    def __init__(self, directory: str = STATE_DIR, boot: str = "") -> None:
        self.directory = directory
        self.boot = boot or sysctl.boot_id()
        os.makedirs(directory, 0o700, exist_ok=True)

    def write(self, owner: Owner, lease: Lease, ends: float) -> None:
        """Write a lease. ends: when the lease expires, by the wall clock. Raises OSError."""
        path = path_of(self.directory, owner.key)
        write_file(f"{path}.new", encode(owner, lease, self.boot, ends), os.O_CREAT | os.O_TRUNC)
        os.rename(f"{path}.new", path)

    def remove(self, key: bytes) -> None:
        """Remove a lease's file. Raises OSError."""
        try:
            os.unlink(path_of(self.directory, key))
        except FileNotFoundError:
            return

    def read_all(self) -> Iterator[Saved | tuple[str, str]]:
        """Do read_directory(), and rename damaged files. Raises OSError."""
        for name in os.listdir(self.directory):
            if name.endswith(".new"):   # left by a daemon that was killed before the rename
                os.unlink(f"{self.directory}/{name}")
        for found in read_directory(self.directory):
            if isinstance(found, tuple):
                os.rename(found[0], found[0].removesuffix(SUFFIX) + DAMAGED)
            yield found


def read_directory(directory: str) -> Iterator[Saved | tuple[str, str]]:
    """Yield a Saved for each lease, and (path, why) for each damaged file. Change no file. Raises OSError."""
    for name in sorted(os.listdir(directory)):
        path = f"{directory}/{name}"
        if not name.endswith(SUFFIX):
            continue
        try:
            with open(path, "rb") as file:
                found = decode(file.read(MAX_BYTES))
        except FileNotFoundError:
            continue                    # the daemon has just removed the file
        except Damaged as e:
            yield path, str(e)
            continue
        yield found if path_of(directory, found.owner.key) == path else (
            path, "the file has the name of another lease's file")


def encode(owner: Owner, lease: Lease, boot: str, ends: float) -> bytes:
    document = {
        "containerID": owner.container_id, "network": owner.network, "ifname": owner.ifname, "netns": owner.netns,
        "inode": owner.inode, "key": owner.key.hex(), "priority": owner.priority, "request": list(owner.request),
        "provide": {code: content.hex() for code, content in owner.provide.items()},
        "address": lease.address.hex(), "prefix": lease.prefix, "server": lease.server.hex(),
        "serverMac": lease.server_mac.hex(), "mac": lease.mac.hex(), "acked": lease.acked, "boot": boot, "ends": ends,
        "options": {code: content.hex() for code, content in lease.options.items()},
    }
    if ends == float("inf"):
        document["ends"] = None
    body = json.dumps(document, indent=1).encode("utf-8", "surrogateescape") + b"\n"
    return f"{MAGIC} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode(data: bytes) -> Saved:
    """Decode a lease's file. Raises Damaged."""
    head, _, body = data.partition(b"\n")
    if head != f"{MAGIC} {hashlib.sha256(body).hexdigest()}".encode():
        raise Damaged("the checksum is wrong" if head.startswith(MAGIC.encode()) else "it is of another version")
    try:
        return to_saved(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Damaged(f"{type(e).__name__}: {e}") from None


def to_saved(document: Any) -> Saved:
    def raw(name: str) -> bytes:
        return bytes.fromhex(document[name])

    def options(name: str) -> dict[int, bytes]:
        return {int(code): bytes.fromhex(content) for code, content in document[name].items()}

    owner = Owner(raw("key"), document["containerID"], document["network"], document["ifname"], document["netns"],
                  document["inode"], options("provide"), bytes(document["request"]), document["priority"])
    lease = Lease(raw("address"), document["prefix"], raw("server"), raw("serverMac"), options("options"), raw("mac"),
                  document["acked"])
    ends = document["ends"]
    return Saved(owner, lease, document["boot"], float("inf") if ends is None else ends)
