"""The options of the bridge plugin: the modules for which a configuration asks, in the order of ADD.

kit/call/option.py has the functions of an option. A new option is a module, its keys in conf.py, and two lines in of().
"""

from __future__ import annotations

from fastcni.kit.bridge import gateways, vlans
from fastcni.kit.firewall import backends
from fastcni.kit.firewall.masquerade import keys as masquerade

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.bridge import unflooded
    from fastcni.kit.bridge.bridges import Port
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.option import Checked, Option, Restored

    RESTORED: list[Restored[Conf, Port]] = [masquerade, unflooded]
    CHECKED: list[Checked[Conf, Port]] = [unflooded]


class Options:
    """The options of one network, by the moment at which ADD calls their `add`.

    port  the pod has its port, and no addresses yet
    down  the addresses are known; the pod's link is down, so that the pod cannot send anything
    up    the pod's link is up
    """

    __slots__ = ("port", "down", "up")

    def __init__(self) -> None:
        self.port: list[Option[Conf, Port]] = []
        self.down: list[Option[Conf, Port]] = []
        self.up: list[Option[Conf, Port]] = []

    def all(self) -> list[Option[Conf, Port]]:
        return [*self.port, *self.down, *self.up]


def of(conf: Conf, *, ending: bool = False) -> Options:
    """Return the options of a network. ending: the command is DEL or GC, and conf has only the keys for these."""
    found = Options()
    if not ending and conf.vlans.on_port:
        found.port.append(vlans)
    for backend, asked in (("mac", conf.mac_check), ("ip", conf.ip_check)):
        if asked:
            found.down.append(backends.load("spoofcheck", backend))
    if not ending and conf.layer3 and conf.is_gateway:
        found.up.append(gateways)
    if conf.layer3 and conf.masquerade.wanted:
        found.up.append(masquerade)
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        found.up.append(unflooded)          # last: it waits until the bridge forwards to the port
    return found
