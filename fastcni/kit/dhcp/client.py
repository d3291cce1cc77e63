"""Call the dhcp daemon, by a connection for each call. fastcni's daemon and the reference's daemon use the same
protocol."""

from __future__ import annotations

from errno import ECONNRESET, EPIPE, ETIMEDOUT

from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams
from fastcni.kit.dhcp import gob, rpc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


ALLOCATE_TIMEOUT_S = waiting.DELEGATE_TIMEOUT_S         # must exceed the daemon's -resendtimeout
RELEASE_TIMEOUT_S = 30.0
STATUS_TIMEOUT_S = 5.0
REPEAT_S = 0.2          # pause before the second call: a killed daemon closes its socket a little later
ENDED = "the daemon closed the connection before it answered"


class Unreachable(Exception):
    """The error if no daemon listens at the socket. The text is the error of connect(2)."""


class Refused(Exception):
    """The error for a call that the daemon has answered with an error. The text is the daemon's."""


class Late(Exception):
    """The error if the daemon does not answer in time, or if the call cannot be sent."""


class Ended(Late):
    """The error if the daemon ended before it answered. The daemon may have carried out the call."""


def admit() -> None:
    """Check, before the first step of a request, that it may wait for the daemon. Raises Crowded if too many requests
    are waiting."""
    waiting.admit(waiting.DHCP)


def call(path: str, method: str, args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Call a method of the daemon at the socket `path`. Return the answer, a dict without zero fields. seconds: the
    limit. Raises Unreachable, Refused, Late, CallerGone.

    If the daemon ends before it answers, call() repeats the call once, because a service manager may have started the
    daemon again. A repeated call does no harm."""
    try:
        return _call(path, method, args, seconds)
    except Ended:
        waiting.until(lambda: False, REPEAT_S, waiting.DHCP)
        return _call(path, method, args, seconds)


def _call(path: str, method: str, args: dict[str, Any], seconds: float) -> dict[str, Any]:
    try:
        stream = streams.Stream(path, waiting.limit(seconds), waiting.DHCP)
    except OSError as e:
        if e.errno in streams.UNASKED:
            raise Late(f"cannot connect: {e.strerror}") from None
        raise Unreachable((e.strerror or str(e)).lower()) from None
    try:
        return _exchange(path, stream, method, args)
    except OSError as e:
        if e.errno in (ECONNRESET, EPIPE):
            raise Ended(ENDED) from None
        raise (Late if e.errno == ETIMEDOUT else Refused)(e.strerror or str(e)) from None
    except gob.GobError as e:
        raise Refused(f"cannot read its answer: {e}") from None
    finally:
        stream.close()


def _exchange(path: str, stream: streams.Stream, method: str, args: dict[str, Any]) -> dict[str, Any]:
    stream.send_all(rpc.HELLO)
    greeting = b""
    while not greeting.endswith(b"\n\n"):
        greeting += _received(stream)
        if not rpc.WELCOME.startswith(greeting[:len(rpc.WELCOME)]):
            raise Refused(f"another program than a dhcp daemon answers at {path}: {greeting[:40]!r}")
    stream.send_all(rpc.call(method, args))
    decoder = gob.Decoder()
    header = _next(stream, decoder)
    if header.get("Error"):
        raise Refused(header["Error"])
    return _next(stream, decoder)


def _next(stream: streams.Stream, decoder: gob.Decoder) -> dict[str, Any]:
    while (found := decoder.next_value()) is None:
        decoder.feed(_received(stream))
    return found


def _received(stream: streams.Stream) -> bytes:
    data = stream.receive()
    if not data:
        raise Ended(ENDED)
    return data
