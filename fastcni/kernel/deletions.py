"""Let a one-shot DEL notify the servers of its network namespace before the DEL reads nftables.

A server may be about to restore elements that another program has flushed. A DEL that finds no elements leaves no trace
in nftables, so the server could restore the elements of a deleted pod. So each DEL sends a multicast message of
NETLINK_USERSOCK, which stays in the network namespace and needs neither a file nor a listener. After a restore the
server reads the messages, and deletes the elements of their attachments again. A DEL that sends its message after this
check also reads nftables after the restore, and finds the elements.
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

GROUP = 1 << 26                 # multicast group; other programs may use it, so MAGIC identifies fastcni's messages
MAGIC = b"fastcni-del\0"
SIZE, CREDENTIALS = 256, 12     # bytes: the longest message; struct ucred: pid, uid, gid


def generation(sock: Socket) -> int:
    """Return how many transactions nftables has had in this namespace. Raises NetlinkError."""
    (_, payload), *_ = wire.exchange(sock, nft.get_generation(Batch()))
    return nft.read_generation(payload)[0]


def announce(sock: Socket, mark: str) -> None:
    """Notify the servers of this namespace that a DEL begins. mark: the text that identifies the DEL's attachment.
    sock: a NETLINK_NETFILTER socket."""
    try:
        message = MAGIC + generation(sock).to_bytes(8, "big") + mark.encode()
    except wire.NetlinkError:
        # This kernel has no nf_tables, or this process no permission: no server restores elements
        return
    out = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_USERSOCK)
    try:
        out.sendto(message, (0, GROUP))
    except OSError as e:
        if e.errno not in (ECONNREFUSED, ENOBUFS):      # ECONNREFUSED: the group got the message; no socket has port 0
            raise
    finally:
        out.close()


def open_receiver() -> socket:
    """Open a socket that receives the messages of announce() in the calling thread's namespace. Raises OSError."""
    sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, uapi.NETLINK_USERSOCK)
    sock.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
    sock.bind((0, GROUP))
    return sock


def read(sock: socket) -> list[tuple[int, str]]:
    """Return [(nftables' generation when the DEL began, mark)], for each message that announce() has sent. Raises
    OSError."""
    found: list[tuple[int, str]] = []
    while True:
        try:
            data, ancillary, _, _ = sock.recvmsg(SIZE, 64, MSG_DONTWAIT)
        except BlockingIOError:
            return found
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            continue            # the kernel has dropped messages: thousands arrived at the same time
        if data.startswith(MAGIC) and is_trusted(ancillary):
            at = len(MAGIC)
            found.append((int.from_bytes(data[at:at + 8], "big"), data[at + 8:].decode("ascii", "replace")))


def is_trusted(ancillary: list[tuple[int, int, bytes]]) -> bool:
    """Return whether the sender was root or this process's user, because any user may send."""
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_CREDENTIALS) and len(data) == CREDENTIALS:
            return int.from_bytes(data[4:8], nft.ORDER) in (0, posix.geteuid())
    return False
