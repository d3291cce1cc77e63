"""Run a server that answers every launcher immediately. The time of such a call is the cost of the launcher alone.

    python -m fastcni.bench.echo SOCKET

For each request, this server makes the same CPU latency request as the warm server (server/cpu_latency.py). The server
ends when its standard input is closed, so that it does not outlive the run.
"""

import array
import os
import select
import socket
import sys

from fastcni.daemon import log
from fastcni.server.cpu_latency import DEFAULT_S, LatencyRequest
from fastcni.server.requests import protocol

ANSWER = b'{"bench": "echo"}'


def main(path: str) -> None:
    """Listen on the unix socket `path` and answer requests, until stdin is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1024)
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.register(sys.stdin, select.POLLIN)
        buffer = bytearray(protocol.MAX_MESSAGE)
        seconds = float(os.environ.get("FASTCNI_LATENCY_REQUEST_S") or DEFAULT_S)
        latency = LatencyRequest(seconds, log.make("info", "logfmt"))
        if latency.timer is not None:
            waiting.register(latency.timer, select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if latency.timer in ready:
                latency.release()
            if listener.fileno() in ready:
                serve(listener, buffer, latency)
            if sys.stdin.fileno() in ready:
                return


def serve(listener: socket.socket, buffer: bytearray, latency: LatencyRequest) -> None:
    """Accept one connection, read the request, close the descriptors that it sent, and send the answer."""
    conn, _ = listener.accept()
    with conn:
        size, ancillary, _, _ = conn.recvmsg_into([buffer], socket.CMSG_SPACE(3 * 4))
        for _, _, data in ancillary:
            for fd in array.array("i", data):
                os.close(fd)
        if size:                # 0: no request, only a test whether the server listens
            latency.hold()
            protocol.answer(protocol.Connection(conn.detach()), 0, ANSWER)


if __name__ == "__main__":
    main(sys.argv[1])
