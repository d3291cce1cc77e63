"""fastcni's own nftables tables: one of family inet, one of family bridge. Their names, and the families of addresses.

    table inet fastcni { comment "fastcni: masquerade of pods" ... }
    table bridge fastcni { comment "fastcni: MACs of pods" ... }
"""

from fastcni.kernel import nft

TABLE = "fastcni"
FAMILY, COMMENT = nft.NFPROTO_INET, "fastcni: masquerade of pods"
BRIDGE_FAMILY, BRIDGE_COMMENT = nft.NFPROTO_BRIDGE, "fastcni: MACs of pods"


class Family:
    """Where an address family's addresses are in its header, and the names of its map and of its key type."""

    __slots__ = ("protocol", "source", "destination", "length", "pods", "key_type", "multicast")

    def __init__(self, protocol, source, destination, length, pods, key_type, multicast):
        self.protocol, self.source, self.destination, self.length = protocol, source, destination, length
        self.pods, self.key_type, self.multicast = pods, key_type, multicast

    def load(self, offset):
        """meta nfproto <protocol>, then the address at `offset` of the header in register 1"""
        return (nft.meta(nft.NFT_META_NFPROTO), nft.compare(bytes((self.protocol,))),
                nft.payload(nft.NFT_PAYLOAD_NETWORK_HEADER, offset, self.length))

    def within(self, offset, network, prefix):
        """The address at `offset` is in network/prefix."""
        bits = ((1 << prefix) - 1 << 8 * self.length - prefix).to_bytes(self.length, "big")
        masked = [nft.mask(bits)] if prefix < 8 * self.length else []
        return *self.load(offset), *masked, nft.compare(network)


FAMILIES = {                    # by length of an address
    4: Family(nft.NFPROTO_IPV4, 12, 16, 4, "pods4", nft.TYPE_IPADDR, (b"\xe0\0\0\0", 4)),
    16: Family(nft.NFPROTO_IPV6, 8, 24, 16, "pods6", nft.TYPE_IP6ADDR, (b"\xff" + bytes(15), 8)),
}
