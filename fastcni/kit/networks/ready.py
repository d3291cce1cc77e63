"""Wait for the file that the daemon of the pod's first network writes: the key readinessindicatorfile."""

from __future__ import annotations

import posix

from fastcni.kernel import waiting
from fastcni.spec import errors
from fastcni.spec.errors import CniError

READY_TIMEOUT_S = 45.0          # as in Multus


def wait_until_ready(path: str) -> None:
    """Wait until the file exists; if `path` is "", return immediately. Raises CniError 11 after READY_TIMEOUT_S."""
    if path and not waiting.until(lambda: exists(path), READY_TIMEOUT_S, waiting.ANNOUNCEMENT):
        raise CniError(errors.TRY_AGAIN_LATER, f"readinessindicatorfile {path} does not exist",
                       "the default network's daemon writes it: does it run on this node?")


def exists(path: str) -> bool:
    """Return whether a file, directory or mounted namespace exists at this path."""
    try:
        posix.stat(path)
    except (OSError, ValueError):
        return False
    return True
