"""All that pods have in tables of our own: every Store there is, for who puts back what somebody has flushed."""

from fastcni.kit.firewall import ipspoofcheck, localnet, masquerade_nft, portmap_nft, spoofcheck


def every_store():
    return [module.store() for module in (masquerade_nft, portmap_nft, localnet, spoofcheck, ipspoofcheck)]
