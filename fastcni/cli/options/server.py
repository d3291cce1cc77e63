"""Report the error if a command cannot ask the server that --socket names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastcni.spec import errors
from fastcni.spec.errors import CniError


@contextmanager
def asking(path: str, without: str) -> Iterator[None]:
    """Raise CniError 5 in place of the OSErrors of a server's socket. without: what to do if no server listens."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as e:
        raise CniError(errors.IO_FAILURE, f"no server listens at {path}", without) from e
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"ask the server at {path}: {e.strerror or e}") from e
