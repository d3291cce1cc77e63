"""Define the option --socket, and report that a command gets no answer from the fastcni server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from fastcni.daemon.listening import PATH
from fastcni.spec import errors
from fastcni.spec.errors import CniError

socket_option = click.option("--socket", default=PATH, show_default=True, envvar="FASTCNI_SOCKET", show_envvar=True,
                             metavar="PATH", help="The server's socket.")


@contextmanager
def asking(path: str, without: str) -> Iterator[None]:
    """Convert an OSError in the body of the `with` statement to CniError 5. path: the server's socket. without: what
    the user can do if no server listens."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as e:
        raise CniError(errors.IO_FAILURE, f"no server listens at {path}", without) from e
    except TimeoutError as e:
        raise CniError(errors.IO_FAILURE, f"the server at {path} does not answer",
                       "if it hangs, restart it: `systemctl restart fastcni.service`") from e
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"ask the server at {path}: {e.strerror or e}") from e


def ask_history(path: str, after: int | None, limit: int, *, wire: bool = False) -> dict[str, Any]:
    """Return the server's answer to history.ask(). Raises CniError if the server keeps no history, OSError if no
    server answers."""
    from fastcni.server.records import history

    found = history.ask(path, after, limit, wire=wire)
    if found is None:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"the server at {path} keeps no history of its requests",
                       "check whether the server is of an older version, or was started with --history 0")
    return found
