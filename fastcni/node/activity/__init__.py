"""Show a server's activity as a document and as text.

    summary       rates, times by phase, errors, slow requests and pools, as one document
    source        collects the data for that document
    pools         the number of held addresses of each range
    story_text    requests as text, with their phases and steps
    netlink_text  netlink datagrams as text
"""
