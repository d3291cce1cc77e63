"""DNS names in policies (`domainNames`): which addresses a pod may reach, by the answers that the pod got.

    pod --query--> redirect.py --> forwarder.py --> resolver
    pod <--answer-- forwarder.py <-- part.py, when the addresses are in the kernel

    answers.py      addresses in an answer, by dnspython
    forwarder.py    a separate process that forwards queries and knows no policies
    process.py      starts that process, and holds its sockets
    part.py         in the agent: adds the addresses to the sets of the names that the pod's policies have
    told.py         the addresses in answers to a pod, and until when they are valid
    elements.py     these as elements in the kernel
    redirect.py     the nftables table that leads queries to the forwarder
"""
