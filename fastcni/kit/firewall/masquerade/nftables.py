"""Masquerade pods by nftables. fastcni's own table has rules for each subnet, and an element of a map for each address
of a pod.

As `nft list table inet fastcni` prints it:

    table inet fastcni {
        map pods4 {
            type ipv4_addr : verdict
            elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0, id: c" : goto subnet-10.22.0.0/16 }
        }
        map pods6 { type ipv6_addr : verdict }
        chain postrouting {
            type nat hook postrouting priority srcnat; policy accept;
            ip saddr vmap @pods4
            ip6 saddr vmap @pods6
        }
        chain subnet-10.22.0.0/16 {
            ip daddr 10.22.0.0/16 return
            ip daddr 224.0.0.0/4 return
            masquerade
        }
    }
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kit.firewall import elements, rulesets
from fastcni.kit.firewall.table import COMMENT, FAMILY, LENGTHS, SUFFIXES, TABLE
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Item, Store

CHAIN, PODS = "postrouting", "pods"
# the references of a subnet's chain are its rules and the elements that lead to the chain
SUBNET, SUBNET_RULES = "subnet-", 3
MULTICAST = {4: (b"\xe0\0\0\0", 4), 16: (b"\xff" + bytes(15), 8)}       # keys: address length in bytes
REFERENCE_TABLE, REFERENCE_CHAIN = "cni_plugins_masquerade", "masq_checks"


def stores() -> list[Store]:
    return [STORE]


def add(req: Request, ips: Sequence[tuple[bytes, int]]) -> None:
    """Masquerade the addresses, [(packed, prefix length)]. Raises NetlinkError."""
    STORE.add(req, items(ips))


def restore(req: Request, ips: Sequence[tuple[bytes, int]]) -> None:
    """Add the missing elements and rules."""
    STORE.restore(req, items(ips))


def items(ips: Sequence[tuple[bytes, int]]) -> list[Item]:
    return [(PODS + SUFFIXES[len(packed)], packed, subnet_chain(packed, prefix)) for packed, prefix in ips]


def delete(req: Request, given: Collection[bytes], found: Collection[bytes]) -> None:
    """Delete the attachment's elements and the rules of the reference plugin. given: the addresses under
    which ADD usually added the elements. A missing element is no error.

    delete() ignores `found`, the addresses on the link, because a pod can add any number of addresses to its link.
    """
    STORE.delete(req, [(PODS + SUFFIXES[len(packed)], packed, None) for packed in given])
    rulesets.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN,
                          lambda comment: comment.startswith(req.hashes))


def gc(req: Request) -> None:
    """Delete the elements and reference rules of invalid attachments of this network, and unused chains."""
    STORE.gc(req)
    STORE.delete_unused_chains(req, SUBNET_RULES)
    for comment in rulesets.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN,
                                         elements.stale_marks(req)):
        req.release(f"rule of nftables {REFERENCE_TABLE} {REFERENCE_CHAIN}", comment.partition(", ")[2])


def subnet_chain(packed: bytes, prefix: int) -> str:
    # nft only reads names of letters, digits and / \ _ . - ; nft would read a colon as a separate word.
    return SUBNET + addresses.cidr_text(addresses.network(packed, prefix), prefix).replace(":", "_")


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    """Add the maps, chains and rules, but no elements. The same transaction replaces existing rules, so a packet
    always meets complete rules.
    """
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="nat", hook=nft.NF_INET_POST_ROUTING,
                       priority=nft.NF_IP_PRI_NAT_SRC)
    nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
    for set_id, length in enumerate(LENGTHS, 1):
        pods = PODS + SUFFIXES[length]
        nft_elements.add_set(batch, FAMILY, TABLE, pods, (nft_elements.ADDRESS_TYPES[length],), set_id=set_id,
                             verdicts=True)
        nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *nft_rules.saddr(length), nft_rules.verdict_of(pods, set_id))
    for _, _, chain in items:
        if isinstance(chain, str):
            fill(batch, chain)
    return batch


def fill(batch: Batch, chain: str) -> Batch:
    """Add a subnet's chain with its rules. chain: a name that ends in the subnet."""
    network, prefix = addresses.read_cidr(chain.removeprefix(SUBNET).replace("_", ":"))
    nft.add_chain(batch, FAMILY, TABLE, chain)
    nft_rules.flush_chain(batch, FAMILY, TABLE, chain)
    for destination in ((network, prefix), MULTICAST[len(network)]):
        nft_rules.add_rule(batch, FAMILY, TABLE, chain, *nft_rules.daddr_in(*destination), nft_rules.leave())
    return nft_rules.add_rule(batch, FAMILY, TABLE, chain, nft_rules.masquerade())


STORE = elements.Store(FAMILY, TABLE, [PODS + SUFFIXES[length] for length in LENGTHS], {CHAIN: len(LENGTHS)}, set_up,
                       SUBNET)
