"""Attach a pod to several networks: choose the networks, find their definitions, and keep the files of Multus.

    keys            reads the keys of the multus plugin
    chosen          chooses a pod's networks
    selection       reads the pod's annotation
    network         Network and Definition
    definitions     finds a network's configuration
    copies          copies of definitions on disk, for the time without an API server
    api_objects     pods and definitions from the Kubernetes API, and the write of a pod's status
    network_status  the annotation network-status
    default_routes  keeps one default route
    devices         devices that the kubelet gave to a pod
    device_info     files of device plugins about devices
    ready           waits for the readiness file
    state           Multus' files about a pod's networks
    lost            DEL and GC without these files
    other_caches    GC: attachments that only multus or only the runtime knows
    changes         networks to add to a running pod, or to remove
"""
