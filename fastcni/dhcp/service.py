"""Serve the unix socket by which plugins call the daemon's methods; kit/dhcp/rpc.py describes the messages."""

from __future__ import annotations

from fastcni.dhcp import links
from fastcni.dhcp.lease import Owner, result_of
from fastcni.kit.call.request import read_conf
from fastcni.kit.dhcp import dhcp_conf, gob, rpc
from fastcni.spec.config import valid_attachments
from fastcni.spec.errors import INVALID_NETNS, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from fastcni.dhcp.client import Client, Waiter
    from fastcni.dhcp.engine import Engine

RECEIVE_BYTES = 1 << 16
MAX_UNREAD_BYTES = gob.MAX_MESSAGE_BYTES + RECEIVE_BYTES
GREETING = b"CONNECT /_goRPC_ HTTP/1."


class Service:
    """The listening, non-blocking unix stream socket. Accepts connections until close()."""

    def __init__(self, engine: Engine, sock: socket.socket) -> None:
        self.engine, self.loop, self.sock = engine, engine.loop, sock
        self.connections: set[Connection] = set()
        self.loop.add(sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            while True:
                conn, _ = self.sock.accept()
                conn.setblocking(False)
                self.connections.add(Connection(self, conn))
        except BlockingIOError:
            return
        except OSError as e:            # no free descriptor: the connection waits in the backlog
            self.engine.log.error("accept_failed", why=str(e))
            self.loop.remove(self.sock.fileno())
            self.loop.schedule(Later(lambda: self.loop.add(self.sock.fileno(), self._accept)), self.loop.now() + 1.0)

    def close(self) -> None:
        self.loop.remove(self.sock.fileno())
        for connection in list(self.connections):
            connection.close()


class Later:
    """A function that Loop.schedule() calls later."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.due, self.timer = call, 0.0


class Connection:
    """The connection of a plugin. The plugin sends a greeting and one call, and closes the connection after the
    answer."""

    def __init__(self, service: Service, sock: socket.socket) -> None:
        self.service, self.engine, self.loop, self.sock = service, service.engine, service.loop, sock
        self.greeting, self.greeted = b"", False
        self.decoder, self.encoder = gob.Decoder(), gob.Encoder()
        self.header: dict[str, Any] | None = None
        self.waiter: Waiter | None = None         # the function that answers an open ALLOCATE
        self.unsent = b""
        self.loop.add(sock.fileno(), self._read)

    def close(self) -> None:
        if self in self.service.connections:
            self.service.connections.remove(self)
            self.loop.remove(self.sock.fileno())
            self.sock.close()
            if self.waiter:
                self.engine.leave(self.waiter)

    def _read(self) -> None:
        try:
            data = self.sock.recv(RECEIVE_BYTES)
            if not data or len(self.decoder.data) > MAX_UNREAD_BYTES:
                self.close()
                return
            if self.greeted:
                self.decoder.feed(data)
                self._serve()
            else:
                self._greet(data)
        except BlockingIOError:
            return
        except OSError:                 # the plugin was killed
            self.close()
        except gob.GobError as e:
            self.engine.log.warning("call_unreadable", why=str(e))
            self.close()

    def _greet(self, data: bytes) -> None:
        self.greeting += data
        head, end, rest = self.greeting.partition(b"\n\n")
        if not GREETING.startswith(head[:len(GREETING)]) or len(self.greeting) > RECEIVE_BYTES:
            self.close()
        elif end:
            self.greeted = True
            self._send(rpc.WELCOME)
            self.decoder.feed(rest)
            self._serve()

    def _serve(self) -> None:
        while (found := self.decoder.next_value()) is not None:
            if self.header is None:
                self.header = found
                continue
            header, self.header = self.header, None
            try:
                self._call(header, found)
            except CniError as e:
                self._answer(header, None, str(e))

    def _call(self, header: dict[str, Any], args: dict[str, Any]) -> None:
        method = header.get("ServiceMethod", "")
        if method == rpc.STATUS:
            self._answer(header, {})
        elif method == rpc.ALLOCATE:
            def waiter(error: str, client: Client) -> None:
                self.waiter = None
                if error or client.lease is None:
                    self._answer(header, None, error or "the lease is gone")
                else:
                    self._answer(header, rpc.to_result(result_of(client.lease, client.owner.priority)))

            owner = owner_of(args, self.engine.root)
            self.waiter = waiter
            self.engine.allocate(owner, waiter)
        elif method == rpc.RELEASE:
            self.engine.release(key_of(args))
            self._answer(header, {})
        elif method == rpc.COLLECT:
            _, _, conf = arguments(args)
            found = self.engine.collect(conf.text("name"), valid_attachments(conf))
            self._answer(header, {"Released": [{"What": f"address {what}", "Of": of} for what, of in found]})
        else:
            self._answer(header, None, f"{rpc.NO_METHOD}method {method}" if "." in method
                         else f"rpc: service/method request ill-formed: {method}")

    def _answer(self, header: dict[str, Any], result: dict[str, Any] | None, error: str = "") -> None:
        self._send(rpc.answer(self.encoder, header, result, error))

    def _send(self, data: bytes = b"") -> None:
        """Send data. If the socket's buffer is full, send the remaining bytes when the plugin has read some."""
        self.unsent += data
        try:
            sent = self.sock.send(self.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:                 # the plugin has closed the connection, which the next read reports
            sent = len(self.unsent)
        self.unsent = self.unsent[sent:]
        if self in self.service.connections:
            self.loop.add(self.sock.fileno(), self._send if self.unsent else self._read, write=bool(self.unsent))


def arguments(args: dict[str, Any]) -> tuple[str, str, Any]:
    """Return (container id, ifname, the configuration as a Section) from the arguments of a call. Raises CniError."""
    return args.get("ContainerID", ""), args.get("IfName", ""), read_conf(args.get("StdinData", b""))


def key_of(args: dict[str, Any]) -> bytes:
    container_id, ifname, conf = arguments(args)
    return dhcp_conf.client_id(container_id, conf.text("name"), ifname)


def owner_of(args: dict[str, Any], root: str) -> Owner:
    """Return the Owner of a call. Raises CniError."""
    container_id, ifname, conf = arguments(args)
    keys, path = dhcp_conf.read_keys(conf), args.get("Netns", "")
    inode = links.inode_of(root + path) if path.startswith("/") else 0
    if not inode:
        raise CniError(INVALID_NETNS, f'error looking up "{ifname}": the dhcp daemon finds no namespace at "{path}"',
                       "does it see the runtime's files? -hostprefix says where these are")
    network = conf.text("name")
    return Owner(dhcp_conf.client_id(container_id, network, ifname), container_id, network, ifname, path, inode,
                 dhcp_conf.provided(keys, args.get("Args", "")), bytes(keys.request), keys.priority)
