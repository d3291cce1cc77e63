"""A D-Bus message bus: who is on it, and calls to them. Messages are jeepney's business, but for one question.

D-Bus Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket
from time import monotonic

from fastcni._abandoned import check_request
from fastcni.kernel import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ADDRESS, SYSTEM_BUS = "DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/dbus/system_bus_socket"
RECV_SIZE = 4096
MOST_UNASKED = 1 << 16          # bytes that the bus may say before it answers a question
METHOD_RETURN, ERROR = 2, 3     # types of messages

# Nobody is there to answer: such a call was not served, or its server has ended over it.
GONE = tuple(f"org.freedesktop.DBus.Error.{name}" for name in ("ServiceUnknown", "NameHasNoOwner", "NoReply"))

# Two messages to the bus itself, as jeepney writes them: a request may only want to know who is there, and jeepney's
# import takes 14 ms. Header: order, type, flags, version; lengths of body and fields, the serial between them. Then
# fields of {code, signature, value}: path, interface, member, destination, signature; each is padded to eight bytes.
HELLO = (b"l\1\0\1" b"\0\0\0\0" b"\1\0\0\0" b"\x6d\0\0\0"
         b"\1\1o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0"
         b"\2\1s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0"
         b"\3\1s\0\x05\0\0\0Hello\0\0\0"
         b"\6\1s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0")
NAME_HAS_OWNER = (b"l\1\0\1" b"%b" b"\2\0\0\0" b"\x7f\0\0\0"
                  b"\1\1o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0"
                  b"\2\1s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0"
                  b"\3\1s\0\x0c\0\0\0NameHasOwner\0\0\0\0"
                  b"\6\1s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0"
                  b"\x08\1g\0\1s\0\0" b"%b%b\0")


class Gone(Exception):
    """There is no bus, or no program with that name on it; the text says which."""


class Refused(Exception):
    """The answer to a call is an error; the text is what its sender says."""


def system_bus(env: Mapping[str, str]) -> str:
    """The address of the system bus's socket, for connect(2), as the variables say. Raises Gone where these name
    something else than a unix socket."""
    text = env.get(ADDRESS) or SYSTEM_BUS
    for address in text.split(";"):
        transport, _, rest = address.partition(":")
        keys = dict(pair.partition("=")[::2] for pair in rest.split(","))
        if transport == "unix" and keys.get("path"):
            return keys["path"]
        if transport == "unix" and keys.get("abstract"):
            return "\0" + keys["abstract"]
    raise Gone(f"{ADDRESS} names no unix socket: {text[:200]!r}")


def has_owner(where: str, name: str, seconds: float) -> bool:
    """Does anybody on the bus own that name? Not where there is no bus, or none that lets us in.

    Raises TimeoutError when the bus does not answer within so many seconds.
    """
    try:
        with Connection(where, seconds, name_has_owner(name)) as bus:
            return bus.read_yes()
    except Gone:
        return False


def name_has_owner(name: str) -> bytes:
    """The question as a message, in which the name is a text: its length, itself, and NUL."""
    size = len(name)
    return NAME_HAS_OWNER % ((size + 5).to_bytes(4, "little"), size.to_bytes(4, "little"), name.encode())


class Connection:
    """A way to a bus that has let us in, and was sent Hello and `more`. To be closed, by `with` or close().

    Raises Gone, and TimeoutError when all that is done with it takes more than so many seconds.
    """

    def __init__(self, where: str, seconds: float, more: bytes = b"") -> None:
        waiting.admit(waiting.BUS)
        self.where, self.deadline, self.heard = where, monotonic() + waiting.limit(seconds), b""
        self.sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
        try:
            self._in_time(self.sock.connect, where)
            uid = str(posix.geteuid()).encode()
            self.send(b"\0AUTH EXTERNAL %b\r\nBEGIN\r\n%b%b" % (uid.hex().encode(), HELLO, more))
            while b"\r\n" not in self.heard:
                self.hear()
            answer, _, self.heard = self.heard.partition(b"\r\n")
            if not answer.startswith(b"OK "):
                raise Gone(f"{where}: the bus does not let us in: {answer[:100]!r}")
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        self.sock.close()

    def _left(self):
        """Seconds. Raises TimeoutError when none are left, Abandoned."""
        check_request()
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _in_time(self, function, *args):
        self.sock.settimeout(self._left())
        try:
            with waiting.waiting(waiting.BUS):
                return function(*args)
        except BlockingIOError:         # a queue of callers whom the bus does not let in
            raise TimeoutError from None
        except TimeoutError:
            raise
        except OSError as e:
            raise Gone(f"{self.where}: {e.strerror or e}") from None

    def send(self, data: bytes) -> None:
        self._in_time(self.sock.sendall, data)

    def hear(self) -> None:
        """Read what comes next behind what was heard. Raises waiting.CallerGone."""
        if not waiting.readable(self.sock.fileno(), self._left(), waiting.BUS):
            raise TimeoutError
        data = self._in_time(self.sock.recv, RECV_SIZE)
        if not data:
            raise Gone(f"{self.where}: the bus has hung up")
        self.heard += data
        if len(self.heard) > MOST_UNASKED:
            raise Gone(f"{self.where}: the bus says too much")

    def read_yes(self) -> bool:
        """The answer to a question of yes or no, behind others: the one return with a body of four bytes."""
        while True:
            while len(self.heard) < 16 or len(self.heard) < (size := size_of(self.heard)):
                self.hear()
            message, self.heard = self.heard[:size], self.heard[size:]
            if message[1] == METHOD_RETURN and body_size(message) == 4:
                return any(message[-4:])
            if message[1] == ERROR:
                return False


def number(message: bytes, at: int) -> int:
    """A word of a message's header, in the order that its first byte tells."""
    return int.from_bytes(message[at:at + 4], "little" if message[:1] == b"l" else "big")


def body_size(message: bytes) -> int:
    return number(message, 4)


def size_of(message: bytes) -> int:
    """Of a whole message, by its header's first 16 bytes: these, the fields, padded to eight bytes, and the body."""
    return 16 + (number(message, 12) + 7 & ~7) + body_size(message)


class Bus(Connection):
    """A Connection for calls to others on the bus. Raises ModuleNotFoundError where there is no jeepney."""

    def __init__(self, where: str, seconds: float) -> None:
        from jeepney import Parser

        super().__init__(where, seconds)
        self.parser, self.serial = Parser(), 1          # that of Hello

    def call(self, name: str, path: str, interface: str, method: str, *texts: str) -> tuple[Any, ...]:
        """Call a method that takes texts; the values that it returns. `name` is on the bus and has the object `path`.

        Raises Refused where the answer is an error.
        """
        from jeepney import DBusAddress, DBusErrorResponse, HeaderFields, new_method_call
        from jeepney.wrappers import unwrap_msg

        self.serial += 1
        message = new_method_call(DBusAddress(path, name, interface), method, "s" * len(texts), texts)
        self.send(message.serialise(self.serial))
        answer = self.next_message()
        while answer.header.fields.get(HeaderFields.reply_serial) != self.serial:
            answer = self.next_message()
        try:
            return unwrap_msg(answer)
        except DBusErrorResponse as e:
            text = f"{e.data[0] if e.data else e.name}"
            raise Gone(text) if e.name in GONE else Refused(text) from None

    def next_message(self) -> Any:
        while not (message := self.parser.get_next_message()):
            if not self.heard:
                self.hear()
            self.parser.add_data(self.heard)
            self.heard = b""
        return message
