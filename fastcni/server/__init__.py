"""The warm server: it runs the requests of plugin files, so that no request has to start Python.

    service      the complete server, from start to drain
    requests     requests, from the socket to the answer: queue, workers, network namespaces, cached kernel state
    restoring    restores firewall state that another program flushed
    records      the records of ended requests
    cluster      maintenance of cluster-wide addresses between requests
    networks     pods and definitions of networks from the Kubernetes API
    metrics      metrics for Prometheus
    otel         traces for OpenTelemetry
    web          HTTP: the status page, and the listener of metrics
    node_view    what the server reads about its node
    control      control requests, and how to send them
    status       the control request of `fastcni doctor`
    periodic     work of every second: systemd's watchdog, and the check that the process was not stopped
    idle         the exit after an idle time
    detached     detaches the server from a runtime's request, if a plugin file has started the server
    reboot       releases addresses of pods from before a reboot
    stale_ports  removes ports of Open vSwitch whose pod no longer exists
    datapath     deletes flows of the datapath ebpf that have ended
    cpu_latency  the latency request: processors stay out of deep idle states while requests come
    latest       the latest value of a slow function
    bounded      dicts of a limited size
"""
