"""Define the contracts of firewall backends: a Protocol for each subject of kit/firewall/backends.py.

Each backend is a module. Only type checkers and tests import contract.py. Common to all contracts:

- `req` is the Request; its mode has the netlink sockets of the caller's namespace.
- `add` and `restore` raise CniError or NetlinkError. Before `add`, the caller registers `delete` as the rollback.
- `restore` adds ADD's rules and elements that are missing. It raises CniError 11 if another attachment has one of them.
- `delete` also removes the rules that the reference plugins added for the attachment. A second `delete` is no error.
- `gc` removes the rules and elements of attachments that are no longer valid, in the request's network only, and
  reports each by req.release().
- `missing` returns the first missing rule or element as text, for CHECK, or "".
- `status` raises CniError 50 if the backend cannot be used.
- `stores` lists the nftables sets that the server restores after a flush; [] for a backend without such sets.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any, Protocol

    from fastcni.kit.call.pod import PodLink
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.forward import keys as forward
    from fastcni.kit.firewall.portmap import keys as portmap

    Addresses = Sequence[tuple[bytes, int]]     # [(packed, prefix)]
else:
    Protocol = object


class Backend(Protocol):
    """The functions that every backend has."""

    def stores(self) -> list[Store]: ...


class Masquerade(Backend, Protocol):
    """Replace the source address of a pod's packets to other subnets by the node's address."""

    def add(self, req: Request, ips: Addresses) -> None: ...

    def restore(self, req: Request, ips: Addresses) -> None: ...

    def delete(self, req: Request, given: Collection[bytes], found: Collection[bytes]) -> None:
        """Remove the masquerade. given: packed addresses that ADD gave the pod, [] if unknown. found: packed addresses
        that the pod's link had when DEL deleted it."""

    def gc(self, req: Request) -> None: ...


class Portmap(Backend, Protocol):
    """Forward ports of the host to ports of the pod."""

    def add(self, req: Request, conf: portmap.Conf) -> None:
        """Map the ports. Raises CniError 11 if another attachment has one of the ports; the error names that
        attachment."""

    def restore(self, req: Request, conf: portmap.Conf) -> None: ...

    def delete(self, req: Request, conf: portmap.Conf) -> bool:
        """Remove the mappings. Return whether the attachment had a mapping."""

    def present(self, req: Request) -> bool:
        """Return whether the backend may have mappings of the attachment. Runs no program."""

    def missing(self, req: Request, conf: portmap.Conf) -> str: ...

    def gc(self, req: Request) -> None: ...

    def status(self, req: Request) -> None: ...


class Localnet(Backend, Protocol):
    """Let packets of the node from 127.0.0.1 reach pods."""

    def enable(self, req: Request, packed: bytes) -> None:
        """Let the node send packets from 127.0.0.1 over the link that leads to a pod's address."""

    def guard(self, req: Request) -> None:
        """Add the rules that drop packets to 127.0.0.0/8 from outside."""


class Forward(Backend, Protocol):
    """Make the host's firewall accept traffic of pods."""

    def filters(self, req: Request) -> bool:
        """Return whether this firewall filters the packets that the node forwards."""

    def add(self, req: Request, conf: forward.Conf) -> None: ...

    def restore(self, req: Request, conf: forward.Conf) -> None: ...

    def recorded(self, req: Request, conf: forward.Conf) -> bool:
        """Return whether the owner records show that ADD used this backend for the attachment."""

    def delete(self, req: Request, conf: forward.Conf) -> None: ...

    def missing(self, req: Request, conf: forward.Conf) -> str: ...

    def gc(self, req: Request, conf: forward.Conf) -> None: ...

    def status(self, req: Request) -> None: ...


class Ingress(Backend, Protocol):
    """Enforce a bridge's ingress policy, which says from which other bridges its pods accept packets. The policy lasts
    as long as the bridge."""

    def add(self, req: Request, conf: forward.Conf) -> None: ...

    def restore(self, req: Request, conf: forward.Conf) -> None: ...

    def delete(self, req: Request, conf: forward.Conf) -> None:
        """Remove the pod's elements. The elements of the pod's bridge stay."""

    def missing(self, req: Request, conf: forward.Conf) -> str: ...

    def gc(self, req: Request) -> None: ...


class Spoofcheck(Backend, Protocol):
    """Drop frames that a pod sends from an address of another pod or host. An option, see kit/call/option.py."""

    def add(self, req: Request, conf: object, link: PodLink, undo: Undo) -> None: ...

    def restore(self, req: Request, conf: object, previous: dict[str, Any]) -> None: ...

    def delete(self, req: Request, conf: object, found: Sequence[bytes], given: Sequence[bytes]) -> None: ...

    def check(self, req: Request, conf: object, link: PodLink) -> None: ...

    def gc(self, req: Request, conf: object) -> None: ...


class Solicitations(Backend, Protocol):
    """Send neighbour solicitations for a pod's addresses to the pod's MAC. bridge: a name. ips: packed addresses."""

    def add(self, req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
        """Add the pod's elements and the rules. Return whether this kernel supports the rules."""

    def restore(self, req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
        """Add the missing elements and rules. Return whether this kernel supports the rules."""

    def delete(self, req: Request, bridge: str) -> bool:
        """Delete the pod's elements. Return whether the pod had an element."""

    def missing(self, req: Request, bridge: str, mac: bytes, ips: Sequence[bytes]) -> bool:
        """Return whether an element or rule is missing, for CHECK."""

    def gc(self, req: Request) -> None: ...


CONTRACTS = {"masquerade": Masquerade, "portmap": Portmap, "localnet": Localnet, "forward": Forward, "ingress": Ingress,
             "spoofcheck": Spoofcheck, "solicitations": Solicitations}

if TYPE_CHECKING:
    from fastcni.kit.firewall import localnet, solicitations
    from fastcni.kit.firewall.forward import firewalld as forward_firewalld
    from fastcni.kit.firewall.forward import iptables as forward_iptables
    from fastcni.kit.firewall.forward import nftables as forward_nftables
    from fastcni.kit.firewall.ingress import iptables as ingress_iptables
    from fastcni.kit.firewall.ingress import nftables as ingress_nftables
    from fastcni.kit.firewall.masquerade import iptables as masquerade_iptables
    from fastcni.kit.firewall.masquerade import nftables as masquerade_nftables
    from fastcni.kit.firewall.portmap import iptables as portmap_iptables
    from fastcni.kit.firewall.portmap import nftables as portmap_nftables
    from fastcni.kit.firewall.spoofcheck import ip as spoofcheck_ip
    from fastcni.kit.firewall.spoofcheck import mac as spoofcheck_mac

    MASQUERADES: list[Masquerade] = [masquerade_nftables, masquerade_iptables]
    PORTMAPS: list[Portmap] = [portmap_nftables, portmap_iptables]
    LOCALNETS: list[Localnet] = [localnet]
    FORWARDS: list[Forward] = [forward_firewalld, forward_iptables, forward_nftables]
    INGRESSES: list[Ingress] = [ingress_nftables, ingress_iptables]
    SPOOFCHECKS: list[Spoofcheck] = [spoofcheck_mac, spoofcheck_ip]
    SOLICITATIONS: list[Solicitations] = [solicitations]
