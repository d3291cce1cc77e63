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
