"""Add the sets, chains and rules of port mappings to fastcni's own nftables table. Their number does not depend on the
number of pods.

    table inet fastcni {
        map hostports4 {                        (and hostports6)
            type inet_proto . inet_service : ipv4_addr . inet_service
            elements = { tcp . 8080 comment "8e48...-0b65..., net: a, if: eth0, id: c" : 10.22.0.5 . 80 }
        }
        map hostip-hostports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }         (and 6)
        set hostips4 { type ipv4_addr }         (and 6)
        set hairpins4 {                         (and 6)
            type ipv4_addr . inet_proto . inet_service
            elements = { 10.22.0.5 . tcp . 80 comment "..." }
        }
        map hairpin-pods4 {                     (and 6)
            type ipv4_addr : verdict
            elements = { 10.22.0.5 comment "..." : goto hostport-from-10.22.0.0/24 }
        }
        map hostport-pods {
            type ifname : inet_service
            elements = { "0b65a318f52e521" comment "..." : 3 }
        }
        chain hostport-prerouting {
            type nat hook prerouting priority dstnat + 1; policy accept;
            fib daddr type local jump hostports
        }
        chain hostport-output { type nat hook output priority -99; (the same) }
        chain hostports {
            ip6 daddr ::1 return
            dnat ip to ip daddr . meta l4proto . th dport map @hostip-hostports4
            dnat ip to meta l4proto . th dport map @hostports4
            dnat ip6 to (the same of IPv6, twice)
        }
        chain hostport-postrouting {
            type nat hook postrouting priority srcnat - 1; policy accept;
            ct status dnat ip daddr . meta l4proto . th dport @hairpins4 ip daddr vmap @hairpin-pods4
            ct status dnat ip6 daddr . meta l4proto . th dport @hairpins6 ip6 daddr vmap @hairpin-pods6
        }
        chain hostport-from-10.22.0.0/24 {
            ip saddr 10.22.0.0/24 masquerade
            ip saddr 127.0.0.0/8 masquerade
        }
        chain hostport-from-all { masquerade }
    }

The rules only look up packets to an address of the node (CVE-2025-67499), and run after the rules of other programs
(CVE-2019-9946).

- hostips has the addresses that mappings name as hostIP. ADD of a mapping on all addresses searches conflicting
  mappings only on the addresses in hostips.
- hostport-pods has the number of elements of each attachment. So a DEL of an attachment without mappings ends after one
  look-up, and any DEL knows whether its configuration names all mappings of the attachment.
- hairpin-pods has one element for all ports of a pod, because the kernel walks all elements that lead to chains
  whenever an element is added.
"""

from __future__ import annotations

from fastcni.kernel import nft, nft_elements, nft_rules
from fastcni.kernel.nft_elements import TYPE_IFNAME, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE
from fastcni.kit.firewall.table import COMMENT, FAMILY, LENGTHS, TABLE
from fastcni.spec import address as addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from fastcni._netlink import Batch
    from fastcni.kit.firewall.elements import Item

HOSTPORTS, HOSTIP_HOSTPORTS, HOSTIPS, HAIRPINS, HAIRPIN_PODS = (
    {4: f"{name}4", 16: f"{name}6"}             # keys: address length in bytes
    for name in ("hostports", "hostip-hostports", "hostips", "hairpins", "hairpin-pods"))
PODS = "hostport-pods"
LOOKUPS, POSTROUTING = "hostports", "hostport-postrouting"
HOOKS = {"hostport-prerouting": nft.NF_INET_PRE_ROUTING, "hostport-output": nft.NF_INET_LOCAL_OUT}
FROM, FROM_ALL, MAX_FROM_RULES = "hostport-from-", "hostport-from-all", 2
LOCALHOST = {4: (b"\x7f\0\0\0", 8), 16: (bytes(15) + b"\x01", 128)}
CHAINS = {LOOKUPS: 1 + 2 * len(LENGTHS) + len(HOOKS), POSTROUTING: len(LENGTHS)}
SETS = [name for kind in (HOSTPORTS, HOSTIP_HOSTPORTS, HAIRPINS, HAIRPIN_PODS, HOSTIPS) for name in kind.values()]


def from_chain(packed: bytes, prefix: int) -> str:
    """Return the name of the chain that masquerades packets from a subnet, "hostport-from-10.22.0.0/24"."""
    # nft only reads names of letters, digits and / \ _ . -
    return FROM + addresses.cidr_text(addresses.network(packed, prefix), prefix).replace(":", "_")


