"""What a server does, for people.

    summary       rates, times by phase, errors, slow requests and pools, as one document
    source        where the document comes from
    pools         how many addresses each range has given out
    story_text    requests as text, with their phases and steps
    netlink_text  netlink datagrams as text
"""
