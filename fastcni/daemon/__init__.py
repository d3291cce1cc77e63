"""The code that the server, the agent and the dhcp daemon share.

    log                one line for each event and each request
    events             the events of the log for operators
    kubernetes_events  sends these as Kubernetes Events of the node
    listening          the listening socket, its directory, its handover by systemd
    systemd_notify     messages to systemd about the state of the process
    attended           the contract of objects that an event loop serves
    background         the threads for work that no answer waits for
    wakeup             how one thread wakes another
    backoff            how long a repeated action waits
    stamp              detects that a file has changed
    garbage            limits the runs of Python's garbage collector
"""
