"""Release addresses of pods that ran before the last reboot.

No pod survives a reboot, but its address file does, if the dataDir is on a disk. The index has the boot id of its last
change. So the first request of a network after a reboot finds the addresses that this node held before it. fastcni
removes a file only if all of this is true:

- the index is undamaged, has another boot id, and belongs to this directory, which is on a local file system. Another
  machine may have changed a directory on NFS, or the original of a copied directory;
- the index was last written before this boot began, by the current clock;
- the index has this address with this owner, a container id and an interface name;
- the file has not changed since then (its ctime). A pod that fastcni or the reference plugin has added since the
  reboot has a new file;
- no cached result of the attachment names a network namespace that exists.

All other files stay, and the runtime's DEL or GC releases them. fastcni reads the files under the directory's lock. If
the index has the current boot id, a request skips all of this.
"""

from __future__ import annotations

import posix
import time

from fastcni._system import read_file
from fastcni.kit.ipam.address_files import address_of
from fastcni.spec import address, json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.ipam.address_files import AddressFiles
    from fastcni.kit.ipam.store import Store

RESULTS = "/var/lib/cni/results"        # the result cache of libcni
MAX_RESULT_BYTES = 16 << 20
MAX_LISTED = 10                         # most addresses that a warning names


def find(store: Store) -> list[tuple[bytes, bytes]]:
    """Return (packed, owner) of the address files that may be removed, and clear the index. Raises CniError."""
    written_ns = store.index.former_ns
    found = []
    if written_ns < boot_began_ns() and store.index.load_former():
        for name in store.files.names():
            packed = address_of(name)
            if packed is None or not is_unchanged(store.files, name, written_ns):
                continue
            owner = store.files.read_owner(name)
            if owner and packed in store.index.addresses_of(owner) and not is_claimed(store.network_of(name), owner):
                found.append((packed, owner))
    store.index.clear()
    return sorted(found)


def release(store: Store, found: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Release the (packed, owner) pairs of find(), with one warning that names the first MAX_LISTED. Return the
    released pairs. After an error, warn and stop."""
    released = []
    try:
        for packed, owner in found:
            if store.release(packed, owner):
                released.append((packed, owner))
    except CniError as e:
        store.files.warn(e.msg)         # the request goes on, and these addresses stay held
    if released:
        some = " ".join(address.ip_text(packed) for packed, _ in released[:MAX_LISTED])
        more = f" and {len(released) - MAX_LISTED} more" if len(released) > MAX_LISTED else ""
        store.files.warn(f"{store.files.path}: released addresses of pods from before the reboot: {some}{more}")
    return released


def boot_began_ns() -> int:
    """Return when this boot began, in nanoseconds by the current clock."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def is_unchanged(files: AddressFiles, name: str, since_ns: int) -> bool:
    try:
        return posix.stat(name, dir_fd=files.fd, follow_symlinks=False).st_ctime_ns <= since_ns
    except OSError:
        return False


def is_claimed(network: str, owner: bytes) -> bool:
    """Return whether the attachment may exist. True if `owner` is not a container id and an interface name, if a cached
    result of the attachment names an existing namespace, or if that result cannot be read."""
    container_id, _, ifname = owner.decode("utf-8", "replace").partition("\r\n")
    if not container_id or not ifname or "/" in container_id + ifname or len(owner.split()) != 2:
        return True
    try:
        cached = json.read(read_file(f"{RESULTS}/{network}-{container_id}-{ifname}", posix.O_RDONLY, MAX_RESULT_BYTES))
    except FileNotFoundError:
        return False
    except (OSError, json.JsonError):
        return True
    names = namespaces_of(cached)
    return not names or any(posix.access(name, posix.F_OK) for name in names)


def namespaces_of(cached: Any) -> list[str]:
    """Return the network namespaces that a cached result names: its member `netns`, otherwise those of the result's
    interfaces."""
    try:
        links = cached["result"].get("interfaces", ()) if not cached.get("netns") else ()
        found = [cached.get("netns"), *(link.get("sandbox") for link in links)]
    except (AttributeError, KeyError, TypeError):
        return []
    return [name for name in found if name and isinstance(name, str) and "\0" not in name]
