"""Keep nftables sets of the pods whose traffic the node forwards, and a chain for the administrator's drop rules.

    table inet fastcni {
        set forwarded4 { type ipv4_addr; elements = { 10.22.0.5 comment "8e48...-0b65..., net: a, if: eth0, id: c" } }
        set forwarded6 { type ipv6_addr }
        chain CNI-ADMIN { type filter hook forward priority filter - 1; policy accept; }
    }

fastcni never changes the administrator's rules, such as

    nft add rule inet fastcni CNI-ADMIN ip saddr @forwarded4 ip daddr 192.168.0.0/16 drop

The table has no accept rules: a packet that one nftables table accepts still has to pass the chains of the other
tables. If another program's chain drops by policy, kit/firewall/forward/nftables_policies.py adds rules to that chain.
"""

from __future__ import annotations

from fastcni.kernel import nft
from fastcni.kit.call import names
from fastcni.kit.firewall.owners import OwnAddresses
from fastcni.kit.firewall.table import FAMILY, TABLE
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni._netlink import Batch
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.forward.keys import Conf
    from fastcni.kit.firewall.forward.nftables_policies import Chain


class Forwarded(OwnAddresses):
    """The sets of pods, and the administrator's chain. fastcni adds no rule to that chain."""

    __slots__ = ("admin_chain",)

    def __init__(self, admin_chain: str = names.ADMIN_CHAIN) -> None:
        self.admin_chain = admin_chain
        super().__init__("forwarded", {admin_chain: 0})

    def fill(self, batch: Batch) -> Batch:
        return nft.add_base_chain(super().fill(batch), FAMILY, TABLE, self.admin_chain, kind="filter",
                                  hook=nft.NF_INET_FORWARD, priority=nft.NF_IP_PRI_FILTER - 1)

    def wrong(self, req: Request, ips: list[bytes]) -> str:
        """For CHECK: return the first missing rule or element as text, or ""."""
        if self.missing(req, self.items(ips)):
            return f"{' or '.join(self.sets)} lacks an address of the pod"
        return "" if self.complete(req) else f"there is no chain {self.admin_chain}"


def stores() -> list[Store]:
    return [Forwarded()]


def filters(req: Request) -> bool:
    """Return True. backends_of() asks the other backends first, and nftables is always usable."""
    return True


def places(req: Request, conf: Conf) -> Iterator[Forwarded | Chain]:
    """Yield the Stores that ADD adds addresses to: Forwarded, and a Chain for each chain that drops by policy."""
    yield Forwarded(conf.admin_chain)
    if conf.backend in (None, "nftables"):
        from fastcni.kit.firewall.forward import nftables_policies

        yield from nftables_policies.chains(req)


def add(req: Request, conf: Conf) -> None:
    """Add the addresses to the sets. Raises NetlinkError."""
    for place in places(req, conf):
        place.add(req, place.items(conf.ips))


def delete(req: Request, conf: Conf) -> None:
    """Delete the attachment's elements. A missing element is no error."""
    for place in places(req, conf):
        if place.used(req):
            place.delete(req, place.items(conf.ips))


def restore(req: Request, conf: Conf) -> None:
    """Add the missing elements and rules."""
    for place in places(req, conf):
        place.restore(req, place.items(conf.ips))


def recorded(req: Request, conf: Conf) -> bool:
    """Return whether the owner records show that ADD used this backend for the attachment."""
    return Forwarded().knows(req, conf.ips)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    return next(filter(None, (place.wrong(req, conf.ips) for place in places(req, conf))), "")


def gc(req: Request, conf: Conf) -> None:
    for place in places(req, conf):
        place.gc(req)


def status(req: Request) -> None:
    """For STATUS: raise CniError 50 if the kernel would reject the table that an ADD needs."""
    if refused := Forwarded().refusal(req.mode.firewall):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"nftables cannot be used: {refused}",
                       "the kernel lacks nf_tables, or this process is not root; or use the backend iptables")
