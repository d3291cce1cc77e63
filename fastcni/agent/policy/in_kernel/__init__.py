"""Find out from the kernel's nftables tables whether a connection is allowed, without reading the policies.

    decisions  the decision about the first packet of a connection
    nft_read   reads complete tables as data
    nft_walk   follows a packet through the chains of a table
    bypass     finds out whether a bridge forwards packets past the policies
"""
