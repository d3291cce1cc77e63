"""The warm server: answers the requests of installed plugins, so that no Python starts for one.

    protocol    one request and its answer as messages on a unix socket
    queue        where requests wait: their order, their number, their patience
    hosts       the network namespaces of callers, and what is kept open and known of each
    memory      what is known, until the kernel says that it has changed
    deletes     links deleted together
    restoring   what somebody has flushed from the firewall is put back: a thread that hears of it
    mirror      what is in our own nftables tables, and what of it is to be put back
    jumps       what shows that what pods have in iptables or firewalld has gone
    work        a worker thread: one request after another
    awake       processors that do not sleep while requests come
    listening   the socket, its folder, its handing over
    service     all of it together, from start to drain
    log         one line a request
"""
