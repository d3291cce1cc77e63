"""Datagrams that never pause, from a process of their own."""

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
    """Call a function in a process in a namespace, until the end of the context."""
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
    """How many datagrams wait at a socket that does not block."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.recv(64)
            count += 1
    return count
