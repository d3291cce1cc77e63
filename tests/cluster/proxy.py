"""A TCP proxy on loopback before a service: it can lose answers, and do something at a certain request."""

import contextlib
import select
import socket
import threading


class Proxy:
    """`with Proxy(port) as proxy:` forwards proxy.endpoint to 127.0.0.1:port. lose: how many answers to lose: the proxy
    reads them from the service, and closes the connection. lost: how many were lost.

    A subclass may see what passes: request() before a piece is sent to the service, answer() before the answer to it is
    passed on, and answered() after that. If one of the first two returns true, the connection is closed instead.
    """

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

    def request(self, data):
        """data: a piece of a request: its head, its body, or both."""

    def answer(self, data):
        """data: the last piece of the request."""
        if self.lose:
            self.lose -= 1
            self.lost += 1
            return True
        return False

    def answered(self, data):
        """As answer()."""

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                service = socket.create_connection(("127.0.0.1", self.port))
                self.open += [client, service]
                threading.Thread(target=self._forward, args=(client, service), daemon=True).start()

    def _forward(self, client, service):
        asked = b""
        with contextlib.suppress(OSError, ValueError), client, service:
            while True:
                for each in select.select([client, service], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if each is client:
                        asked = data
                        if self.request(asked):
                            return
                        service.sendall(data)
                    else:
                        if self.answer(asked):
                            return
                        client.sendall(data)
                        self.answered(asked)
