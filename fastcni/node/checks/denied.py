"""Tell a refused permission from other errors: what this user may not read is no fault of the node."""

from __future__ import annotations

import errno


def denied(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, says that this user may not do something."""
    while error:
        if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
            return True
        error = error.__cause__ or error.__context__
    return False
