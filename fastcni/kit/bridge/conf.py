"""Read the keys of the bridge plugin, and check them against each other."""

from __future__ import annotations

from fastcni.kit.bridge import options, vlans
from fastcni.kit.call import ipam
from fastcni.kit.call.conf import read_ipv6, read_mtu, read_own_dns
from fastcni.kit.firewall.masquerade.keys import Masquerade
from fastcni.spec import errors
from fastcni.spec.config import check_ifname
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.bridge.bridges import Port
    from fastcni.kit.call.option import Option, Prepared
    from fastcni.spec.config import Section

DEFAULT_NAME = "cni0"


class Conf:
    """The keys of a network. For DEL and GC, a Conf has only the keys that read_ending() reads."""

    __slots__ = ("name", "is_gateway", "is_default_gateway", "force_address", "mtu", "hairpin", "promisc", "isolated",
                 "vlans", "enable_dad", "leave_down", "masquerade", "mac_check", "ip_check", "dns", "layer3", "ipv6",
                 "unflooded", "prepared", "at_port", "while_down", "when_up")

    name: str                   # the key `bridge`
    is_gateway: bool
    is_default_gateway: bool
    force_address: bool
    mtu: int                    # the MTU of the bridge and the veth pair, 0: the kernel's default
    hairpin: bool               # hairpinMode: a flag of the pod's port
    isolated: bool              # portIsolation: a flag of the pod's port
    promisc: bool               # promiscMode: a flag of the bridge
    vlans: vlans.Vlans
    enable_dad: bool
    leave_down: bool            # disableContainerInterface: the pod's link is not set up
    masquerade: Masquerade
    mac_check: bool             # macspoofchk
    ip_check: bool              # ipspoofchk
    dns: dict[str, Any] | None  # the configuration's dns; None: keep IPAM's dns
    layer3: bool                # whether the network has IPAM
    ipv6: bool                  # whether the pod's link has IPv6
    unflooded: bool             # disableFlooding
    # The options that the network asks for, by the moment at which ADD applies them, see options.py:
    prepared: list[Prepared[Conf, Port]]        # the pod has no link
    at_port: list[Option[Conf, Port]]           # the pod has its port, but no addresses
    while_down: list[Option[Conf, Port]]        # the addresses are known; the pod's link is still down
    when_up: list[Option[Conf, Port]]           # the pod's link is up

    def options(self) -> list[Option[Conf, Port]]:
        """Return all options, in the order of ADD."""
        return [*self.at_port, *self.while_down, *self.when_up]


def read(keys: Section) -> Conf:
    """Read all keys. Raises CniError 7 for a bad value, and for keys that contradict each other."""
    conf = Conf()
    conf.name = keys.text("bridge") or DEFAULT_NAME
    conf.is_default_gateway = keys.flag("isDefaultGateway")
    conf.is_gateway = keys.flag("isGateway") or conf.is_default_gateway
    conf.force_address = keys.flag("forceAddress")
    conf.mtu = read_mtu(keys)
    conf.hairpin, conf.promisc = keys.flag("hairpinMode"), keys.flag("promiscMode")
    conf.isolated = keys.flag("portIsolation")
    conf.vlans = vlans.read(keys)
    conf.enable_dad = keys.flag("enabledad")
    conf.leave_down = keys.flag("disableContainerInterface")
    conf.masquerade = Masquerade(keys)
    read_source_checks(keys, conf)
    conf.dns = read_own_dns(keys)
    conf.layer3 = bool(ipam.read_type(keys))
    conf.ipv6 = read_ipv6(keys)
    conf.unflooded = keys.flag("disableFlooding")
    check_name(conf.name)
    if conf.vlans.vlan and conf.is_gateway:
        check_name(vlans.interface_name(conf.name, conf.vlans.vlan))
    check_combinations(conf)
    if conf.unflooded:
        check_unflooded(keys, conf)
    options.choose(conf)
    return conf


def read_ending(keys: Section) -> Conf:
    """Read the keys that DEL and GC need: the keys for which ADD may have made state on the host."""
    conf = Conf()
    conf.unflooded = keys.flag("disableFlooding")
    if conf.unflooded:
        conf.name = keys.text("bridge") or DEFAULT_NAME
    conf.masquerade = Masquerade(keys, ending=True)
    read_source_checks(keys, conf)
    conf.layer3 = bool(ipam.read_type(keys))
    options.choose(conf, ending=True)
    return conf


def read_source_checks(keys: Section, conf: Conf) -> None:
    """Read ipspoofchk and macspoofchk. ipspoofchk implies macspoofchk."""
    conf.ip_check = keys.flag("ipspoofchk")
    conf.mac_check = keys.flag("macspoofchk") or conf.ip_check


def check_name(name: str) -> None:
    """Raise CniError 7 if no link can have this name."""
    try:
        check_ifname(name)
    except CniError as e:
        raise errors.bad_config(f'bridge "{name}": {e.msg}', e.details) from None


def check_combinations(conf: Conf) -> None:
    """Raise CniError 7 for keys that exclude each other."""
    if conf.hairpin and conf.promisc:
        raise errors.bad_config("cannot set hairpin mode and promiscuous mode at the same time")
    if conf.ip_check and not conf.layer3:
        raise errors.bad_config("cannot use ipspoofchk without IPAM",
                                "ipspoofchk is true, and without ipam.type the pod's addresses are unknown")
    if conf.leave_down and conf.layer3:
        raise errors.bad_config("cannot use IPAM when DisableContainerInterface flag is set")


def check_unflooded(keys: Section, conf: Conf) -> None:
    """Raise CniError 7 for keys that exclude disableFlooding."""
    if not conf.layer3:
        raise errors.bad_config("cannot use disableFlooding without IPAM",
                                "the bridge answers ARP for the pod's addresses, and without ipam.type they are "
                                "unknown")
    if ipam.named_type(keys) == "dhcp":
        raise errors.bad_config("cannot use disableFlooding with dhcp", "DHCP servers answer by broadcast")
    if conf.vlans.wanted:
        raise errors.bad_config("cannot use disableFlooding with vlan and vlanTrunk",
                                "the bridge answers ARP without a VLAN tag only")
