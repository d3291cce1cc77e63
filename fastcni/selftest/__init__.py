"""`fastcni selftest`: two pods on each network of the node, and packets between them, the node and an outside host.

    records     Check, one line of the report, and Failed, which a probe raises
    node        reads faults that an ADD would repair silently, before the first ADD
    namespaces  network namespaces that end with this process
    outside     a host outside of the node: a namespace behind a veth link
    peer        another node, by its address or by the agent's list of nodes
    sockets     a server of TCP and UDP in each namespace, and the probes of clients
    icmp        echo requests
    pods        the two pods of a network: ADD, CHECK and DEL
    policies    a policy that closes and opens one of the pods
    run         the order of the checks of one network in one mode
"""
