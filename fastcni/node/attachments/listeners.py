"""Read the node's addresses, and the processes that listen on its ports. Without root, the names of other users'
processes are unknown."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass

from fastcni.kernel import wire
from fastcni.kernel.sockets import inet_sockets
from fastcni.kit.firewall.port_mappings import PROTOCOLS
from fastcni.kit.links import find
from fastcni.spec import address


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens on a port. address: as text, "0.0.0.0" or "::" for all addresses. lengths: the lengths in
    bytes of the addresses that the process serves: 4, 16 or both. pid, name: 0 and "" if unknown."""

    protocol: str
    port: int
    address: str
    lengths: tuple[int, ...]
    pid: int = 0
    name: str = ""

    def serves(self, host_ip: str, length: int) -> bool:
        """Return whether packets to an address of the node reach the process. host_ip: the address; "" for any address
        of `length` bytes."""
        return length in self.lengths and (not host_ip or self.address in ("0.0.0.0", "::", host_ip))

    def __str__(self) -> str:
        who = f"process {self.pid} ({self.name})" if self.pid else "a process of this node"
        return f"{who} listens on {self.port}/{self.protocol}, address {self.address}"


def own_addresses() -> list[tuple[str, str]]:
    """Return (link, address) of each address of the host. Raises NetlinkError."""
    with wire.open_socket() as sock:
        return [(link.name, address.ip_text(it.packed)) for link in find.all_links(sock)
                for it in find.addresses(sock, link.index)]


def listening(ports: Collection[int], protocol: str = "") -> list[Listener]:
    """Return the processes that listen on some of `ports` in the calling thread's namespace. protocol: for example
    "tcp"; "" for all protocols. Raises NetlinkError."""
    found = [(name, it) for name, number in PROTOCOLS.items() if protocol in ("", name)
             for it in sockets(number) if it.port in ports]
    owners = processes({it.inode for _, it in found})
    return list(dict.fromkeys(Listener(name, it.port, address.ip_text(it.packed), it.lengths,
                                       *owners.get(it.inode, (0, ""))) for name, it in found))


def sockets(number: int) -> list[inet_sockets.Waiting]:
    """Return the listening sockets of a protocol; [] for SCTP if the kernel has no SCTP. Raises NetlinkError."""
    try:
        return list(inet_sockets.waiting(number))
    except wire.NetlinkError:
        if number == inet_sockets.SCTP:
            return []
        raise


def processes(inodes: Collection[int]) -> dict[int, tuple[int, str]]:
    """Return {inode: (process id, name)} of sockets. If several processes have a socket, the lowest process id counts.
    """
    found: dict[int, tuple[int, str]] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdecimal()) if wanted else ()):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if (inode := wanted.get(os.readlink(f"/proc/{pid}/fd/{fd}"))) and inode not in found:
                    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                        found[inode] = pid, file.read().strip()
        except OSError:
            continue                        # the process has ended, or belongs to another user
    return found
