"""Keep pods and network definitions of the Kubernetes API for pods with several networks.

    watch       the thread that watches one kind of objects
    watched     pods of this node and definitions of networks, from two watches
    containers  which containers a pod has
    hot_plug    attaches networks to running pods and detaches them
    sources     the watches of each API server that configurations name
"""
