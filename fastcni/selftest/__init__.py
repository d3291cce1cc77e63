"""`fastcni selftest`: add two pods to each network, and test packets between them, the node and an outside host.

    check       Check, one line of the report, and Failed, which a probe raises
    node        finds, before the first ADD, faults that an ADD would repair silently
    namespaces  makes network namespaces that end with this process
    outside     makes a host outside of the node: a namespace behind a veth link
    peer        finds another node by its address or its name in the agent's list
    sockets     runs a TCP and UDP server in each namespace, and the clients' probes
    icmp        sends echo requests
    pods        makes the two pods of a network: ADD, CHECK and DEL
    policies    writes a policy that closes and opens one of the pods
    run         runs the checks of each network in each mode
"""
