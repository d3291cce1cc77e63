"""Simulated nodes in namespaces. Each node has eth0 on a bridge of the test's namespace, and a Keeper in a thread."""

import json
import queue
import select
import socket
import threading
from contextlib import closing
from ipaddress import ip_address, ip_network

from lab.loggers import logger_to

from fastcni.agent.backends import open_backend
from fastcni.agent.contract import Family, NetworkConf, Node
from fastcni.agent.keeper import Keeper
from fastcni.agent.underlay import Options, choose
from fastcni.kernel import genl, uapi, wire
from fastcni.kernel.devices import wireguard
from fastcni.testing.namespaces import Inside, ip

NETWORKS = {4: "10.244.0.0/16", 6: "fd00:10:244::/48"}
LENGTHS = {4: 24, 6: 64}


def conf(backend="vxlan", families=(4,), **keys):
    """Return a NetworkConf of one or both families."""
    found = {}
    for family in families:
        network = ip_network(NETWORKS[family])
        subnets = network.subnets(new_prefix=LENGTHS[family])
        first = next(subnets)
        found[family] = Family(network, LENGTHS[family], first, first)
    return NetworkConf(found, {"Type": backend, **keys})


def record(number, backend, data, families=(4,), public=None):
    """Return the record of node `number`: its subnets are 10.244.NUMBER.0/24 and fd00:10:244:NUMBER::/64."""
    subnets = {4: ip_network(f"10.244.{number}.0/24"), 6: ip_network(f"fd00:10:244:{number:x}::/64")}
    return Node(f"node-{number}", {family: subnets[family] for family in families},
                public or {4: ip_address(f"192.0.2.{number}"), 6: ip_address(f"2001:db8::{number:x}")}, backend, data)


class Machine:
    """A node's namespace, with eth0 192.0.2.NUMBER/24 and 2001:db8::NUMBER/64, and a pod's address on lo."""

    def __init__(self, number, netns, bridge):
        self.number, self.netns = number, netns
        self.connect(bridge)
        ip("link", "set", "lo", "up", netns=netns)
        ip("addr", "add", f"10.244.{number}.5/32", "dev", "lo", netns=netns)
        ip("addr", "add", f"fd00:10:244:{number:x}::5/128", "dev", "lo", "nodad", netns=netns)
        self.log = []

    def connect(self, bridge):
        number, netns = self.number, self.netns
        ip("link", "add", f"port{number}", "master", bridge, "up", "type", "veth", "peer", "eth0", "netns", netns)
        ip("addr", "add", f"192.0.2.{number}/24", "dev", "eth0", netns=netns)
        ip("addr", "add", f"2001:db8::{number:x}/64", "dev", "eth0", "nodad", netns=netns)
        ip("link", "set", "eth0", "up", netns=netns)

    def open(self, network, directory):
        """Return the backend, opened in this namespace."""
        self.families = tuple(network.families)
        with Inside(self.netns):
            underlay = choose(Options(iface=["eth0"]), self.families)
            self.backend = open_backend(network, underlay, str(directory / self.netns), publishes=True)
        self.record = record(self.number, self.backend.name, self.backend.data(), self.families)
        return self.record

    def keep(self):
        """Start a Keeper in a thread."""
        self.loop = Loop(self.netns, self._log)

    def set(self, others):
        state = self.backend.state(self.record, others)
        self.loop.call(lambda keeper: keeper.set(state))
        return state

    def _log(self, event):
        self.log.append(event)

    def links_of_routes(self, destination):
        return {route["dev"] for route in self.ip_json("route", "show", destination)}

    def neighbours(self):
        return self.ip_json("neigh", "show", "dev", "flannel.1", "nud", "permanent")

    def peers(self, name):
        """Return the peers that the kernel lists for a wireguard link."""
        with Inside(self.netns), closing(wire.open_socket(uapi.NETLINK_GENERIC)) as sock:
            index = socket.if_nametoindex(name)
            return wireguard.read_device(sock, genl.family_id(sock, wireguard.FAMILY), index).peers

    def ip_json(self, *words):
        return json.loads(ip("-j", *words, netns=self.netns) or "[]")


class Loop:
    """A Keeper in a thread in the namespace. The thread handles notifications until close()."""

    def __init__(self, netns, log):
        self.netns, self.calls, self.results = netns, queue.Queue(), queue.Queue()
        self.log = logger_to(log)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def call(self, function):
        self.calls.put(function)
        result = self.results.get(timeout=30)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self):
        self.calls.put(None)
        self.thread.join()

    def _run(self):
        with Inside(self.netns):
            keeper = Keeper(self.log)
            try:
                while True:
                    select.select([keeper], [], [], 0.01)
                    keeper.attend()
                    try:
                        function = self.calls.get_nowait()
                    except queue.Empty:
                        continue
                    if function is None:
                        return
                    try:
                        self.results.put(function(keeper))
                    except BaseException as e:          # the test raises the exception
                        self.results.put(e)
            finally:
                keeper.close()
