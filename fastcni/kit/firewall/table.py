"""Constants of fastcni's own nftables tables, one of family inet and one of family bridge.

    table inet fastcni { comment "fastcni: masquerade of pods" ... }
    table bridge fastcni { comment "fastcni: MACs of pods" ... }
"""

from __future__ import annotations

from fastcni.kernel import nft

TABLE = "fastcni"
FAMILY, COMMENT = nft.NFPROTO_INET, "fastcni: masquerade of pods"
BRIDGE_FAMILY, BRIDGE_COMMENT = nft.NFPROTO_BRIDGE, "fastcni: MACs of pods"

LENGTHS = (4, 16)               # of packed addresses: IPv4, IPv6
SUFFIXES = {4: "4", 16: "6"}    # of the names of sets, by the length of their addresses: pods4, pods6
