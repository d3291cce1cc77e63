"""A one-shot DEL announces itself to the servers of its network namespace before it reads nftables.

A server may be about to restore elements that another program flushed, and a DEL that finds nothing to delete leaves no
trace in nftables. So DEL sends a message: a multicast of NETLINK_USERSOCK, which stays in the network namespace and
needs neither a file nor a listener. After a restore the server reads the messages, and deletes the elements of their
attachments again. A DEL that sends its message later than that also reads nftables later, and finds the elements.
"""

from __future__ import annotations

import posix
from _socket import AF_NETLINK, MSG_DONTWAIT, SCM_CREDENTIALS, SO_PASSCRED, SOCK_CLOEXEC, SOCK_RAW, SOL_SOCKET, socket
from errno import ECONNREFUSED, ENOBUFS

from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.wire import Socket

GROUP = 1 << 26                 # one of 32 that any program may use; MAGIC identifies our messages
MAGIC = b"fastcni-del\0"
SIZE, CREDENTIALS = 256, 12     # bytes: the longest message; struct ucred: pid, uid, gid


def generation(sock: Socket) -> int:
    """Return how many transactions nftables has had in this namespace. Raises NetlinkError."""
    (_, payload), *_ = wire.exchange(sock, nft.get_generation(Batch()))
    return nft.read_generation(payload)[0]


def announce(sock: Socket, mark: str) -> None:
    """Announce that a DEL of the attachment with this mark begins. `sock` is a NETLINK_NETFILTER socket."""
    try:
        message = MAGIC + generation(sock).to_bytes(8, "big") + mark.encode()
    except wire.NetlinkError:
        return                  # no nf_tables in this kernel, or no permission: no server restores anything
    out = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_USERSOCK)
    try:
        out.sendto(message, (0, GROUP))
    except OSError as e:
        if e.errno not in (ECONNREFUSED, ENOBUFS):      # refused: sent to the group; port 0 has no receiver
            raise
    finally:
        out.close()


def open_receiver() -> socket:
    """Open a socket that receives the announcements of the calling thread's namespace. Raises OSError."""
    sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_USERSOCK)
    sock.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
    sock.bind((0, GROUP))
    return sock


def read(sock: socket) -> list[tuple[int, str]]:
    """Return [(generation when the DEL began, mark)] of the waiting announcements. Raises OSError."""
    found: list[tuple[int, str]] = []
    while True:
        try:
            data, ancillary, _, _ = sock.recvmsg(SIZE, 64, MSG_DONTWAIT)
        except BlockingIOError:
            return found
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            continue            # some were dropped: thousands arrived at once
        if data.startswith(MAGIC) and is_trusted(ancillary):
            at = len(MAGIC)
            found.append((int.from_bytes(data[at:at + 8], "big"), data[at + 8:].decode("ascii", "replace")))


def is_trusted(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Return whether the sender was root or our own user. Any user may send."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS) and len(data) == CREDENTIALS:
            return int.from_bytes(data[4:8], nft.ORDER) in (0, posix.geteuid())
    return False
