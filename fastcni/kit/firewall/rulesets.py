"""Look up nftables tables, chains and rules of fastcni and of other programs. Delete the rules that the reference
plugins added for a pod."""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_rules, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.mode import Mode


def has_table(mode: Mode, family: int, table: str) -> bool:
    """Return whether a table of that name exists."""
    return has(mode, ("nftables", table, family), lambda batch: nft.get_table(batch, family, table))


def has(mode: Mode, key: tuple[Any, ...], look_up: Callable[[Batch], Batch]) -> bool:
    """Return whether an object exists. look_up(batch) adds the request for the object; key: the key for
    mode.recall()."""
    return mode.recall(key, lambda: wire.look_up(mode.firewall, look_up(Batch())) is not None)


def chains_of(sock: Socket, family: int, table: str, prefix: str) -> list[tuple[str, int]]:
    """Return [(name, references)] of the chains of a table whose names begin with `prefix`."""
    found = [nft.read_chain(payload) for _, payload in
             wire.dump(sock, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(family), "list nftables chains")]
    return [(chain, references) for where, chain, references in found if where == table and chain.startswith(prefix)]


def rules_of(sock: Socket, family: int, table: str, chain: str = "") -> list[bytes]:
    """Return the rules of a chain, or of all chains of a table, as payloads of NFT_MSG_NEWRULE."""
    what = f"list rules of {table} {chain}".rstrip()
    return [payload for _, payload in wire.dump(sock, nft.NFT_MSG_GETRULE, nft.nfgenmsg(family), what,
                                                nft_rules.rules_of(table, chain))]


def delete_rules(mode: Mode, family: int, table: str, chain: str, is_ours: Callable[[str], bool],
                 then: Callable[[Batch], object] | None = None) -> list[str]:
    """Delete the rules of a chain if is_ours(comment) is true for their comment. Return the comments of deleted rules.

    then(batch) adds further deletions to the same transaction. A rule that no longer exists is no error.
    """
    batch, found = nft.start(Batch()), []
    for payload in mode.recall(("nftables", table, family, chain),
                               lambda: rules_of(mode.firewall, family, table, chain)):
        handle, comment = nft_rules.read_rule(payload)
        if is_ours(comment):
            nft_rules.del_rule(batch, family, table, chain, handle)
            found.append(comment)
    if found:
        if then:
            then(batch)
        wire.exchange(mode.firewall, nft.stop(batch))
    return found
