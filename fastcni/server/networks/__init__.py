"""What the server has of the Kubernetes API for pods with several networks.

    watch       the thread that watches one kind of objects
    watched     pods of this node and definitions of networks, from two watches
    containers  which containers a pod has
    hot_plug    networks that come to running pods and leave them
    sources     these of each API server that configurations name
"""
