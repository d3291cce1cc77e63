"""ipMasq: traffic of a pod that leaves its subnet takes the node's address. The keys, and which backend does it.

Backends are imported when they are used: most pods of a one-shot plugin need one of them or none.
"""

from fastcni.kit.call.undo import every
from fastcni.kit.firewall import backends
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


class Masquerade:
    """The keys ipMasq and ipMasqBackend of bridge and ptp."""

    __slots__ = ("wanted", "iptables")

    def __init__(self, conf, *, ending=False):
        """`ending`: for DEL and GC, which look into every backend."""
        self.wanted = conf.flag("ipMasq")
        backend = "" if ending else conf.text("ipMasqBackend")
        if backend not in ("", "nftables", "iptables"):
            raise CniError(errors.INVALID_CONFIG, f'unknown ipmasq backend "{backend}"',
                           "ipMasqBackend is nftables (the default) or iptables")
        self.iptables = backend == "iptables"

    def add(self, req, result, undo):
        """Masquerade every address of `result`, if the network asks for it."""
        if not self.wanted:
            return
        backend, ips = self._backend(), results.ips_of(result)
        undo(backend.delete, req, {packed for packed, _ in ips}, ())
        backend.add(req, ips)

    def restore(self, req, previous):
        """Put back what is missing of what ADD did."""
        if self.wanted:
            self._backend().restore(req, results.ips_of(previous))

    def _backend(self):
        return backends.load("masquerade", "iptables" if self.iptables else "nftables")

    def delete(self, req, found, given):
        """Take back what ADD did, in whichever backend and by whichever implementation; packed addresses, as
        remove.pod_link() returns them."""
        if self.wanted:
            given = prev_addresses(req).union(given)
            every(*((backend.delete, req, given, found) for backend in backends.load_all("masquerade")))

    def gc(self, req):
        """Take back what is there for attachments of this network that are no longer valid."""
        if self.wanted:
            every(*((backend.gc, req) for backend in backends.load_all("masquerade")))


def prev_addresses(req):
    """The packed addresses that prevResult names; none where it cannot be read, for DEL goes on."""
    found = set()
    previous = req.conf.raw("prevResult")
    ips = previous.get("ips") if isinstance(previous, dict) else None
    for ip in ips if isinstance(ips, list) else ():
        try:
            found.add(addresses.read_cidr(ip["address"])[0])
        except (ValueError, KeyError, TypeError, AttributeError):
            req.warn(f"prevResult.ips has {ip!r}, which is not an address")
    return found
