"""Ask a D-Bus message bus whether a program has a name, and call methods of programs. The package jeepney encodes the
messages, except Hello and NameHasOwner.

D-Bus Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket
from time import monotonic

from fastcni._abandoned import check_request
from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Self, TypeVar

    T = TypeVar("T")

ADDRESS, SYSTEM_BUS = "DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/dbus/system_bus_socket"
RECV_SIZE = 4096
MAX_UNASKED_BYTES = 1 << 16          # the most bytes of messages that may arrive before the answer to a request
METHOD_RETURN, ERROR = 2, 3     # message types

# Errors if no program has the name, or if the program ended before it answered.
GONE = tuple(f"org.freedesktop.DBus.Error.{name}" for name in ("ServiceUnknown", "NameHasNoOwner", "NoReply"))

# Hello and NameHasOwner, two requests to the bus itself, encoded as by jeepney. Most CNI requests only ask whether a
# name has an owner, and importing jeepney takes 14 ms. A message begins with byte order, type, flags, version, length
# of the body, serial, length of the fields. Fields of {code, signature, value} follow: path, interface, member,
# destination, signature; each padded to eight bytes.
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
    """The bus does not exist, or no program on the bus has the name; the text says which."""


class Refused(Exception):
    """A program answered a call with an error. The exception has the text of that error."""


def system_bus(env: Mapping[str, str]) -> str:
    """Return the address of the system bus's socket, for connect(2).

    The address comes from the variable DBUS_SYSTEM_BUS_ADDRESS, or is the default. Raises Gone if the variable names no
    unix socket.
    """
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
    """Return whether a program on the bus has the name. Return False also if the bus does not exist or refuses the
    connection.

    Raises TimeoutError if the bus does not answer within `seconds`.
    """
    try:
        with Connection(where, seconds, name_has_owner(name)) as bus:
            return bus.read_boolean()
    except Gone:
        return False


def name_has_owner(name: str) -> bytes:
    """Encode the request NameHasOwner. Its body is a string: length, text, NUL."""
    size = len(name)
    return NAME_HAS_OWNER % ((size + 5).to_bytes(4, "little"), size.to_bytes(4, "little"), name.encode())


class Connection:
    """An authenticated connection to a bus. The constructor sends Hello and the messages `more`. Close the connection
    by `with` or close().

    seconds: the time limit of all methods together. Methods raise Gone, TimeoutError and, if memory is short, OSError.
    """

    def __init__(self, where: str, seconds: float, more: bytes = b"") -> None:
        waiting.admit(waiting.BUS)
        self.where, self.deadline, self.received = where, monotonic() + waiting.limit(seconds), b""
        self.sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
        try:
            self._in_time(self.sock.connect, where)
            uid = str(posix.geteuid()).encode()
            self.send(b"\0AUTH EXTERNAL %b\r\nBEGIN\r\n%b%b" % (uid.hex().encode(), HELLO, more))
            while b"\r\n" not in self.received:
                self.receive()
            answer, _, self.received = self.received.partition(b"\r\n")
            if not answer.startswith(b"OK "):
                raise Gone(f"{where}: the bus refuses the connection: {answer[:100]!r}")
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def _left(self) -> float:
        """Return the seconds until the time limit. Raises TimeoutError after the limit, and Abandoned."""
        check_request()
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _in_time(self, function: Callable[..., T], *args: Any) -> T:
        self.sock.settimeout(self._left())
        try:
            with waiting.waiting(waiting.BUS):
                return function(*args)
        except BlockingIOError:         # the bus accepts no connection now: its queue is full
            raise TimeoutError from None
        except TimeoutError:
            raise
        except OSError as e:
            if e.errno in streams.UNASKED:
                raise
            raise Gone(f"{self.where}: {e.strerror or e}") from None

    def send(self, data: bytes) -> None:
        self._in_time(self.sock.sendall, data)

    def receive(self) -> None:
        """Append the next bytes from the bus to `received`. Raises waiting.CallerGone."""
        if not waiting.readable(self.sock.fileno(), self._left(), waiting.BUS):
            raise TimeoutError
        data = self._in_time(self.sock.recv, RECV_SIZE)
        if not data:
            raise Gone(f"{self.where}: the bus has closed the connection")
        self.received += data
        if len(self.received) > MAX_UNASKED_BYTES:
            raise Gone(f"{self.where}: the bus sends too many bytes before its answer")

    def read_boolean(self) -> bool:
        """Return the boolean answer to a request: the first return message with a body of four bytes."""
        while True:
            while len(self.received) < 16 or len(self.received) < (size := size_of(self.received)):
                self.receive()
            message, self.received = self.received[:size], self.received[size:]
            if message[1] == METHOD_RETURN and body_size(message) == 4:
                return any(message[-4:])
            if message[1] == ERROR:
                return False


def number(message: bytes, at: int) -> int:
    """Return a 32-bit integer of a message's header. The first byte of the message says the byte order."""
    return int.from_bytes(message[at:at + 4], "little" if message[:1] == b"l" else "big")


def body_size(message: bytes) -> int:
    return number(message, 4)


def size_of(message: bytes) -> int:
    """Return the size of a message in bytes, given its first 16 bytes: 16, plus the fields padded to eight bytes, plus
    the body."""
    return 16 + (number(message, 12) + 7 & ~7) + body_size(message)


class Bus(Connection):
    """A Connection for calls to programs on the bus. Raises ModuleNotFoundError without jeepney."""

    def __init__(self, where: str, seconds: float) -> None:
        from jeepney import Parser

        super().__init__(where, seconds)
        self.parser, self.serial = Parser(), 1          # Hello has serial 1

    def call(self, name: str, path: str, interface: str, method: str, *texts: str) -> tuple[Any, ...]:
        """Call a method with string arguments and return the values that it returns. name: the bus name of the program
        that has the object `path`.

        Raises Refused if the answer is an error.
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
            if not self.received:
                self.receive()
            self.parser.add_data(self.received)
            self.received = b""
        return message
