"""ipMasq by nftables: one table of our own, with a fixed number of rules however many pods there are.

A pod is one element in a map. As `nft list table inet fastcni` prints it:

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

from fastcni.kernel import nft
from fastcni.kit.call import names
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.table import COMMENT, FAMILIES, FAMILY, TABLE
from fastcni.spec import address as addresses

CHAIN = "postrouting"
SUBNET, SUBNET_RULES = "subnet-", 3        # a subnet's chain; more references to it are elements that go there
REFERENCE_TABLE, REFERENCE_CHAIN = "cni_plugins_masquerade", "masq_checks"


def stores():
    return [store()]


def store():
    return elements.Store(FAMILY, TABLE, [family.pods for family in FAMILIES.values()], {CHAIN: len(FAMILIES)},
                          set_up, SUBNET)


def add(req, ips):
    """Masquerade [(packed, prefix)]."""
    store().add(req, items(ips))


def restore(req, ips):
    """The same, of what is missing alone."""
    store().restore(req, items(ips))


def items(ips):
    return [(FAMILIES[len(packed)].pods, packed, subnet_chain(packed, prefix)) for packed, prefix in ips]


def delete(req, given, found):
    """Delete the attachment's elements, likely those of the `given` addresses, and the reference's rules. Gone is fine.

    The addresses `found` on the link do not matter: the pod can have added any number of them.
    """
    store().delete(req, [(FAMILIES[len(packed)].pods, packed, None) for packed in given])
    delete_reference_rules(req)


def gc(req):
    """Delete what attachments of this network have that are no longer valid, and chains nobody goes to."""
    store().gc(req)
    store().delete_unused_chains(req, SUBNET_RULES)
    for comment in elements.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN,
                                         elements.no_longer_valid(req)):
        req.release(f"rule of nftables {REFERENCE_TABLE} {REFERENCE_CHAIN}", comment.partition(", ")[2])


def subnet_chain(packed, prefix):
    # nft reads names of letters, digits and / \ _ . - only; a colon would be seen as its own word.
    return SUBNET + addresses.cidr_text(addresses.network(packed, prefix), prefix).replace(":", "_")


def set_up(batch, items):
    """Everything but the elements. What is there already is written anew in the same transaction, unnoticed."""
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="nat", hook=nft.NF_INET_POST_ROUTING,
                       priority=nft.NF_IP_PRI_NAT_SRC)
    nft.flush_chain(batch, FAMILY, TABLE, CHAIN)
    for set_id, (length, family) in enumerate(FAMILIES.items(), 1):
        nft.add_set(batch, FAMILY, TABLE, family.pods, key_type=family.key_type, key_size=length, set_id=set_id,
                    verdicts=True)
        nft.add_rule(batch, FAMILY, TABLE, CHAIN, *family.load(family.source), nft.verdict_of(family.pods, set_id))
    for _, _, chain in items:
        fill(batch, chain)
    return batch


def fill(batch, chain):
    """A subnet's chain with its rules; its name says which subnet."""
    network, prefix = addresses.read_cidr(chain.removeprefix(SUBNET).replace("_", ":"))
    nft.add_chain(batch, FAMILY, TABLE, chain)
    nft.flush_chain(batch, FAMILY, TABLE, chain)
    leave_alone(batch, chain, network, prefix)
    leave_alone(batch, chain, *FAMILIES[len(network)].multicast)
    return nft.add_rule(batch, FAMILY, TABLE, chain, nft.masquerade())


def leave_alone(batch, chain, network, prefix):
    """ip daddr <network>/<prefix> return"""
    family = FAMILIES[len(network)]
    nft.add_rule(batch, FAMILY, TABLE, chain, *family.within(family.destination, network, prefix),
                 nft.verdict(nft.NFT_RETURN))


def delete_reference_rules(req):
    """What the reference plugins' nftables backend left for this attachment: rules whose comment has its hashes."""
    mark = names.hashes(req.name, req.container_id, req.ifname)
    elements.delete_rules(req.mode, FAMILY, REFERENCE_TABLE, REFERENCE_CHAIN, lambda comment: comment.startswith(mark))
