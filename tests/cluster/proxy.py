"""A TCP proxy on loopback before a service: it can lose answers, and hang."""

import contextlib
import select
import socket
import threading


class Proxy:
    """`with Proxy(port) as proxy:` forwards proxy.endpoint to 127.0.0.1:port. lose: so many answers are read from the
    service and not passed on; the connection is closed instead. lost: how many were."""

    def __init__(self, port):
        self.port, self.lose, self.lost, self.open = port, 0, 0, []

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.open:
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                service = socket.create_connection(("127.0.0.1", self.port))
                self.open += [client, service]
                threading.Thread(target=self._forward, args=(client, service), daemon=True).start()

    def _forward(self, client, service):
        with contextlib.suppress(OSError, ValueError), client, service:
            while True:
                for each in select.select([client, service], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if each is service and self.lose:
                        self.lose -= 1
                        self.lost += 1
                        return
                    (service if each is client else client).sendall(data)
