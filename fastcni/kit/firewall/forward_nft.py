"""firewall by nftables: the pods whose traffic is forwarded, and a chain for what the administrator refuses them.

    table inet fastcni {
        set forwarded4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0, id: c" } }
        set forwarded6 { type ipv6_addr }
        chain CNI-ADMIN { type filter hook forward priority filter - 1; policy accept; }
    }

The administrator's rules stay as they are:

    nft add rule inet fastcni CNI-ADMIN ip saddr @forwarded4 ip daddr 192.168.0.0/16 drop

There are no rules that accept, for these would let nothing through: what one table of nftables accepts, the others are
asked about all the same. kit/firewall/forward_policies.py writes to those that drop.
"""

from fastcni._netlink import Batch
from fastcni.kernel import nft, wire
from fastcni.kit import names
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.masquerade_nft import COMMENT, FAMILY, TABLE
from fastcni.kit.firewall.notes import add_sets
from fastcni.spec import errors
from fastcni.spec.errors import CniError

FORWARDED = {4: "forwarded4", 16: "forwarded6"}         # by length of an address


def store(admin_chain=""):
    """`admin_chain` is the administrator's, "" where it does not matter."""
    return elements.Store(FAMILY, TABLE, [*FORWARDED.values()], {admin_chain: 0} if admin_chain else {},
                          lambda batch, _: set_up(batch, admin_chain))


def items(ips):
    return [(FORWARDED[len(packed)], packed, None) for packed in ips]


def add(req, conf):
    store(conf.admin_chain).add(req, items(conf.ips))
    if conf.backend == "nftables":
        from fastcni.kit.firewall import forward_policies

        forward_policies.add(req, conf.ips)


def knows(req, ips):
    """Is one of the addresses let through as the attachment's?"""
    mark = names.hashes(req.name, req.container_id, req.ifname)
    return any(comment.startswith(mark) for _, _, comment in store().present(req, items(ips)))


def delete(req, conf):
    """Delete our elements. Gone is fine."""
    if store().used(req):
        store().delete(req, items(conf.ips))
    if conf.backend == "nftables":
        from fastcni.kit.firewall import forward_policies

        forward_policies.delete(req, conf.ips)


def restore(req, conf):
    store(conf.admin_chain).restore(req, items(conf.ips))
    if conf.backend == "nftables":
        from fastcni.kit.firewall import forward_policies

        forward_policies.restore(req, conf.ips)


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    if store().missing(req, items(conf.ips)):
        return f"{FORWARDED[4]} or {FORWARDED[16]} lacks an address of the pod"
    if not store(conf.admin_chain).whole(req):
        return f"there is no chain {conf.admin_chain}"
    if conf.backend != "nftables":
        return ""
    from fastcni.kit.firewall import forward_policies

    return forward_policies.missing(req, conf.ips)


def gc(req, conf):
    store().gc(req)
    if conf.backend == "nftables":
        from fastcni.kit.firewall import forward_policies

        forward_policies.gc(req)


def status(req):
    """Raises CniError 50 where the kernel would refuse what an ADD needs: a transaction that is never closed is only
    tried."""
    _, refused = wire.attempt(req.host.firewall, set_up(nft.start(Batch()), "CNI-ADMIN"))
    if refused:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"nftables cannot be used: {refused[0]}",
                       "the kernel lacks nf_tables, or this is not root; backend iptables is another way")


def set_up(batch, admin_chain):
    """Everything but the elements. The administrator's rules are left alone."""
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    add_sets(batch, FAMILY, TABLE, FORWARDED)
    if admin_chain:
        nft.add_base_chain(batch, FAMILY, TABLE, admin_chain, kind="filter", hook=nft.NF_INET_FORWARD,
                           priority=nft.NF_IP_PRI_FILTER - 1)
    return batch
