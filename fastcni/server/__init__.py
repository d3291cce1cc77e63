"""The warm server: it runs the requests of installed plugins, so that no Python starts for one.

    service      the complete server, from start to drain
    requests     requests, from the socket to the answer: queue, workers, network namespaces, facts about the kernel
    restoring    restores firewall state that another program flushed
    records      the record of a request that has ended, and the last requests
    cluster      cluster-wide addresses between requests
    networks     pods and definitions of networks from the Kubernetes API
    metrics      metrics for Prometheus
    otel         traces for OpenTelemetry
    web          HTTP: the status page, and the site that metrics answer on
    node_view    what the server asks about its node
    control      control requests, and how to send them
    status       the control request of `fastcni doctor`
    periodic     the heartbeat, systemd's watchdog, and other work that is due from time to time
    idle         the exit after a time without requests
    detached     what a server leaves behind that a plugin file has started
    former_boot  addresses of pods from before a reboot
    stale_ports  ports of Open vSwitch whose pod is gone
    datapath     flows of the datapath ebpf that have ended are deleted
    cpu_latency  the latency request: processors stay out of deep idle states while requests come
    latest       the latest value of a slow function
    bounded      dicts of a limited size
"""
