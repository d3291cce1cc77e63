"""A node of a cluster with its own name and state directory. Other nodes use the same store."""

import os

import pytest

from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import cluster
from fastcni.spec.errors import CniError

NET = {"range": "10.0.0.0/24"}
FUNCTIONS = {"DEL": "delete", "CHECK": "check", "GC": "gc", "STATUS": "status"}


class Node:
    """A node. Its methods call the plugin `cluster` as an entry point does. store: the settings of the store."""

    def __init__(self, root, name="a", store=None, mode=None):
        self.root, self.name, self.mode = root / name, name, mode or Mode()
        self.store = store or {"type": "local", "path": str(root / "store")}
        self.warnings, self.req = [], None

    def conf(self, ipam, **top):
        return {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {
            "type": "cluster", "dataDir": str(self.root), "node_name": self.name, "store": self.store,
            "configuration_path": str(self.root)} | ipam} | top

    def request(self, command, ipam, who="pod", ifname="eth0", args="", **top):
        document = self.conf(ipam, **top)
        return Request(self.mode, plugin="cluster", command=command, container_id=who, ifname=ifname, args=args,
                       conf=document, name=document["name"], version=document["cniVersion"])

    def call(self, command, ipam, *args, **more):
        self.req = req = self.request(command, ipam, *args, **more)
        try:
            conf = cluster.read(req)
            if command == "ADD":
                with Undo() as undo:
                    return cluster.add(req, conf, undo)
            return getattr(cluster, FUNCTIONS[command])(req, conf)
        finally:
            self.warnings += req.warnings

    def add(self, ipam=NET, who="pod", **more):
        """Run ADD, and return the addresses without prefix length."""
        return [ip["address"].split("/")[0] for ip in self.call("ADD", ipam, who, **more)["ips"]]

    def delete(self, ipam=NET, who="pod", **more):
        self.call("DEL", ipam, who, **more)

    def refused(self, command, ipam=NET, *args, **more):
        with pytest.raises(CniError) as e:
            self.call(command, ipam, *args, **more)
        return e.value

    def files(self, space="default"):
        path = self.root / space
        return {name: (path / name).read_bytes() for name in os.listdir(path) if name[0] in "0123456789abcdef:"}


def pod(name, namespace="ns"):
    """Return the CNI_ARGS of a pod."""
    return f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID=x"
