"""Helpers for tests of disableFlooding: read the flags of a pod's port, the bridge's neighbours and FDB, and a pod's
frames."""

import json
import socket

from lab.node import Inside, links, run

from fastcni.handle import restore
from fastcni.runtime.mode import InProcessMode

DUAL = ("10.22.0.0/24", "fd00:22::/64")
FLAGS = {"flood": False, "bcast_flood": False, "mcast_flood": False, "proxy_arp_wifi": True}
ETH_P_ALL, PACKET_OUTGOING = 3, 4


def conf_of(node):
    """Return a function that returns a configuration with disableFlooding. keys: keys to set or replace."""
    return lambda *subnets, **keys: node.conf(*subnets, **{"isGateway": True, "disableFlooding": True, **keys})


def restored(conf, pod, result):
    """Run bridge's restore() for a pod, as `fastcni restore` does."""
    mode = InProcessMode()
    restore("bridge", {"CNI_COMMAND": "CHECK", "CNI_CONTAINERID": f"c-{pod}", "CNI_NETNS": f"/run/netns/{pod}",
                       "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"},
            json.dumps({**conf, "prevResult": result}).encode(), mode)
    mode.close()


def flags(result):
    """Return those flags of the pod's port that disableFlooding sets."""
    data = links()[result["interfaces"][1]["name"]]["linkinfo"]["info_slave_data"]
    return {name: data[name] for name in FLAGS}


def neighbours():
    """Return {address: MAC} of the neighbour entries that fastcni added on br0. MAC is None if no neighbour
    answered."""
    found = json.loads(run("ip", "-j", "-d", "neigh", "show", "dev", "br0"))
    return {it["dst"]: it.get("lladdr") for it in found if it.get("protocol") in (252, "252")}


def stations():
    """Return {MAC: port} of the static and sticky FDB entries of br0."""
    found = json.loads(run("bridge", "-j", "fdb", "show", "br", "br0"))
    return {it["mac"]: it["ifname"] for it in found if it["state"] == "static" and "sticky" in it["flags"]}


class Received:
    """The frames that a pod's eth0 receives after this object was made."""

    def __init__(self, pod):
        with Inside(pod):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self.sock.bind(("eth0", ETH_P_ALL))
        self.sock.setblocking(False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def from_mac(self, mac):
        """Return the frames from this MAC, as bytes."""
        found = []
        while True:
            try:
                data, sender = self.sock.recvfrom(2000)
            except BlockingIOError:
                return found
            if sender[2] != PACKET_OUTGOING and data[6:12].hex(":") == mac:
                found.append(data)
