"""Run the DHCP daemon, which acquires and renews the leases of pods in one thread.

    daemon         the program `dhcp daemon`: flags, signals, pidfile
    flags          the daemon's flags, in the form of Go's flag package
    service        the socket by which plugins call the daemon, and the methods
    engine         keeps all leases, and connects each client to the loop, sockets and files
    client         the DHCP client of one lease
    client_states  the states of RFC 2131, and the transitions between them
    lease          a lease: its owner, its times, its result
    lease_files    keeps leases on disk
    links          finds the pod's link, opens its sockets, and sets its address
    packets        encodes and decodes DHCP messages
    frames         encodes and reads IP and UDP headers around DHCP messages, and ARP packets
    closer         closes packet sockets in threads, because closing waits for the kernel
    loop           epoll, and timers in a heap
    daemon_log     log lines on stderr
"""
