"""List fastcni's plugins: {CNI type: module}. A new plugin needs one module and one line in these tables."""

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
# Modules that run requests of other protocols. Their names are no CNI types, so no configuration can name them.
OTHER = {"netavark": "fastcni.plugins.netavark"}
# The functions that each plugin module must have, see fastcni.plugin.Plugin
REQUIRED = ("read", "add", "delete", "check")


def load(kind: str) -> ModuleType:
    """Import and return the module of a plugin type; import no other plugin. fastcni.plugin.Plugin lists the module's
    functions.

    kind: a CNI type, or a name of OTHER. Raises KeyError for an unknown type, CniError 50 if a plugin of another Python
    distribution cannot be used.
    """
    name = BUILT_IN.get(kind) or OTHER.get(kind)
    if not name:
        return load_third_party(kind, TABLE[kind])
    __import__(name)                    # waits if another thread is importing the module
    return sys.modules[name]


def load_third_party(kind: str, name: str) -> ModuleType:
    """Import and return the module `name` of a plugin of another Python distribution. Raises CniError 50 if the import
    fails, or the module lacks a function of REQUIRED."""
    try:
        __import__(name)                # waits if another thread is importing the module
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
    """Return "interface", "ipam" or "chained", a key of KINDS, for a plugin type. The module of another distribution's
    plugin declares its key as KIND."""
    own = [kind for kind, table in KINDS.items() if plugin in table]
    return own[0] if own else getattr(load(plugin), "KIND", "interface")


def gives_addresses(kind: str) -> bool:
    """Return whether the plugin type can be used as IPAM plugin. The result is False for fastcni's interface plugins,
    which would call themselves. The module of another distribution's plugin must declare `KIND = "ipam"`. Types that
    fastcni does not know may be IPAM plugins."""
    if kind in BUILT_IN:
        return kind in IPAM
    return kind not in TABLE or kind_of(kind) == "ipam"
