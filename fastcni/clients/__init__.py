"""Clients of remote services for requests and daemons. No module here knows CNI.

    away              the errors of a service that does not answer
    ovsdb             the database of Open vSwitch
    http              HTTP with JSON in both directions: endpoints, TLS, deadlines
    http_pools        the connections of http
    etcd              etcd's JSON gateway
    kubernetes        the Kubernetes API
    list_reader       the answer of a list, read while it arrives
    kubernetes_watch  the watch of several kinds of objects
    kubeconfig        kubeconfig files, and the credentials of a pod in the cluster
    pod_resources     the kubelet's pod-resources API
    site_packages     finds urllib3, yaml and h2 in a one-shot plugin
"""
