"""A TCP proxy on loopback in front of a service. It can lose answers, and subclasses can act at a certain request."""

import contextlib
import select
import socket
import threading


class Proxy:
    """`with Proxy(port) as proxy:` accepts connections at proxy.endpoint, and forwards them to 127.0.0.1:port. lose:
    the number of answers to lose: the proxy reads each such answer, and closes the connection to the client. lost: the
    number of lost answers.

    A subclass may override three methods. The proxy calls request() before it sends a piece of a request to the
    service, answer() before it forwards the answer, and answered() after that. If request() or answer() returns true,
    the proxy closes the connection instead.
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
        """Handle a piece of a request: the head, the body, or both. True: close the connection."""

    def answer(self, data):
        """Handle an answer. data: the last piece of the request. True: close the connection."""
        if self.lose:
            self.lose -= 1
            self.lost += 1
            return True
        return False

    def answered(self, data):
        """Handle an answer that the client got. data: the last piece of the request."""

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
