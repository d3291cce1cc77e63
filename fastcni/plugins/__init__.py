"""The table of plugins: CNI type -> module. A new plugin is one module here and one line in this table."""

import sys

INTERFACE = {
    "bridge": "fastcni.plugins.bridge",
    "dummy": "fastcni.plugins.dummy",
    "flannel": "fastcni.plugins.flannel",
    "host-device": "fastcni.plugins.host_device",
    "ipvlan": "fastcni.plugins.ipvlan",
    "loopback": "fastcni.plugins.loopback",
    "macvlan": "fastcni.plugins.macvlan",
    "ptp": "fastcni.plugins.ptp",
    "tap": "fastcni.plugins.tap",
    "vlan": "fastcni.plugins.vlan",
}
IPAM = {
    "host-local": "fastcni.plugins.host_local",
    "static": "fastcni.plugins.static",
}
CHAINED = {
    "bandwidth": "fastcni.plugins.bandwidth",
    "firewall": "fastcni.plugins.firewall",
    "portmap": "fastcni.plugins.portmap",
    "sbr": "fastcni.plugins.sbr",
    "tuning": "fastcni.plugins.tuning",
    "vrf": "fastcni.plugins.vrf",
}
TABLE = INTERFACE | IPAM | CHAINED


def load(kind):
    """The module of a plugin type; only this one is imported. Raises KeyError for an unknown type.

    A module offers read(req) -> conf; add(req, conf, undo) -> result; delete, check(req, conf); and, where it has
    something to do there, gc, status and restore(req, conf). read() refuses bad input and touches nothing; restore()
    puts back what is missing in the host's firewall, and touches nothing else.
    """
    name = TABLE[kind]
    if name not in sys.modules:
        __import__(name)
    return sys.modules[name]
