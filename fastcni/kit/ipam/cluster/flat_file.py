"""Read the flat file of whereabouts: default keys of `ipam` for all networks of a node. A network's own keys take
precedence.

The flat file is the first existing file of: `configuration_path`, which may also name a directory, and PATHS. The file
is optional. The file `nodename`, in the same directory, has the node's name.
"""

from __future__ import annotations

import posix

from fastcni.kit.call import files
from fastcni.spec import json
from fastcni.spec.errors import INVALID_CONFIG, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Seen = tuple[str, int, int, int]

PATHS = (
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
)
NAME = "whereabouts.conf"
NONE: Seen = ("", 0, 0, 0)
OWN = "enable_overlapping_ranges"       # whereabouts ignores this key in the flat file


def find(configuration_path: str) -> Seen:
    """Return (path, inode, mtime, size) of the flat file, or NONE without a flat file. Two equal values show that the
    file has not changed."""
    own = (configuration_path, f"{configuration_path}/{NAME}") if configuration_path else ()
    for path in (*own, *PATHS):
        try:
            found = posix.stat(path)
        except (OSError, ValueError):
            continue
        if found.st_mode & 0o170000 == 0o100000:        # S_IFREG
            return path, found.st_ino, found.st_mtime_ns, found.st_size
    return NONE


def merged(ipam: dict[str, Any], seen: Seen) -> dict[str, Any]:
    """Return the network's keys, with the flat file's values for absent and empty keys, as whereabouts does. 0 and
    false are not empty here. Raises CniError 5 and 7."""
    if seen is NONE or not (content := files.read(seen[0])):
        return ipam
    try:
        flat = json.read(content)
    except json.JsonError as e:
        raise CniError(INVALID_CONFIG, f"{seen[0]}: {e}") from None
    if not isinstance(flat, dict):
        raise CniError(INVALID_CONFIG, f"{seen[0]}: expected an object")
    own = {key.lower() for key, value in ipam.items() if value not in (None, "", [], {})}
    return ipam | {key: value for key, value in flat.items() if key.lower() not in own and key.lower() != OWN}


def node_name(configuration_path: str) -> str:
    """Return the content of the file `nodename`, which whereabouts' installer writes; "" without the file. Raises
    CniError 5."""
    directories = [path.rpartition("/")[0] for path in PATHS]
    if configuration_path:
        directories = [configuration_path, configuration_path.rpartition("/")[0], *directories]
    for directory in directories:
        if name := (files.read(f"{directory}/nodename") or b"").decode("utf-8", "replace").strip():
            return name
    return ""
