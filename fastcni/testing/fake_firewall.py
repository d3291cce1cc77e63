"""Model nftables for tests: tables, chains with the number of their rules, and sets with their elements."""

from __future__ import annotations

from errno import EEXIST, ENOENT

from fastcni._netlink import attribute_list, attributes
from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.uapi import NLM_F_DUMP
from fastcni.testing.fake_messages import Refused, Replies, attr, text

OF_SETS = (nft.NFT_MSG_NEWSET, nft.NFT_MSG_GETSET, nft.NFT_MSG_NEWSETELEM, nft.NFT_MSG_GETSETELEM,
           nft.NFT_MSG_DELSETELEM)


class Firewall:
    """The model of nftables. tables: {(family, table)}. chains: {(family, table, chain): number of rules}. jumps:
    [(chain of a rule, chain to which it jumps)]. sets: {(family, table, set): {key: (comment, chain of the
    verdict)}}."""

    def __init__(self) -> None:
        self.tables: set[tuple[int, str]] = set()
        self.chains: dict[tuple[int, str, str], int] = {}
        self.jumps: list[tuple[tuple[int, str, str], tuple[int, str, str]]] = []
        self.sets: dict[tuple[int, str, str], dict[bytes, tuple[bytes, str]]] = {}

    def owned(self) -> set[tuple[int, str, str, bytes]]:
        """Return the elements that have a comment, which names an attachment, as (family, table, set, key). Elements
        without a comment are for all pods of a bridge."""
        return {(*where, key) for where, found in self.sets.items() for key, (comment, _) in found.items() if comment}

    def serve(self, kind: int, flags: int, payload: bytes) -> Replies:
        family, found = payload[0], attributes(payload, 4)
        table = (family, text(found.get(1, b"")))
        new = kind in (nft.NFT_MSG_NEWTABLE, nft.NFT_MSG_NEWCHAIN, nft.NFT_MSG_NEWSET)
        if kind == nft.NFT_MSG_NEWTABLE:
            self.tables.add(table)
            return []
        if kind == nft.NFT_MSG_GETCHAIN and flags & NLM_F_DUMP == NLM_F_DUMP:
            return [(nft.NFT_MSG_NEWCHAIN, self.encoded_chain(*chain))
                    for chain in self.chains if chain[0] == family]
        if kind == nft.NFT_MSG_GETRULE:
            # fastcni searches for rules of the reference plugins; the model has none
            return []
        if table not in self.tables:
            raise Refused(ENOENT)
        if kind == nft.NFT_MSG_GETTABLE:
            return [(nft.NFT_MSG_NEWTABLE, bytes((family, 0, 0, 0)) + attr(1, found[1]))]
        if kind in OF_SETS:
            return self.serve_set(kind, flags, (*table, text(found[2])), found)
        chain = (*table, text(found[nft.NFTA_CHAIN_NAME if kind in (
            nft.NFT_MSG_NEWCHAIN, nft.NFT_MSG_GETCHAIN, nft.NFT_MSG_DELCHAIN) else nft_rules.NFTA_RULE_CHAIN]))
        if not new and chain not in self.chains:
            raise Refused(ENOENT)
        if kind == nft.NFT_MSG_NEWCHAIN:
            self.chains.setdefault(chain, 0)
        elif kind == nft.NFT_MSG_NEWRULE:
            self.chains[chain] += 1
            if target := nft_rules.read_jump(payload)[2]:
                self.jumps.append((chain, (*table, target)))
        elif kind == nft.NFT_MSG_DELRULE:
            self.chains[chain] = 0
            self.jumps = [jump for jump in self.jumps if jump[0] != chain]
        elif kind == nft.NFT_MSG_DELCHAIN:
            del self.chains[chain]
        elif kind == nft.NFT_MSG_GETCHAIN:
            return [(nft.NFT_MSG_NEWCHAIN, self.encoded_chain(*chain))]
        else:
            raise AssertionError(f"the model has no nftables request of type {kind}")
        return []

    def encoded_chain(self, family: int, table: str, name: str) -> bytes:
        uses = self.chains[family, table, name] + sum(
            target == (family, table, name) for _, target in self.jumps) + sum(
            chain == name for where, found in self.sets.items() if where[:2] == (family, table)
            for _, chain in found.values())
        return (bytes((family, 0, 0, 0)) + attr(nft.NFTA_CHAIN_TABLE, table.encode() + b"\0")
                + attr(nft.NFTA_CHAIN_NAME, name.encode() + b"\0") + attr(nft.NFTA_CHAIN_USE, uses.to_bytes(4, "big")))

    def serve_set(self, kind: int, flags: int, where: tuple[int, str, str], found: dict[int, bytes]) -> Replies:
        if kind == nft.NFT_MSG_NEWSET:
            self.sets.setdefault(where, {})
            return []
        if where not in self.sets:
            raise Refused(ENOENT)
        if kind == nft.NFT_MSG_GETSET:
            return [(nft.NFT_MSG_NEWSET, bytes((where[0], 0, 0, 0)))]
        elements, replies = self.sets[where], []
        if kind == nft.NFT_MSG_GETSETELEM and flags & NLM_F_DUMP == NLM_F_DUMP:
            return [(nft.NFT_MSG_NEWSETELEM, self.encoded_element(where, key)) for key in elements]
        for _, item in attribute_list(found[nft_elements.NFTA_SET_ELEM_LIST_ELEMENTS]):
            fields = attributes(item)
            key = attributes(fields[nft_elements.NFTA_SET_ELEM_KEY])[nft.NFTA_DATA_VALUE]
            data = attributes(fields.get(nft_elements.NFTA_SET_ELEM_DATA, b""))
            verdict = attributes(data.get(nft.NFTA_DATA_VERDICT, b""))
            chain = text(verdict.get(nft.NFTA_VERDICT_CHAIN, b""))
            if kind == nft.NFT_MSG_NEWSETELEM:
                if chain and (*where[:2], chain) not in self.chains:
                    raise Refused(ENOENT)
                if key in elements:
                    raise Refused(EEXIST)
                elements[key] = (fields.get(nft_elements.NFTA_SET_ELEM_USERDATA, b""), chain)
            elif key not in elements:
                raise Refused(ENOENT)
            elif kind == nft.NFT_MSG_DELSETELEM:
                del elements[key]
            else:
                replies.append((nft.NFT_MSG_NEWSETELEM, self.encoded_element(where, key)))
        return replies

    def encoded_element(self, where: tuple[int, str, str], key: bytes) -> bytes:
        comment, _ = self.sets[where][key]
        item = (attr(nft_elements.NFTA_SET_ELEM_KEY, attr(nft.NFTA_DATA_VALUE, key))
                + attr(nft_elements.NFTA_SET_ELEM_USERDATA, comment))
        names = (attr(nft_elements.NFTA_SET_ELEM_LIST_TABLE, where[1].encode() + b"\0")
                 + attr(nft_elements.NFTA_SET_ELEM_LIST_SET, where[2].encode() + b"\0"))
        return (bytes((where[0], 0, 0, 0)) + names
                + attr(nft_elements.NFTA_SET_ELEM_LIST_ELEMENTS, attr(nft.NFTA_LIST_ELEM, item)))
