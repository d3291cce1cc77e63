"""The code that the server, the agent and the dhcp daemon share.

    log                writes one line for each event and each request
    stream             writes lines to stderr, and drops lines that would block
    events             lists the events of the log that operators need
    kubernetes_events  sends these events as Kubernetes Events of the node
    listening          opens the listening socket, or takes the socket that systemd passes
    stop_signals       lists the signals that end the process in order
    systemd_notify     sends messages to systemd about the state of the process
    attended           the contract of objects that an event loop serves
    background         runs work in threads, so that answers do not wait for it
    wakeup             lets one thread wake another
    backoff            delays a repeated action
    stamp              detects that a file has changed
    garbage            limits the runs of Python's garbage collector
"""
