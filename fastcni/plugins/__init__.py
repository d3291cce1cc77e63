"""List the plugins in one table: CNI type -> module. A new plugin needs one module and one line in this table."""

from __future__ import annotations

import sys

from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

INTERFACE = {
    "bridge": "fastcni.plugins.bridge",
    "chain": "fastcni.plugins.chain",
    "dummy": "fastcni.plugins.dummy",
    "flannel": "fastcni.plugins.flannel",
    "host-device": "fastcni.plugins.host_device",
    "ipvlan": "fastcni.plugins.ipvlan",
    "loopback": "fastcni.plugins.loopback",
    "macvlan": "fastcni.plugins.macvlan",
    "multus": "fastcni.plugins.multus",
    "multus-shim": "fastcni.plugins.multus",
    "ovs": "fastcni.plugins.ovs",
    "ptp": "fastcni.plugins.ptp",
    "tap": "fastcni.plugins.tap",
    "vlan": "fastcni.plugins.vlan",
}
IPAM = {
    "cluster": "fastcni.plugins.cluster",
    "dhcp": "fastcni.plugins.dhcp",
    "host-local": "fastcni.plugins.host_local",
    "static": "fastcni.plugins.static",
    "whereabouts": "fastcni.plugins.cluster",
}
CHAINED = {
    "bandwidth": "fastcni.plugins.bandwidth",
    "firewall": "fastcni.plugins.firewall",
    "policy": "fastcni.plugins.policy",
    "portmap": "fastcni.plugins.portmap",
    "sbr": "fastcni.plugins.sbr",
    "tuning": "fastcni.plugins.tuning",
    "vrf": "fastcni.plugins.vrf",
}
KINDS = {"interface": INTERFACE, "ipam": IPAM, "chained": CHAINED}
BUILT_IN = INTERFACE | IPAM | CHAINED
TABLE = dict(BUILT_IN)          # third_party.register() and launcher/modules.py add the plugins of other distributions
# They run the requests of other protocols: no CNI types, so no configuration can name them
OTHER = {"netavark": "fastcni.plugins.netavark"}
# The functions that a plugin module must have, see fastcni.plugin.Plugin
REQUIRED = ("read", "add", "delete", "check")


def load(kind: str) -> ModuleType:
    """Import and return the module of a plugin type, without other plugins. fastcni.plugin.Plugin lists its functions.

    kind may also be a name of OTHER. Raises KeyError for an unknown type, CniError 50 for a plugin of another
    distribution that cannot be used.
    """
    name = OTHER.get(kind) or TABLE[kind]
    if kind not in BUILT_IN and kind not in OTHER:
        return load_third_party(kind, name)
    __import__(name)                    # waits if another thread is importing it
    return sys.modules[name]


def load_third_party(kind: str, name: str) -> ModuleType:
    """Return the module of a plugin of another distribution. Raises CniError 50 if the import fails or a function is
    missing."""
    try:
        __import__(name)                # waits if another thread is importing it
    except (Exception, SystemExit) as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f'plugin "{kind}" cannot be imported: {type(e).__name__}: {e}',
                       f"{name} is a module of another distribution") from e
    module = sys.modules[name]
    missing = [function for function in REQUIRED if not hasattr(module, function)]
    if missing:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f'plugin "{kind}" has no {", ".join(missing)}',
                       f"{name} is a module of another distribution")
    return module


def kind_of(plugin: str) -> str:
    """Return the key of KINDS for a plugin type. A plugin of another distribution declares it by KIND."""
    own = [kind for kind, table in KINDS.items() if plugin in table]
    return own[0] if own else getattr(load(plugin), "KIND", "interface")


def gives_addresses(kind: str) -> bool:
    """Return whether a plugin of that name can be an IPAM plugin. fastcni's interface plugins cannot: as IPAM plugins
    they would call themselves. A plugin of another distribution declares it by `KIND = "ipam"`."""
    if kind in BUILT_IN:
        return kind in IPAM
    return kind not in TABLE or kind_of(kind) == "ipam"
