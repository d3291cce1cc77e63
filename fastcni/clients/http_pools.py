"""Make urllib3's connection pools for http.py: TLS from PEM files, and waits that end when the caller leaves or at a
deadline.

Pools() imports urllib3, so servers and plugins without a remote store do not load it. This module works with urllib3
1.26 (Debian 12) and 2.
"""

from __future__ import annotations

import posix
from io import BufferedReader, RawIOBase
from time import monotonic

from fastcni.clients.errors import Away
from fastcni.clients.site_packages import make_importable
from fastcni.kernel.sockets.name_lookup import Lookups, is_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_CONNECTIONS = 64            # kept connections of an endpoint; urllib3 opens further connections with a warning
PEM = "-----BEGIN"
X509_STRICT = 0x20              # ssl.VERIFY_X509_STRICT
# (level, option, value) of setsockopt(2): TCP_NODELAY, and keepalive, which ends a connection if its peer has not
# answered for 40 s
SOCKET_OPTIONS = ((6, 1, 1), (1, 9, 1), (6, 4, 20), (6, 5, 5), (6, 6, 4))


class Reader(RawIOBase):
    """A reader of an HTTP answer, which calls wait(socket) before each read of the socket."""

    def __init__(self, raw: Any, sock: Any, wait: Callable[[Any], None]) -> None:
        self.raw, self.sock, self.wait = raw, sock, wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self.wait(self.sock)
        got: int | None = self.raw.readinto(buffer)
        return got

    def close(self) -> None:
        self.raw.close()
        super().close()


class Tls:
    """The TLS settings. ca, cert, key: paths of PEM files, or PEM texts; "" for none. server_name: the name that the
    server's certificate must have, instead of the endpoint's host."""

    __slots__ = ("ca", "cert", "key", "verify", "server_name")

    def __init__(self, ca: str, cert: str, key: str, verify: bool, server_name: str) -> None:
        self.ca, self.cert, self.key, self.verify, self.server_name = ca, cert, key, verify, server_name

    def stamp(self) -> list[tuple[int, int, int]]:
        """Return a value that changes when one of the PEM files changes. Raises Away."""
        stamps = []
        for path in (self.ca, self.cert, self.key):
            if path and PEM not in path:
                try:
                    state = posix.stat(path)
                except OSError as e:
                    raise Away(f"read {path} for TLS: {e.strerror} (errno {e.errno})") from e
                stamps.append((state.st_ino, state.st_mtime_ns, state.st_size))
        return stamps

    def context(self) -> Any:
        """Return the ssl.SSLContext. Raises Away, which names the file that cannot be used."""
        from urllib3.util.ssl_ import create_urllib3_context

        context: Any = create_urllib3_context()
        # From Python 3.13 on, the default rejects certificates without some extensions of RFC 5280. Many clusters have
        # such certificates; Python still checks their signatures.
        context.verify_flags &= ~X509_STRICT
        if not self.verify:
            context.check_hostname, context.verify_mode = False, 0      # CERT_NONE
        what = self.ca
        try:
            if not self.ca:
                context.load_default_certs()
            elif PEM in self.ca:
                context.load_verify_locations(cadata=self.ca)
            else:
                context.load_verify_locations(self.ca)
            if self.cert:
                what = f"{self.cert} and {self.key or 'no key'}"
                # Pass a password, because otherwise OpenSSL would ask for a password at the terminal.
                context.load_cert_chain(as_path(self.cert), as_path(self.key) if self.key else None, "none")
        except (OSError, ValueError) as e:
            shown = "the certificates of the configuration" if PEM in what else what
            raise Away(f"TLS with {shown}: {getattr(e, 'strerror', None) or e}") from e
        return context


def as_path(pem: str) -> str:
    """Return the path of a PEM file. For a PEM text, make a memory file, which stays open until the process ends."""
    if PEM not in pem:
        return pem
    fd = posix.memfd_create("pem", 1)           # MFD_CLOEXEC
    posix.write(fd, pem.encode())
    return f"/proc/self/fd/{fd}"


