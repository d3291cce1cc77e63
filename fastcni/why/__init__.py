"""`fastcni why`: follow one connection from end to end, and say where it ends, whose rule that is, and what mends it.

    records      Hop and Fault, the lines of the report
    ends         the two ends of the connection: pods of this node, the node, outside addresses
    path         what the hops look at: both ends, the links, what the packet showed
    probe        one real packet from the pod's namespace, and what came back
    inject       one real packet into a link of the node, as if it came from an outside address
    echo         echo requests as long as the MTU
    tracer       a table that marks packets, and the kernel's trace messages about them
    spy          the trace of the packet in each namespace, and how far it came
    packet_path  the kernel's answers on routes, neighbours, bridge ports and conntrack
    links        hops on links: the pod's link, the host's end, the bridge and its port, neighbours, FDB
    layer2       hops in a layer-2 network: the parent of a macvlan, its mode, networks that do not meet
    openvswitch  hops in Open vSwitch: ports, VLANs, OpenFlow rules
    routes       hops on routes: the pod's, the node's, forwarding, rp_filter
    firewalls    the hop where a rule dropped the packet: the rule, its owner, what removes it
    legacy       the rules of legacy iptables, by their counters
    queues       queues of nfnetlink, and the process that reads one
    owners       the program to which a table or chain belongs
    answers      hops behind the last firewall: masquerade, listening sockets, conntrack, MTU, the way back
    proxied      what is behind the HTTP proxy of network policies
    redirected   whether the datapath ebpf redirects the packets that follow the first ones
    hops         the table of hops and their order
    run          the packet, and the first hop of the table that has a fault
"""
