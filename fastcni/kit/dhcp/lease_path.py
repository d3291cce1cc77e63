"""Return the path of the file in which fastcni's dhcp daemon keeps the lease of an attachment."""

from __future__ import annotations

STATE_DIR = "/var/lib/cni/dhcp"
SUFFIX = ".lease"


def path_of(directory: str, key: bytes) -> str:
    """Return the path of a lease's file in `directory`. key: the client identifier, see client_id() in dhcp_conf.py."""
    try:
        from _sha2 import sha256
    except ImportError:                     # Python 3.11
        from _sha256 import sha256
    return f"{directory}/{sha256(key).hexdigest()[:32]}{SUFFIX}"
