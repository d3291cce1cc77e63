"""Load network lists, call their plugins and cache the results: the runtime's part of CNI, as in Go's libcni.

This code attaches a container to the network "mynet", and later detaches the container:

    from fastcni.runtime import CNI, RuntimeConf
    cni = CNI(plugin_dirs=["/opt/cni/bin"], conf_dir="/etc/cni/net.d")
    net = cni.load("mynet")
    result = cni.add(net, RuntimeConf("container1", "/run/netns/c1", "eth0"))
    cni.delete(net, RuntimeConf("container1", "/run/netns/c1", "eth0"))

A program that runs pods uses PodNetworks instead. PodNetworks chooses a pod's networks and brings up the loopback
interface.
"""

# The docstring above is a page of the docs, so the map of the modules is here:
#
#    cni                CNI: loads networks, and adds, checks and deletes attachments, as Go's libcni
#    pod_networks       PodNetworks: all networks of a pod, as containerd and CRI-O
#    records            records of configurations and attachments
#    pods               records of PodNetworks
#    report             records of the outcome of CHECK, DEL, STATUS and GC
#    errors             the exceptions
#    discover           finds a network by name in a directory
#    network_directory  finds the default network and broken files, as containerd and CRI-O
#    parse              parses network configurations
#    pod_spec           reads a Pod of the Kubernetes API
#    call               the command and the environment of one plugin call
#    inject             makes a plugin's stdin
#    exec               runs plugins: as programs, or as functions of this process
#    mode               the modes of requests in this process
#    served             sends a complete list to the server
#    serial             calls for one container run one after another
#    cache              the result cache
#    collect            GC
#    replaced           pods that ended without DEL
#    restore            restores the firewall state of all cached attachments
#    iptables_batch     iptables, for restore: one run for many attachments
#    validate           validates a network's configuration
#    key_recorder       which keys read() reads, for validate and schema
#    schema             the JSON Schema of a plugin's configuration
#    fusing             makes a list of one plugin, `chain`
#    trace              passes the trace context to plugins
#    watch              calls a function after changes of a directory
#    directory_changes  inotify, for watch

from fastcni.runtime.cni import CNI
from fastcni.runtime.discover import load_list_file, load_network
from fastcni.runtime.errors import ConfError, ManyErrors, NoConfigsFound, NotFound, PluginError
from fastcni.runtime.exec import Exec, InProcess, Runner
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.pod_networks import PodNetworks
from fastcni.runtime.pod_spec import read_pod_spec
from fastcni.runtime.pods import (
    Bandwidth,
    Detached,
    Dns,
    HostPort,
    Pod,
    PodInterface,
    PodNetwork,
    PodStatus,
    Readiness,
)
from fastcni.runtime.records import Attachment, NetworkList, PluginConf, RuntimeConf
from fastcni.runtime.report import Collected, Deleted, GcReport, Judged, Released, Report
from fastcni.runtime.trace import Trace
from fastcni.spec.errors import CniError

__all__ = [
    "CNI", "Attachment", "Bandwidth", "CniError", "Collected", "ConfError", "Deleted", "Detached", "Dns", "Exec",
    "GcReport", "HostPort", "InProcess", "Judged", "ManyErrors", "NetworkList", "NoConfigsFound", "NotFound",
    "PluginConf", "PluginError", "Pod", "PodInterface", "PodNetwork", "PodNetworks", "PodStatus", "Readiness",
    "Released", "Report", "Runner", "RuntimeConf", "Trace", "list_of_plugin", "load_list_file", "load_network",
    "parse_list", "parse_plugin", "read_pod_spec",
]
