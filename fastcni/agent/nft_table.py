"""Define NftTable: an nftables table of the agent, and the netlink socket that changes the table."""

from __future__ import annotations

from errno import EINVAL, ENOENT, EOPNOTSUPP
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.contract import ConfigurationError
from fastcni.kernel import nft, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Iterable

OWNED = nft.NFT_TABLE_F_OWNER | nft.NFT_TABLE_F_PERSIST         # since Linux 6.9, see nft.add_table()
UNKNOWN = (EOPNOTSUPP, EINVAL)                                  # errors of kernels that do not know OWNED


class NftTable:
    """An nftables table of the agent. sock: the socket for transactions of at most send_bytes; its receive buffer of
    ack_bytes holds the kernel's acknowledgements. Raises OSError."""

    def __init__(self, family: int, name: str, send_bytes: int, ack_bytes: int) -> None:
        self._place = family, name
        self.sock = wire.open_socket(uapi.NETLINK_NETFILTER)
        wire.set_request_size(self.sock, send_bytes)
        wire.set_buffer_size(self.sock, ack_bytes)

    def close(self) -> None:
        """Close the socket. The table stays, so that its rules are in force while the agent restarts."""
        self.sock.close()

    @property
    def port(self) -> int:
        """Return the netlink port, by which the agent distinguishes notifications of its own changes from those of
        other programs."""
        return int(self.sock.getsockname()[0])

    def take_over(self, tables: Iterable[tuple[int, str]], comment: str) -> None:
        """Become the owner of the tables that an earlier agent has left. tables: (family, name). Raises
        ConfigurationError if another process owns a table."""
        batch = nft.start(Batch())
        for family, name in tables:
            for _, payload in wire.look_up(self.sock, nft.get_table(Batch(), family, name)) or ():
                flags, owner = nft.read_table(payload)
                if owner not in (0, self.port):
                    raise ConfigurationError(f"the nftables table {nft.FAMILIES[family]} {name} belongs to another "
                                             f"process (netlink port {owner}): if an agent runs, stop it first")
                if flags & nft.NFT_TABLE_F_PERSIST:
                    nft.add_table(batch, family, name, comment, OWNED)
        wire.exchange(self.sock, nft.stop(batch))

    def delete(self) -> bool:
        """Delete the table. Return whether the table existed."""
        _, refused = wire.attempt(self.sock, nft.stop(nft.del_table(nft.start(Batch()), *self._place)))
        there = not refused
        wire.raise_first(refused, (ENOENT,))
        return there

    def exists(self) -> bool:
        """Return whether the table exists."""
        return bool(wire.look_up(self.sock, nft.get_table(Batch(), *self._place)))
