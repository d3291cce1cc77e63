"""List the firewall backends in one table, and import a backend when a request needs it.

kit/firewall/contract.py defines the functions that each module of a subject has.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.firewall.elements import Store

# subject: {backend: module in kit/firewall}. forward/keys.py asks the backends of "forward" in this order whether they
# filter.
TABLE = {
    "masquerade": {"nftables": "masquerade.nftables", "iptables": "masquerade.iptables"},
    "portmap": {"nftables": "portmap.nftables", "iptables": "portmap.iptables"},
    "localnet": {"nftables": "localnet"},
    "forward": {"firewalld": "forward.firewalld", "iptables": "forward.iptables", "nftables": "forward.nftables"},
    "ingress": {"nftables": "ingress.nftables", "iptables": "ingress.iptables"},
    "spoofcheck": {"mac": "spoofcheck.mac", "ip": "spoofcheck.ip"},
    "solicitations": {"nftables": "solicitations"},
}


def load(subject: str, backend: str) -> Any:
    """Import and return the module of a backend, without the other backends. Raises KeyError for a backend that is not
    in the table."""
    return _module(TABLE[subject][backend])


def load_all(subject: str) -> list[Any]:
    """Return the modules of a subject, in the order of the table."""
    return [_module(name) for name in TABLE[subject].values()]


def stores() -> list[Store]:
    """Return the Stores of the elements in fastcni's own tables. The server restores these elements after a flush."""
    return [store for subject in TABLE for backend in load_all(subject) for store in backend.stores()]


def _module(name: str) -> Any:
    name = f"fastcni.kit.firewall.{name}"
    __import__(name)                    # waits while another thread imports the module
    return sys.modules[name]
