"""Constants of fastcni's own nftables tables, of the families inet, bridge and netdev.

    table inet fastcni { comment "fastcni: masquerade of pods" ... }
    table bridge fastcni { comment "fastcni: MACs of pods" ... }
    table netdev fastcni { comment "fastcni: neighbours of bridges" ... }
"""

from __future__ import annotations

from fastcni.kernel import nft

TABLE = "fastcni"
FAMILY, COMMENT = nft.NFPROTO_INET, "fastcni: masquerade of pods"
BRIDGE_FAMILY, BRIDGE_COMMENT = nft.NFPROTO_BRIDGE, "fastcni: MACs of pods"
NETDEV_FAMILY, NETDEV_COMMENT = nft.NFPROTO_NETDEV, "fastcni: neighbours of bridges"

LENGTHS = (4, 16)               # lengths in bytes of packed addresses: IPv4, IPv6
SUFFIXES = {4: "4", 16: "6"}    # suffixes of set names, by address length: pods4, pods6
