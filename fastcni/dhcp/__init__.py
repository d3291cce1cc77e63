"""The DHCP daemon: it acquires and renews the leases of pods, in one thread.

    daemon         the program `dhcp daemon`: flags, signals, pidfile
    flags          its flags, in Go's form
    service        the socket that plugins call, and the methods
    engine         the leases, and what connects them with loop, sockets and files
    client         one lease: what it does in each state
    client_states  the states of RFC 2131, and the transitions between them
    lease          what is known of a lease, its times, its result
    lease_files    leases on disk
    links          the pod's link: found, listened on, given an address
    packets        DHCP messages: bytes only
    frames         IP, UDP and ARP around them: bytes only
    closer         closes packet sockets, which waits for the kernel
    loop           epoll, and timers in a heap
    daemon_log     log lines on stderr
"""
