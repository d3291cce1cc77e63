"""The runtime's side of CNI: load network lists, call their plugins, remember the results.

Five lines give a container its network:

    from fastcni.runtime import CNI, RuntimeConf
    cni = CNI(plugin_dirs=["/opt/cni/bin"], conf_dir="/etc/cni/net.d")
    net = cni.load("mynet")
    result = cni.add(net, RuntimeConf("container1", "/run/netns/c1", "eth0"))
    cni.delete(net, RuntimeConf("container1", "/run/netns/c1", "eth0"))
"""

from fastcni.runtime.cni import CNI
from fastcni.runtime.discover import load_list_file, load_network
from fastcni.runtime.errors import ConfError, ManyErrors, NoConfigsFound, NotFound, PluginError
from fastcni.runtime.exec import Exec, InProcess, Runner
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.records import Attachment, NetworkList, PluginConf, RuntimeConf
from fastcni.runtime.report import Collected, Deleted, GcReport, Judged, Released, Report
from fastcni.runtime.trace import Trace
from fastcni.spec.errors import CniError

__all__ = [
    "CNI", "Attachment", "CniError", "Collected", "ConfError", "Deleted", "Exec", "GcReport", "InProcess", "Judged",
    "ManyErrors", "NetworkList", "NoConfigsFound", "NotFound", "PluginConf", "PluginError", "Released", "Report",
    "Runner", "RuntimeConf", "Trace", "list_of_plugin", "load_list_file", "load_network", "parse_list", "parse_plugin",
]
