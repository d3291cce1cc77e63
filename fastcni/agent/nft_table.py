"""Define NftTable, an nftables table of the agent with the netlink socket that changes the table, and TableEvents, the
notifications about such a table."""

from __future__ import annotations

from errno import EINVAL, ENOENT, EOPNOTSUPP
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.contract import ConfigurationError
from fastcni.kernel import nft, nft_elements, uapi, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OWNED = nft.NFT_TABLE_F_OWNER | nft.NFT_TABLE_F_PERSIST         # since Linux 6.9, see nft.add_table()
EVENT_BYTES = 4 << 20                                           # receive buffer for notifications
UNKNOWN = (EOPNOTSUPP, EINVAL)                                  # errors of kernels that do not know OWNED


class TableEvents:
    """The kernel's notifications about the rules of an nftables table. suspect: whether the kernel may no longer call
    these rules, because a rule, a chain or the table was deleted, or the table is dormant. Raises OSError."""

    def __init__(self, family: int, name: str) -> None:
        self._place = family, name
        self._sock = wire.open_socket(uapi.NETLINK_NETFILTER, groups=(uapi.NFNLGRP_NFTABLES,))
        wire.set_buffer_size(self._sock, EVENT_BYTES)
        self.suspect = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def read(self, own: int) -> None:
        """Read the notifications that have arrived, without those about changes by the netlink port `own`."""
        wire.drain(self._sock, self._note, self._note_dropped, own)

    def _note(self, kind: int, payload: bytes) -> None:
        if nft.disables_rules(kind, payload) and nft.read_table_name(payload) == self._place:
            self.suspect = True

    def _note_dropped(self) -> None:
        self.suspect = True


class NftTable:
    """An nftables table of the agent. sock: the socket for transactions of at most send_bytes; its receive buffer of
    ack_bytes holds the kernel's acknowledgements. flags: the flags with which to add tables; 0 if the socket cannot own
    them. Raises OSError."""

    def __init__(self, family: int, name: str, send_bytes: int, ack_bytes: int) -> None:
        self._place, self.flags = (family, name), OWNED
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

    def as_owner(self, write: Callable[[], object]) -> None:
        """Call write(), which adds tables with `flags`. If the kernel answers that the socket cannot own the tables,
        because Linux is older than 6.9 or a table exists without these flags, set `flags` to 0 and call write() again.
        """
        try:
            write()
        except wire.NetlinkError as e:
            if not self.flags or e.errno not in UNKNOWN:
                raise
            self.flags = 0
            write()

    def exists(self) -> bool:
        """Return whether the table exists."""
        return bool(wire.look_up(self.sock, nft.get_table(Batch(), *self._place)))


def keys_of(sock: wire.Socket, family: int, table: str, name: str) -> list[bytes] | None:
    """Return the keys of the set or map `name` in the kernel; None if the set does not exist. Raises NetlinkError."""
    replies = wire.dump_existing(sock, nft.NFT_MSG_GETSETELEM, nft.nfgenmsg(family), f"list set {name}",
                                 nft_elements.elements_of(table, name))
    return None if replies is None else [
        key for _, payload in replies for key, _ in nft_elements.read_elements(payload)]


def delete_table(sock: wire.Socket, family: int, name: str) -> bool:
    """Delete a table. Return whether the table existed. Raises NetlinkError."""
    return wire.succeeds(sock, nft.stop(nft.del_table(nft.start(Batch()), family, name)), (ENOENT,))
