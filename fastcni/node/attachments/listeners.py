"""The node's addresses, and the ports on which its processes listen. Read without root."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fastcni.kernel import wire
from fastcni.kit.links import find
from fastcni.spec import address

# /proc/net/tcp and udp, proc_net_tcp.txt of the kernel: state 0A is listening, 07 an unconnected UDP socket.
TABLES = (("tcp", "tcp", "0A"), ("tcp6", "tcp", "0A"), ("udp", "udp", "07"), ("udp6", "udp", "07"))


def own_addresses() -> list[tuple[str, str]]:
    """(link, address) of each address of the host. Raises NetlinkError."""
    sock = wire.open_socket()
    try:
        return [(link.name, address.ip_text(it.packed)) for link in find.all_links(sock)
                for it in find.addresses(sock, link.index)]
    finally:
        sock.close()


def listening(port: int, protocol: str = "") -> Iterator[tuple[str, str]]:
    """Yield (protocol, address) of the sockets that listen on a port, in the calling thread's namespace."""
    for table, kind, state in TABLES:
        if protocol in ("", kind):
            try:
                with open(f"/proc/thread-self/net/{table}", encoding="ascii") as file:
                    lines = file.read().splitlines()[1:]
            except OSError:
                continue                    # no IPv6
            yield from ((kind, ip) for ip in dict.fromkeys(read_table(lines, port, state)))


def read_table(lines: list[str], port: int, state: str) -> Iterator[str]:
    """Yield the local addresses of the lines that have this port and state."""
    for line in lines:
        fields = line.split()
        local, number = fields[1].split(":")
        if int(number, 16) == port and fields[3] == state:
            yield read_hex(local)


def read_hex(text: str) -> str:
    """An address as these files print it: words of 32 bits, each in the byte order of the machine."""
    packed = bytes.fromhex(text)
    words = [packed[at:at + 4] for at in range(0, len(packed), 4)]
    return address.ip_text(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
