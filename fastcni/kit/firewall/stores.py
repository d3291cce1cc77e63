"""All that pods have in tables of our own: every Store there is, for who puts back what somebody has flushed."""

from fastcni.kit.firewall import (
    forward_firewalld,
    forward_iptables,
    forward_nft,
    ingress_nft,
    ipspoofcheck,
    localnet,
    masquerade_nft,
    portmap_nft,
    spoofcheck,
)


def every_store():
    return [masquerade_nft.store(), portmap_nft.store(), localnet.store(), spoofcheck.store(), ipspoofcheck.store(),
            forward_nft.Forwarded(), forward_iptables.notes(), forward_firewalld.notes(), ingress_nft.store(),
            ingress_nft.ports_store()]
