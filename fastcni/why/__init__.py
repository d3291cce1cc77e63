"""Follow one connection for `fastcni why`, and report where it ends, whose rule ends it, and what mends the fault.

    report       Fault, Redirect and Report, the records of the report
    ends         the two ends of the connection: pods of this node, the node, outside addresses
    path         what the hops examine: both ends, the links, the results of the packet
    probe        sends one real packet from the pod's namespace, and receives the answer
    inject       puts one real packet into a link of the node, as if it came from an outside address
    tracer       a table that marks packets, and the kernel's trace messages about them
    spy          the trace of the packet in each namespace, and how far the packet came
    packet_path  asks the kernel about routes, neighbours, bridge ports and conntrack
    links        hops on links: the pod's link, the host's end, the bridge and its port, neighbours, FDB
    layer2       hops in a layer-2 network: the parent of a macvlan, its mode, networks that do not meet
    openvswitch  hops in Open vSwitch: ports, VLANs, OpenFlow rules
    routes       hops on routes: the pod's, the node's, forwarding, rp_filter
    firewalls    the hop where a rule dropped the packet: the rule, its owner, what removes it
    legacy       finds the rules of legacy iptables that dropped the packet, by their counters
    queues       finds the process that reads a queue of nfnetlink
    owners       decides to which program a table or chain belongs
    answers      hops behind the last firewall: masquerade, listening sockets, conntrack, MTU, the way back
    proxied      follows the connection behind the HTTP proxy of network policies
    redirected   reads whether the datapath ebpf redirects the packets that follow the first ones
    hops         the table of hops and their order
    run          sends the packet, and finds the first hop of the table that has a fault
"""
