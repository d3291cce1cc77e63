"""Show a server's activity.

    summary       rates, times by phase, errors, slow requests and pools, as one document
    source        the source of that document
    pools         the number of held addresses of each range
    story_text    requests as text, with their phases and steps
    netlink_text  netlink datagrams as text
"""