def set_up(batch: Batch, items: Sequence[Item]) -> Batch:
    """Add the sets, chains and rules, but no elements. The same transaction replaces existing rules, so a packet
    always meets complete rules.
    """
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    set_ids = add_sets(batch)
    nft.add_chain(batch, FAMILY, TABLE, LOOKUPS)
    for chain, hook in HOOKS.items():
        nft.add_base_chain(batch, FAMILY, TABLE, chain, kind="nat", hook=hook, priority=nft.NF_IP_PRI_NAT_DST + 1)
    nft.add_base_chain(batch, FAMILY, TABLE, POSTROUTING, kind="nat", hook=nft.NF_INET_POST_ROUTING,
                       priority=nft.NF_IP_PRI_NAT_SRC - 1)
    for chain in (LOOKUPS, *HOOKS, POSTROUTING):
        nft_rules.flush_chain(batch, FAMILY, TABLE, chain)
    for chain, *rule in rules(set_ids):
        nft_rules.add_rule(batch, FAMILY, TABLE, chain, *rule)
    for chain in dict.fromkeys(value for _, _, value in items if isinstance(value, str)):
        fill(batch, chain)
    return batch


def add_sets(batch: Batch) -> dict[str, int]:
    """Add the sets and maps. Return their numbers in this transaction."""
    set_ids: dict[str, int] = {}
    port = (TYPE_INET_PROTOCOL, TYPE_INET_SERVICE)
    for length in LENGTHS:
        address = nft_elements.ADDRESS_TYPES[length]
        target = {"values": (address, TYPE_INET_SERVICE)}
        for name, key, more in ((HOSTPORTS[length], port, target),
                                (HOSTIP_HOSTPORTS[length], (address, *port), target),
                                (HAIRPINS[length], (address, *port), {}),
                                (HAIRPIN_PODS[length], (address,), {"verdicts": True}),
                                (HOSTIPS[length], (address,), {})):
            set_ids[name] = len(set_ids) + 1
            nft_elements.add_set(batch, FAMILY, TABLE, name, key, set_id=set_ids[name], **more)
    nft_elements.add_set(batch, FAMILY, TABLE, PODS, (TYPE_IFNAME,), set_id=len(set_ids) + 1,
                         values=(TYPE_INET_SERVICE,))
    return set_ids


def rules(set_ids: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Yield the rules as printed above: (chain, expression, ...)."""
    for chain in HOOKS:
        yield chain, *nft_rules.to_local_address(), nft_rules.jump(LOOKUPS)
    # The kernel neither sends packets from ::1 over a link other than lo nor accepts packets to ::1 from it. So do not
    # map ::1: without a mapping, the kernel refuses the connection, and the client tries 127.0.0.1.
    yield LOOKUPS, *nft_rules.daddr_in(*LOCALHOST[16]), nft_rules.leave()
    for length in LENGTHS:
        address, port = nft_rules.daddr(length), nft_rules.protocol_and_port(behind=length)
        hairpins, pods = HAIRPINS[length], HAIRPIN_PODS[length]
        for name, key in ((HOSTIP_HOSTPORTS[length], (*address, *port)),
                          (HOSTPORTS[length], nft_rules.protocol_and_port())):
            yield LOOKUPS, *key, nft_rules.value_of(name, set_ids[name]), nft_rules.dnat(length)
        yield (POSTROUTING, *nft_rules.destination_translated(), *address, *port,
               nft_rules.in_set(hairpins, set_ids[hairpins]),
               *address[-1:], nft_rules.verdict_of(pods, set_ids[pods]))


def fill(batch: Batch, chain: str) -> Batch:
    """Add a chain and its rules, which masquerade packets from the node's localhost and from the subnet in the chain's
    name."""
    nft.add_chain(batch, FAMILY, TABLE, chain)
    nft_rules.flush_chain(batch, FAMILY, TABLE, chain)
    if chain == FROM_ALL:
        return nft_rules.add_rule(batch, FAMILY, TABLE, chain, nft_rules.masquerade())
    network, prefix = addresses.read_cidr(chain.removeprefix(FROM).replace("_", ":"))
    sources = [(network, prefix)]
    if len(network) == 4:
        sources.append(LOCALHOST[4])
    for source in sources:
        nft_rules.add_rule(batch, FAMILY, TABLE, chain, *nft_rules.saddr_in(*source), nft_rules.masquerade())
    return batch
