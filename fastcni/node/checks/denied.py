"""Distinguish a missing permission from other errors: a file that this user may not read is no fault of the node."""

from __future__ import annotations

import errno


def denied(error: BaseException | None) -> bool:
    """Return whether an error, or an error that caused it, is a missing permission."""
    while error:
        if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
            return True
        error = error.__cause__ or error.__context__
    return False
