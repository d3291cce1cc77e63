"""The warm server: it runs the requests of installed plugins, so that no Python starts for one.

    service         the complete server, from start to drain
    acceptor        connections accepted, and their requests read
    protocol        a request and its answer, as messages on a unix socket
    request_queue   the requests that wait, and the decision which one runs next
    slots           the requests that run, and which of them hang
    workers         the threads that run one request after another
    control         control requests, and how to send them
    status          the control request of `fastcni doctor`
    history         the control request of `fastcni trace`: the last requests
    stories         what happened in a request, step by step
    records         the record of a request that has ended, for the log and the metrics
    hosts           the network namespaces of callers, each with its open sockets and known facts
    configurations  network configurations, decoded once for all pods of a network
    facts           facts about the kernel, valid until the kernel announces a change
    grouped_deletes  links deleted together
    former_boot     addresses of pods from before a reboot
    restoring       the thread that restores firewall state that another program flushed
    restore_states  the states of this, and their transitions
    namespace_watch  one network namespace whose firewall state is restored
    table_mirror    a copy of our own nftables tables, to restore them from
    iptables_watch  the signs that the state of pods in iptables or firewalld is gone
    replay          restores that state from what runtimes cached
    cpu_latency     the latency request: processors stay out of deep idle states while requests come
    idle            the exit after a time without requests
    detached        what a server leaves behind that a plugin file has started
    upkeep          signs of life, systemd's watchdog, and periodic work
"""
