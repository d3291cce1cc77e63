"""The DHCP daemon: it acquires and renews the leases of pods, in one thread.

    daemon         the program `dhcp daemon`: flags, signals, pidfile
    flags          its flags, in Go's form
    service        the socket that plugins call, and the methods
    engine         all leases, and their connection to the loop, sockets and files
    client         the DHCP client of one lease
    client_states  the states of RFC 2131, and the transitions between them
    lease          a lease: its owner, its times, its result
    lease_files    leases on disk
    links          finds the pod's link, opens its sockets, and sets its address
    packets        DHCP messages: bytes only
    frames         IP, UDP and ARP packets around DHCP messages: bytes only
    closer         closes packet sockets in threads, because closing waits for the kernel
    loop           epoll, and timers in a heap
    daemon_log     log lines on stderr
"""
