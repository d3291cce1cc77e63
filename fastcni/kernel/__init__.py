"""Call the Linux kernel: netlink, network namespaces, sysctls, processes. This package knows nothing of CNI.

Netlink, from the socket to the messages; _netlink.pyx builds and reads the bytes:

    wire            opens sockets, exchanges batches, dumps objects, watches notifications
    wire_trace      shows messages, for FASTCNI_WIRE
    filters         BPF filters for notifications
    uapi            constants with the kernel's names
    rtnl            links, addresses, routes
    kinds           attributes of one kind of link: macvlan, ipvlan, VLAN, tap, VRF
    routing         routing rules, and copies of routes
    neighbours      neighbours and FDB entries
    tc              qdiscs, classes, filters
    conntrack       flows of connection tracking
    nft             nftables: transactions, tables, chains
    nft_elements    nftables: sets, maps, elements
    nft_rules       nftables: rules and their expressions
    nft_flowtables  nftables: flowtables
    nft_trace       nftables: trace messages
    ipset           ipsets
    genl            generic netlink families
    devices         links of special kinds, offloads, devices in /sys

Others:

    xtables         legacy iptables, without running iptables
    netns           opens and enters network namespaces
    presence        decides whether a namespace still exists
    sysctl          reads and writes /proc/sys
    procfs          mounts procfs
    process         runs a program
    waiting         waits with a limit, which end when the caller leaves
    sockets         packet sockets, streams, listening sockets, name lookup
    dbus            D-Bus
    logs            sends log entries
    deletions       notifies servers of a one-shot DEL
    bpf             BPF programs and maps
"""
