"""Enforce DNS names in policies (`domainNames`): a pod may reach the addresses in the DNS answers that it has received.

    pod --query--> redirect.py --> forwarder.py --> resolver
    pod <--answer-- forwarder.py <-- part.py, after it has added the addresses to the kernel's sets

    answers.py      reads the addresses in an answer, by dnspython
    forwarder.py    a separate process that forwards queries and has no policies
    process.py      starts that process, and holds its sockets
    part.py         in the agent: adds the addresses to the sets of the domain names in the pod's policies
    addresses.py    records the addresses in answers to each pod, and how long they are valid
    elements.py     writes these addresses to the kernel's sets
    redirect.py     writes the nftables table that redirects queries to the forwarder
"""