class Pools:
    """urllib3's pools, one for each endpoint. wait(socket) is called before each read.

    failures: the exceptions that a failed request raises. Raises Away if urllib3 is not installed.
    """

    def __init__(self, tls: Tls, wait: Callable[[Any], None]) -> None:
        make_importable()
        try:
            import urllib3
        except ImportError as e:
            raise Away("the package urllib3 is missing: install fastcni[cluster], or Debian's python3-urllib3, "
                       "for the interpreter of the plugins") from e
        self.urllib3: Any = urllib3
        self.failures = (urllib3.exceptions.HTTPError, OSError)
        if not tls.verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)     # the user wants no verification
        self.tls, self.wait, self.stamp = tls, wait, tls.stamp()
        self.pools: dict[str, Any] = {}
        self.lookups = Lookups()

    def outdated(self) -> bool:
        """Return whether a TLS file has changed. Raises Away."""
        return self.tls.stamp() != self.stamp

    def pool(self, endpoint: str) -> Any:
        """Return the pool of an endpoint. Raises Away."""
        pool = self.pools.get(endpoint)
        if pool is None:
            pool = self.pools.setdefault(endpoint, self._open(endpoint))
        return pool

    def timeout(self, seconds: float) -> Any:
        return self.urllib3.Timeout(connect=seconds, read=seconds)

    def was_closed(self, failure: Exception) -> bool:
        """Return whether a request failed because the service had closed a kept connection."""
        return (isinstance(failure, self.urllib3.exceptions.ProtocolError)
                and isinstance(failure.args[-1], ConnectionError))

    def close(self) -> None:
        for pool in self.pools.values():
            pool.close()

    def _open(self, endpoint: str) -> Any:
        named: dict[str, Any] = {}
        if endpoint.startswith("https:"):
            checked = "CERT_REQUIRED" if self.tls.verify else "CERT_NONE"
            named = {"ssl_context": self.tls.context(), "cert_reqs": checked}
            if self.tls.server_name:
                named |= {"server_hostname": self.tls.server_name, "assert_hostname": self.tls.server_name}
        try:
            pool: Any = self.urllib3.connection_from_url(endpoint, maxsize=MAX_CONNECTIONS,
                                                         socket_options=SOCKET_OPTIONS, **named)
        except (*self.failures, ValueError) as e:
            raise Away(f"the endpoint {endpoint!r} is no URL such as https://10.0.0.1:2379: {e}") from e
        pool.ConnectionCls = connection_class(pool.ConnectionCls, self.wait, self.lookups, self.failures)
        return pool


def connection_class(base: Any, wait: Callable[[Any], None], lookups: Lookups,
                     failures: tuple[type[Exception], ...]) -> Any:
    """Return a subclass of urllib3's connection class `base`. Its connections read answers by Reader. The connection's
    timeout covers the lookup of the host's name and the attempts to connect to all addresses of the host together. The
    connection sends headers and body of a request in one write, because urllib3's two writes would wake the service
    twice."""
    class Response(base.response_class):
        def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
            super().__init__(sock, *args, **named)
            self.fp: Any = BufferedReader(Reader(self.fp.detach(), sock, wait))

    class Connection(base):
        response_class = Response
        _dns_host: str
        timeout: float
        held: list[bytes] | None = None         # headers and body, which request() sends in one write

        def _new_conn(self) -> Any:
            host, seconds = self._dns_host, self.timeout
            if not is_name(host):
                return super()._new_conn()
            deadline = monotonic() + seconds
            try:
                addresses = lookups.addresses(host, self.port, seconds)
                for number, self._dns_host in enumerate(addresses, 1):
                    self.timeout = max(0.01, deadline - monotonic())
                    try:
                        return super()._new_conn()
                    except failures:
                        if number == len(addresses):
                            raise
            finally:
                self._dns_host, self.timeout = host, seconds

        def request(self, method: str, url: str, body: Any = None, *args: Any, **named: Any) -> None:
            held: list[bytes] = []
            self.held = held
            try:
                super().request(method, url, body, *args, **named)
            finally:
                self.held = None
            self.send(b"".join(held))

        def send(self, data: Any) -> None:
            if self.held is None:
                super().send(data)
            else:
                self.held.append(data)

    return Connection


LATE = "no answer in time"


def reason(failure: BaseException) -> str:
    """Return the cause of a failure for an error message: the message of the operating system or of OpenSSL, if the
    failure has such a message."""
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, OSError):
        inner = [each for each in cause.args if isinstance(each, BaseException)]
        cause = inner[0] if inner else cause.__cause__ or cause.__context__
    if isinstance(cause, TimeoutError):
        return LATE
    if cause is not None and cause.strerror:
        return f"{getattr(cause, 'verify_message', '') or cause.strerror} (errno {cause.errno})"
    return str(cause or failure) or type(failure).__name__
