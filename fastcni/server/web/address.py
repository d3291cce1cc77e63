"""Read the addresses of --http and --metrics, and open their listening sockets: a unix socket, or TCP on a loopback
address."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

from fastcni.daemon import listening
from fastcni.daemon.listening import ListenError, Listening

BACKLOG = 16
HINT = "expected the absolute path of a unix socket, 127.0.0.1:PORT or [::1]:PORT"


class AddressError(ValueError):
    """The text is not a valid address; the exception says why."""


def read(text: str) -> str | tuple[str, int]:
    """Read an address: a path, or (loopback address, port). Raises AddressError."""
    path = text.removeprefix("unix:")
    if path.startswith("/"):
        return path
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise AddressError(f"{text!r}: {HINT}")
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        raise AddressError(f"{text!r}: {HINT}") from None
    if not loopback:
        raise AddressError(f"{host} is no loopback address: the listener has neither a password nor TLS; {HINT}")
    return host, int(port)


def is_local(host: str) -> bool:
    """Return whether a Host header names this machine: localhost or a loopback address, with or without a port."""
    name, _, port = host.rpartition(":")
    name = (name if port.isdecimal() and name else host).removeprefix("[").removesuffix("]")
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def text(address: str | tuple[str, int]) -> str:
    """Return the address as the log prints it."""
    if isinstance(address, str):
        return address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str | tuple[str, int]) -> Listening:
    """Return a listening socket. Raises ListenError, for example if the port or path is taken."""
    if isinstance(address, str):
        try:
            return listening.make(address, False, socket.SOCK_STREAM)
        except OSError as e:
            raise ListenError(f"listen on {address}: {e.strerror or e}") from e
    host, _ = address
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)      # even with connections of a previous server
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as e:
        sock.close()
        raise ListenError(f"listen on {text(address)}: {os.strerror(e.errno or 0)}") from e
    return Listening(sock)
