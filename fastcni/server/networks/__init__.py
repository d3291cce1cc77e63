"""Keep copies of the pods and network definitions of the Kubernetes API, for pods with several networks.

    watch       the thread that watches one kind of objects
    watched     this node's pods and the network definitions, from two watches
    containers  which containers a pod has
    hot_plug    attaches networks to running pods and detaches them
    sources     the watches of each API server that configurations name
"""
