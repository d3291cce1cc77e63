"""A server that answers every launcher at once: what is left is the cost of the launcher itself.

    python -m fastcni.bench.echo SOCKET

For each request it makes the latency request that the warm server makes (server/cpu_latency.py). It ends when its
standard input does, so that it never outlives the run.
"""

import array
import os
import select
import socket
import sys

from fastcni.server import log, protocol
from fastcni.server.cpu_latency import DEFAULT_S, LatencyRequest

ANSWER = b'{"bench": "echo"}'


def main(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1024)
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        waiting.register(sys.stdin, select.POLLIN)
        buffer = bytearray(protocol.MAX_MESSAGE)
        seconds = float(os.environ.get("FASTCNI_LATENCY_REQUEST_S") or DEFAULT_S)
        latency = LatencyRequest(seconds, log.make("info", "logfmt"))
        while all(fd == listener.fileno() for fd, _ in waiting.poll()):
            serve(listener, buffer, latency)


def serve(listener, buffer, latency):
    """Read one request, close its descriptors, answer."""
    conn, _ = listener.accept()
    with conn:
        size, ancillary, _, _ = conn.recvmsg_into([buffer], socket.CMSG_SPACE(3 * 4))
        for _, _, data in ancillary:
            for fd in array.array("i", data):
                os.close(fd)
        if size:                # nothing: somebody looked whether we are there
            latency.hold()
            protocol.answer(conn, 0, ANSWER)


if __name__ == "__main__":
    main(sys.argv[1])
