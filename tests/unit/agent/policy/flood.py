"""Send datagrams without a pause, from a separate process."""

import contextlib
import os
import signal
import socket

from fastcni.testing.namespaces import Inside


@contextlib.contextmanager
def new_flows(netns, address, port):
    """Send datagrams from a namespace, each from another port, so that each is the first packet of a connection."""
    def send():
        while True:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as it:
                it.sendto(b"new", (address, port))

    with running(netns, send):
        yield


@contextlib.contextmanager
def running(netns, function):
    """Call a function in another process, in a namespace. The process ends with the context."""
    pid = os.fork()
    if not pid:
        try:
            with Inside(netns):
                function()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def received(listener):
    """Return how many datagrams wait at a non-blocking socket."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.recv(64)
            count += 1
    return count
