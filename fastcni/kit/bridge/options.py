"""Choose the options of the bridge plugin. An option is a module that the plugin calls if a key asks for it.

kit/call/option.py defines the functions of an option. A new option needs a module, its keys in conf.py, and two lines
in choose().
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
    from fastcni.kit.call.option import Checked, Prepared, Restored

    RESTORED: list[Restored[Conf, Port]] = [masquerade, unflooded]
    CHECKED: list[Checked[Conf, Port]] = [unflooded]
    PREPARED: list[Prepared[Conf, Port]] = [unflooded]


def choose(conf: Conf, *, ending: bool = False) -> None:
    """Set conf's lists of options. ADD calls `prepare` of the options in `prepared` before it makes the pod's link. It
    calls an option's `add` at the moment that the list names: at_port, while_down or when_up.

    ending: the command is DEL or GC, and conf has only their keys.
    """
    conf.prepared, conf.at_port, conf.while_down, conf.when_up = [], [], [], []
    if not ending and (conf.vlans.vlan or conf.vlans.trunk):
        conf.at_port.append(vlans)
    for backend, asked in (("mac", conf.mac_check), ("ip", conf.ip_check)):
        if asked:
            conf.while_down.append(backends.load("spoofcheck", backend))
    if not ending and conf.layer3 and conf.is_gateway:
        conf.when_up.append(gateways)
    if conf.layer3 and conf.masquerade.wanted:
        conf.when_up.append(masquerade)
    if conf.unflooded:
        from fastcni.kit.bridge import unflooded

        conf.prepared.append(unflooded)
        conf.when_up.append(unflooded)          # last: its add() waits until the bridge forwards to the port
