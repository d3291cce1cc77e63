"""An nftables table that the agent keeps, and the socket by which the agent changes it."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, uapi, wire


class NftTable:
    """sock: for transactions of up to send_bytes, whose acknowledgements may take ack_bytes; both as the kernel counts.
    Raises OSError."""

    def __init__(self, family: int, name: str, send_bytes: int, ack_bytes: int) -> None:
        self._place = family, name
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        wire.set_request_size(self.sock, send_bytes)
        wire.set_buffer_size(self.sock, ack_bytes)

    def close(self) -> None:
        """Leave the table: its rules hold while the agent is restarted."""
        self.sock.close()

    @property
    def port(self) -> int:
        """The netlink port by which the kernel's notifications tell these changes from others'."""
        return int(self.sock.getsockname()[0])

    def exists(self) -> bool:
        """Whether there is a table."""
        return bool(wire.look_up(self.sock, nft.get_table(Batch(), *self._place)))
