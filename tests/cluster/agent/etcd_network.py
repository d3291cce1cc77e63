"""Make registries of one network in etcd, for tests."""

import json
import threading
from ipaddress import ip_address, ip_network

from lab.loggers import logger_to

from fastcni.agent.contract import Node
from fastcni.agent.registries import open_registry
from fastcni.clients.etcd import Client, delete, put

CONF = {"Network": "10.244.0.0/16"}
PREFIX = "/test/network"


class Registry:
    """Registries of one network in etcd, and functions that read and write the network's keys directly."""

    def __init__(self, etcd, prefix):
        self.etcd, self.prefix = etcd, prefix
        self.client, self.log, self.opened, self.stopped = Client(etcd.conf()), [], [], threading.Event()

    def configure(self, document):
        self.put("config", json.dumps(document))

    def put(self, key, value, lease=0):
        self.client.txn([], [put(f"{self.prefix}/{key}", value, lease)])

    def keys(self):
        pairs, _ = self.client.read_range(f"{self.prefix}/subnets/", f"{self.prefix}/subnets0")
        return {pair.key.rpartition("/")[2]: pair for pair in pairs}

    def delete(self, key):
        self.client.txn([], [delete(f"{self.prefix}/subnets/{key}")])

    def open(self):
        log = logger_to(self._note)
        self.opened.append(open_registry("etcd", self.etcd.conf(prefix=self.prefix), log, self.stopped.wait))
        return self.opened[-1]

    def _note(self, event):
        self.log.append(event)

    def close(self):
        self.stopped.set()
        for each in [*self.opened, self.client]:
            each.close()


def node(number, former=None, **data):
    return Node("", {4: ip_network(former)} if former else {}, {4: ip_address(f"192.0.2.{number}")}, "vxlan",
                {4: {"VNI": 1, **data}})
