"""Send and answer control requests: questions to a running server, with names that no plugin has. Control
requests are not queued, so the server answers them even if all workers are busy.

    fastcni-status    see status.py
    fastcni-history   see history.py
    fastcni-flows     see flows/last_flows.py
"""

from __future__ import annotations

import array
import errno
import os
import socket
from typing import Any

from fastcni.server.requests import protocol
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastcni.server.requests.protocol import Connection

TIMEOUT_S = 3.0
MAX_BYTES = protocol.MAX_ANSWER + protocol.HEAD.size
MAX_MEMORY_BYTES = 64 << 20     # limit of an answer in a memfd


def answer(conn: Connection, document: Callable[[], bytes]) -> None:
    """Answer a control request with the JSON bytes that document() returns. Decline the request if document() raises
    ValueError."""
    try:
        status, found = 0, document()
    except ValueError:
        status, found = protocol.DECLINED, b""
    protocol.finish(conn, status, found)


def ask(path: str, name: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Send a control request to the server at a socket. Return the decoded answer. None: the server declines the
    request, because this server does not know the request or cannot read it.

    Raises OSError: no server listens, the server does not serve this user, the server did not answer in time
    (TimeoutError), or the answer is longer than MAX_MEMORY_BYTES (EMSGSIZE).
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        sock.connect(path)
        sock.send(protocol.request(name, variables))
        data, ancillary, _, _ = sock.recvmsg(MAX_BYTES, socket.CMSG_SPACE(array.array("i").itemsize))
    if len(data) < protocol.HEAD.size:
        raise ConnectionResetError("the server closed the connection without an answer")
    _, version, status, stderr = protocol.HEAD.unpack_from(data)
    body = data[protocol.HEAD.size:]
    for _, _, descriptors in ancillary:
        body = read_memory(array.array("i", descriptors)[0])
    if version != protocol.VERSION or status == protocol.DECLINED:
        return None
    found = json.read(body[stderr:])
    return found if isinstance(found, dict) else None


def read_memory(fd: int) -> bytes:
    """Read and close the memfd of a long answer. Raises OSError."""
    parts, at = [], 0
    try:
        while part := os.pread(fd, MAX_MEMORY_BYTES + 1 - at, at):
            parts.append(part)
            at += len(part)
            if at > MAX_MEMORY_BYTES:
                raise OSError(errno.EMSGSIZE, f"the answer is longer than {MAX_MEMORY_BYTES >> 20} MB; restart the "
                              "server with a smaller --history")
    finally:
        os.close(fd)
    return b"".join(parts)
