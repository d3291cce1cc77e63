"""Enforce network policies on this node's pods by nftables rules. Packets do not pass through the agent.

"port" has two meanings in this package. In ports, port_rules, renames and salvage, a port is the host's end of a pod's
link: ports.Port. In objects, chains, evaluate and state, a port is a number of TCP, UDP or SCTP, or the name of such a
number: objects.RulePort.

From documents to rules:

    sources           read pods, namespaces and policies from files or the Kubernetes API
    objects           records of pods, namespaces and NetworkPolicies; reads a rule's protocols and ports
    cluster_policies  records of ClusterNetworkPolicies
    groups            finds the groups of a pod; a group is the pods that a selector in a rule selects
    compile           Compiler: the wanted State, from all records
    chains            compiles one policy into the lines of a chain; finds the set of a named port
    ranges            merges ranges of addresses and port numbers for sets
    marks             the bits of packet marks and connection marks that the rules use
    state             State: chains, sets and maps as data, and the difference between two States
    rules             the nftables rules for the lines of chains. Begin here with the output of `nft list ruleset`
    ruleset           writes State and rules to the kernel
    engine            writes each change of the Compiler, and then cuts connections
    cut               deletes the conntrack flows that policies no longer allow
    interpret         decides on a connection from a State, for cut

Pods of this node:

    requests          receives requests of the plugin `policy` at the agent's socket
    answers           answers these requests
    attached          records the pods that ADDs have attached
    leaving           forgets a pod after its DEL
    salvage           closes a pod whose record is damaged or lost
    ports             finds the host's end of a pod's link, and the set elements for this link
    port_rules        rules for packets that a pod sends: source addresses, neighbour discovery, ICMP errors
    renames           follows host ends that another program renames
    tunnels           the node's tunnels, to which pods may send no packets
    own_addresses     the node's own addresses
    flowtable         forwards established connections between ptp pods by a flowtable

The service and its parts:

    service           the loop that serves sources, requests, parts and notifications
    parts             the contract and the list of parts
    names             part: domain names in rules
    http              part: HTTP rules
    child             a child process of the agent, for names and sources
    priority          raises the priority of the agent's threads

Commands, which run without the agent:

    convert           converts policies of Calico and AdminNetworkPolicies
    evaluate          decides on a connection from the policies
    in_kernel         decides on a connection from the kernel's rules
    verdicts          compares both decisions for `fastcni policy test`
"""
