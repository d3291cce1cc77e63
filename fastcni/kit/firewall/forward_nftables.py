"""firewall by nftables: the pods whose traffic is forwarded, and a chain for what the administrator refuses them.

    table inet fastcni {
        set forwarded4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0, id: c" } }
        set forwarded6 { type ipv6_addr }
        chain CNI-ADMIN { type filter hook forward priority filter - 1; policy accept; }
    }

The administrator's rules stay as they are:

    nft add rule inet fastcni CNI-ADMIN ip saddr @forwarded4 ip daddr 192.168.0.0/16 drop

There are no rules that accept, for these would let nothing through: what one table of nftables accepts, the others are
asked about all the same. kit/firewall/forward_nftables_policies.py writes to those that drop.
"""

from fastcni.kernel import nft
from fastcni.kit.call import names
from fastcni.kit.firewall.owners import Notes
from fastcni.kit.firewall.table import FAMILY, TABLE
from fastcni.spec import errors
from fastcni.spec.errors import CniError


class Forwarded(Notes):
    """The pods, and the administrator's chain, which has no rules of ours."""

    __slots__ = ("admin_chain",)

    def __init__(self, admin_chain=names.ADMIN_CHAIN):
        self.admin_chain = admin_chain
        super().__init__("forwarded", {admin_chain: 0})

    def fill(self, batch):
        return nft.add_base_chain(super().fill(batch), FAMILY, TABLE, self.admin_chain, kind="filter",
                                  hook=nft.NF_INET_FORWARD, priority=nft.NF_IP_PRI_FILTER - 1)

    def wrong(self, req, ips):
        """For CHECK: what is not there, in words, or "" where all is."""
        if self.missing(req, self.items(ips)):
            return f"{' or '.join(self.sets)} lacks an address of the pod"
        return "" if self.whole(req) else f"there is no chain {self.admin_chain}"


def stores():
    return [Forwarded()]


def filters(req):
    """nftables is the backend where no other one filters."""
    return True


def places(req, conf):
    """Where it says that the pod's traffic is forwarded."""
    yield Forwarded(conf.admin_chain)
    if conf.backend in (None, "nftables"):
        from fastcni.kit.firewall import forward_nftables_policies

        yield from forward_nftables_policies.chains(req)


def add(req, conf):
    for place in places(req, conf):
        place.add(req, place.items(conf.ips))


def knows(req, conf):
    """Is one of the addresses let through as the attachment's?"""
    here = Forwarded()
    items = here.items(conf.ips)
    return len(here.missing(req, items)) < len(items)


def delete(req, conf):
    """Delete our elements. Gone is fine."""
    for place in places(req, conf):
        if place.used(req):
            place.delete(req, place.items(conf.ips))


def restore(req, conf):
    for place in places(req, conf):
        place.restore(req, place.items(conf.ips))


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    return next(filter(None, (place.wrong(req, conf.ips) for place in places(req, conf))), "")


def gc(req, conf):
    for place in places(req, conf):
        place.gc(req)


def status(req):
    """Raises CniError 50 where the kernel would refuse what an ADD needs."""
    if refused := Forwarded().refusal(req):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"nftables cannot be used: {refused}",
                       "the kernel lacks nf_tables, or this is not root; backend iptables is another way")
