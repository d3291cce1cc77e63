"""A data directory of host-local with the network "net", for tests."""

import os

import pytest

from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import host_local
from fastcni.spec.errors import CniError

SMALL = {"subnet": "10.1.0.0/29"}           # the gateway is .1, pods get .2 to .6


class Node:
    """A data directory with the network "net". call() runs host-local as an entry point does."""

    def __init__(self, root):
        self.root, self.path, self.warnings = root, root / "net", []

    def conf(self, ipam, **top):
        return {"cniVersion": "1.0.0", "name": "net", "type": "bridge",
                "ipam": {"type": "host-local", "dataDir": str(self.root)} | ipam} | top

    def call(self, command, ipam, who="pod", ifname="eth0", args="", **top):
        document = self.conf(ipam, **top)
        req = Request(Mode(), plugin="host-local", command=command, container_id=who, ifname=ifname, args=args,
                      conf=document, name="net", version=document["cniVersion"])
        try:
            conf = host_local.read(req)
            if command == "ADD":
                with Undo() as undo:
                    return host_local.add(req, conf, undo)
            function = {"DEL": "delete", "CHECK": "check", "GC": "gc", "STATUS": "status"}[command]
            return getattr(host_local, function)(req, conf)
        finally:
            self.warnings += req.warnings

    def add(self, ipam, who="pod", **more):
        """Run ADD, and return the addresses without prefix length."""
        result = self.call("ADD", ipam, who, **more)
        return [ip["address"].split("/")[0] for ip in result["ips"]]

    def refused(self, command, ipam, *args, **more):
        with pytest.raises(CniError) as e:
            self.call(command, ipam, *args, **more)
        return e.value

    def files(self):
        if not self.path.exists():
            return {}
        return {name: (self.path / name).read_bytes() for name in os.listdir(self.path)
                if name[0] in "0123456789abcdef:"}
