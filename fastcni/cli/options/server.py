"""Report that a command gets no answer from the fastcni server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastcni.spec import errors
from fastcni.spec.errors import CniError


@contextmanager
def asking(path: str, without: str) -> Iterator[None]:
    """Convert an OSError in the body of the `with` statement to CniError 5. path: the server's socket. without: what
    the user can do if no server listens."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as e:
        raise CniError(errors.IO_FAILURE, f"no server listens at {path}", without) from e
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"ask the server at {path}: {e.strerror or e}") from e
