"""Clients of remote services, for requests and daemons. No module of this package knows CNI.

    errors            the errors of a service that does not answer
    ovsdb             the database of Open vSwitch
    http              HTTP with JSON in both directions: endpoints, TLS, deadlines
    http_pools        the connection pools of the module http
    etcd              etcd's JSON gateway
    kubernetes        the Kubernetes API
    list_reader       reads the API server's answer to a list request while the answer arrives
    kubernetes_watch  watches one kind of objects, or several kinds
    kubeconfig        kubeconfig files, and the credentials of a pod in the cluster
    pod_resources     the kubelet's pod-resources API
    site_packages     makes urllib3, yaml and h2 importable in a one-shot plugin
"""
