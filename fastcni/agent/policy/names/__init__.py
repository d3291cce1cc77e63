"""Enforce DNS names in policies (`domainNames`): a pod may reach the addresses in the DNS answers that it has received.

    pod --query--> redirect.py --> forwarder.py --> resolver
    pod <--answer-- forwarder.py <-- part.py, after it has added the addresses to the kernel's sets

    answers    reads the addresses in an answer, by dnspython
    forwarder  a separate process that forwards queries and has no policies
    process    starts that process, and holds its sockets
    channel    the messages between the agent and the forwarder
    resolvers  reads which resolvers the pods use
    part       in the agent: adds the addresses to the sets of the domain names in the pod's policies
    addresses  records the addresses in answers to each pod, and how long they are valid
    elements   writes these addresses to the kernel's sets
    redirect   writes the nftables table that redirects queries to the forwarder
"""
