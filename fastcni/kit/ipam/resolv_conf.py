"""Read resolv.conf(5)."""

from __future__ import annotations

import posix

from fastcni._system import read_file
from fastcni.spec.errors import IO_FAILURE, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 1 << 20


def read(path: str) -> dict[str, Any]:
    """Return the file in the shape of a result's dns, without empty members: {"nameservers": [...], "domain": "",
    "search": [...], "options": [...]}. Raises CniError 5."""
    try:
        data = read_file(path, posix.O_RDONLY | posix.O_NONBLOCK, MAX_BYTES)
    except (OSError, ValueError) as e:
        why = posix.strerror(e.errno or 0).lower() if isinstance(e, OSError) else str(e)
        raise CniError(IO_FAILURE, f"open {path}: {why}", "ipam.resolvConf names this file") from None
    dns: dict[str, Any] = {"nameservers": [], "domain": "", "search": [], "options": []}
    for line in data.decode("utf-8", "replace").split("\n"):
        words = line.split()
        if len(words) < 2 or words[0][0] in "#;":
            continue
        if words[0] == "nameserver":
            dns["nameservers"].append(words[1])
        elif words[0] == "domain":
            dns["domain"] = words[1]
        elif words[0] in ("search", "options"):
            dns[words[0]] += words[1:]
    return {key: value for key, value in dns.items() if value}
