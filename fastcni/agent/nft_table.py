"""Define NftTable, an nftables table of the agent with the socket that changes it."""

from __future__ import annotations

from errno import EINVAL, ENOENT, EOPNOTSUPP

from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi, wire

OWNED = nft.NFT_TABLE_F_OWNER | nft.NFT_TABLE_F_PERSIST         # since Linux 6.9, see nft.add_table()
UNKNOWN = (EOPNOTSUPP, EINVAL)                                  # errors of earlier kernels


class NftTable:
    """A table of the agent. sock: a socket for transactions of up to send_bytes, whose acknowledgements may take
    ack_bytes, as the kernel counts bytes. Raises OSError."""

    def __init__(self, family: int, name: str, send_bytes: int, ack_bytes: int) -> None:
        self._place = family, name
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        wire.set_request_size(self.sock, send_bytes)
        wire.set_buffer_size(self.sock, ack_bytes)

    def close(self) -> None:
        """Close the socket, and leave the table: its rules stay in force while the agent restarts."""
        self.sock.close()

    @property
    def port(self) -> int:
        """Return the netlink port, by which the agent distinguishes notifications of its own changes from those of
        other programs."""
        return int(self.sock.getsockname()[0])

    def delete(self) -> bool:
        """Delete the table. Return whether there was one."""
        _, refused = wire.attempt(self.sock, nft.stop(nft.del_table(nft.start(Batch()), *self._place)))
        if refused and refused[0].errno != ENOENT:
            raise refused[0]
        return not refused

    def exists(self) -> bool:
        """Return whether the table exists."""
        return bool(wire.look_up(self.sock, nft.get_table(Batch(), *self._place)))
