"""What the long-running parts share: the server, the agent and the daemon of the dhcp plugin.

    log                one line for each event and each request
    events             the events of the log that an operator wants to be told about
    kubernetes_events  these as Kubernetes Events of the node
    listening          the listening socket, its directory, its handover by systemd
    systemd_notify     messages to systemd about the state of the process
    attended           what an event loop serves
    background         the threads for work that no answer waits for
    wakeup             how one thread wakes another
    backoff            how long a repeated action waits
    stamp              what tells that a file has changed
    garbage            when Python's garbage collector runs
"""
