"""Define NftTable, an nftables table of the agent with the socket that changes it."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi, wire


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

    def exists(self) -> bool:
        """Return whether the table exists."""
        return bool(wire.look_up(self.sock, nft.get_table(Batch(), *self._place)))
