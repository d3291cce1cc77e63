"""Explain an address, a port, a link, a chain or a container id on this node: what it is, and which attachment owns it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastcni.kernel import uapi, wire
from fastcni.kit.call import names
from fastcni.kit.firewall import backends
from fastcni.kit.firewall.masquerade import nftables as masquerade_nftables
from fastcni.kit.firewall.portmap import nftables_rules
from fastcni.node import confs, pod_policies
from fastcni.node.attachments import listeners, tables
from fastcni.node.attachments.attachment import ELEMENT, GONE, ORPHANED, RULE, Inventory, NodeAttachment
from fastcni.node.attachments.inspect import matching
from fastcni.node.attachments.inventory import Places, Seen, look
from fastcni.node.attachments.links import VETH
from fastcni.node.attachments.merge import merge
from fastcni.node.cluster import site
from fastcni.node.ranges import ranges_of
from fastcni.runtime.parse import flattened
from fastcni.spec import address

SHORT_ID = 12                   # number of characters of a container id in a sentence
ADDRESS, PORT, LINK, CHAIN, CONTAINER = "address", "port", "link", "chain", "container"
PORT_TEXT = re.compile(r":?(\d{1,5})(?:/(tcp|udp|sctp))?", re.IGNORECASE)
POD_CHAINS = {"CNI-DN-": "port mappings", "CNI-SN-": "source NAT of port mappings, by an old version of portmap",
              "CNI-": "ipMasq"}
SHARED_CHAINS = {
    "CNI-HOSTPORT-DNAT": "portmap: leads to the chain CNI-DN-... of each pod with port mappings",
    "CNI-HOSTPORT-SETMARK": "portmap: marks packets that need masquerade",
    "CNI-HOSTPORT-MASQ": "portmap: masquerades marked packets",
    "CNI-FORWARD": "firewall: accepts packets from and to pods",
    "CNI-ADMIN": "firewall: the administrator's own rules, before those of pods",
    "CNI-ISOLATION-STAGE-1": "firewall: ingressPolicy of bridges",
    "CNI-ISOLATION-STAGE-2": "firewall: ingressPolicy of bridges",
    "hostports": "portmap: looks up host ports in the maps hostports4 and hostports6",
    "hostport-prerouting": "portmap: packets from outside to an address of the node",
    "hostport-output": "portmap: packets of the node to an address of the node",
    "hostport-postrouting": "portmap: masquerades connections whose answers would otherwise bypass the node",
    "postrouting": "ipMasq: looks up pods in the maps pods4 and pods6",
    "ingress-policy": "firewall: ingressPolicy of bridges",
    "loopback": "portmap: drops packets for or from 127.0.0.0/8 that do not come by lo",
    "prerouting": "bridge: macspoofchk of the ports in the set guarded",
    "addresses": "bridge: ipspoofchk of the ports in the set bound",
    "neighbours": "bridge: ipspoofchk, neighbour discovery and multicast reports of IPv6",
}


LEADS, LOST, LED, NOT_SEEN = "leads to", "should lead to", "led to", "is meant to lead to"
VERBS = {LEADS: "", LOST: ". The kernel has no such mapping: `fastcni restore` adds it again",
         LED: ". The kernel has no such mapping, and the pod is gone",
         NOT_SEEN: ". The kernel's mappings cannot be read"}
GO_MAPPING = "port mapping"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one object. kind: ADDRESS, PORT, LINK, CHAIN or CONTAINER. what: a sentence. owners: the
    attachments that own the object."""

    kind: str
    what: str
    owners: tuple[NodeAttachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """The state of the node that the explanations use. ask_stores, agent_folder: see explain()."""

    seen: Seen
    inventory: Inventory
    ask_stores: bool
    agent_folder: str

    def policies(self, ip: str) -> Iterator[str]:
        """Yield sentences from the agents about an address: its policies, domain names and egress address."""
        if self.ask_stores:
            yield from pod_policies.texts_on(confs.networks(self.seen.files), ip, self.agent_folder)

    def owners(self, owns: Callable[[NodeAttachment], bool]) -> tuple[NodeAttachment, ...]:
        return tuple(it for it in self.inventory.attachments if owns(it))

    def chains(self) -> set[str]:
        """Return the names of the chains and sets in the kernel. Raises NetlinkError."""
        found = {line[1:].partition(" ")[0] for lines in self.seen.facts.saved.values() for line in lines
                 if line.startswith(":")}
        with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
            return found | tables.chains_and_sets(sock)


def explain(places: Places, text: str, *, ask_stores: bool = True,
            agent_folder: str = "") -> tuple[list[Explanation], Inventory]:
    """Return all explanations of `text` on this node, and the inventory. Without an explanation the list is empty.

    ask_stores: for an address, also ask the store of a cluster-wide range, and ask the agent about network policies.
    agent_folder: the --folder of an agent that no network names, or "".
    """
    seen = look(places)
    node = Node(seen, merge(seen.facts), ask_stores, agent_folder)
    found = [it for kind in (explain_address, explain_port, explain_link, explain_chain, explain_container)
             for it in kind(node, text)]
    return found, node.inventory


def explain_address(node: Node, text: str) -> Iterator[Explanation]:
    """Explain an address of a pod, of the node, or of a range."""
    try:
        packed = address.read_ip(text.partition("/")[0].strip("[]"))
    except ValueError:
        return
    ip = address.ip_text(packed)
    owners = node.owners(lambda it: ip in it.addresses)
    if owners:
        yield Explanation(ADDRESS, f"{ip} is the address of {those(owners)}", owners)
    for note in node.seen.notes:
        if note.path.endswith(f"/{ip}"):
            yield Explanation(ADDRESS, f"{note.path} keeps {ip}: {note.why}")
    for name, own in listeners.own_addresses():
        if own == ip:
            yield Explanation(ADDRESS, f"{ip} is an address of this node, on link {name}")
    for it in ranges_of(confs.networks(node.seen.files)):
        if packed == it.range.gateway:
            yield Explanation(ADDRESS, f"{ip} is the gateway of network {it.network} ({it.range.network()})")
        elif it.range.contains(packed):
            held = "" if owners else "; no address file has it, so the next ADD may get it"
            yield Explanation(ADDRESS, f"{ip} is in the range {it.range} of network {it.network} "
                              f"(files in {it.directory}){held}")
    if node.ask_stores:
        yield from (Explanation(ADDRESS, one) for one in site.texts_on(confs.networks(node.seen.files), packed))
    yield from (Explanation(ADDRESS, one) for one in node.policies(ip))
    for left in node.inventory.unowned:
        if ip in left.addresses:
            yield Explanation(ADDRESS, f"{left.place} has {ip}, and no attachment has that address")


def explain_port(node: Node, text: str) -> Iterator[Explanation]:
    """Explain a host port, given as 8080, 8080/tcp or 192.0.2.1:8080."""
    host_ip, _, rest = text.rpartition(":")
    found = PORT_TEXT.fullmatch(rest)
    if not found or not 0 < int(found[1]) < 65536:
        return
    host_ip, port, protocol = host_ip.strip("[]"), int(found[1]), (found[2] or "").lower()

    def fits(attachment: NodeAttachment) -> bool:
        return any(each.port == port and protocol in ("", each.protocol) and
                   (not host_ip or each.host_ip in ("", host_ip)) for each in attachment.ports)

    owners = node.owners(fits)
    verbs = {it.name: verb_of(node, it, port) for it in owners}
    for verb in dict.fromkeys(verbs.values()):
        group = tuple(it for it in owners if verbs[it.name] == verb)
        mapped = sorted({str(each) for it in group for each in it.ports if each.port == port})
        yield Explanation(PORT, f"port {port} of this node {verb} {those(group)}: {', '.join(mapped)}"
                          + VERBS[verb], group)
    for listener in listeners.listening([port], protocol):
        yield Explanation(PORT, f"{listener}; packets from outside go to the pod" if LEADS in verbs.values()
                          else str(listener))


def verb_of(node: Node, attachment: NodeAttachment, port: int) -> str:
    """Return the key of VERBS that says whether the kernel has the mapping of the host port to the attachment."""
    for each in attachment.sightings:
        # A rule that the reference plugin portmap adds to nftables names the container, but not the port.
        if each.kind in (ELEMENT, RULE) and (any(own.port == port for own in each.ports) or each.text == GO_MAPPING):
            return LEADS
    if not node.seen.facts.firewall:
        return NOT_SEEN
    return LED if attachment.state in (GONE, ORPHANED) else LOST


def explain_link(node: Node, text: str) -> Iterator[Explanation]:
    """Explain a link of the host, or the deleted link of a pod."""
    links = node.seen.facts.links
    link = next((it for it in links.values() if it.name == text), None)
    owners = node.owners(lambda it: any(text in each.links for each in it.sightings) or text in it.links)
    if link is None:
        if owners:
            yield Explanation(LINK, f"{text} was the link of {those(owners)}; the link is no longer on this node",
                              owners)
        return
    kind = link.kind or "physical or unknown kind"
    if link.kind == "bridge":
        ports = {it.name for it in links.values() if it.master == link.index}
        members = node.owners(lambda it: bool(ports.intersection(it.links)))
        used = [net.name for net in confs.networks(node.seen.files) for plugin in flattened(net.plugins)
                if plugin.type == "bridge" and plugin.values.get("bridge", "cni0") == text]
        of = f", the bridge of {those_networks(used)}" if used else ""
        yield Explanation(LINK, f"{text} is a bridge{of}, with {len(ports)} {'port' if len(ports) == 1 else 'ports'}",
                          members)
    elif owners:
        yield Explanation(LINK, f"{text} ({kind}, index {link.index}) leads to {those(owners)}", owners)
    elif link.kind == "veth" and VETH.fullmatch(text):
        yield Explanation(LINK, f"{text} is a veth whose name is of the form that CNI plugins use, and no attachment "
                          "has it")
    else:
        yield Explanation(LINK, f"{text} is a link of this node ({kind}, index {link.index}); no attachment has it")


def explain_chain(node: Node, text: str) -> Iterator[Explanation]:
    """Explain a chain of iptables or nftables, or a set of fastcni's tables, also if it does not exist now."""
    for it in meaning_of_chain(node, text):
        exists = text in node.chains()
        yield it if exists else replace(it, what=f"there is no chain or set {text} now. By its name: {it.what}")


def meaning_of_chain(node: Node, text: str) -> Iterator[Explanation]:
    """Explain the name of a chain or set, also if the kernel has no such chain or set."""
    for prefix, what in POD_CHAINS.items():
        owners = node.owners(lambda it: names.container_chain(
            prefix, it.network, it.container_id) == text)          # noqa: B023 - called in this iteration
        if owners:
            yield Explanation(CHAIN, f"{text} is the iptables chain of {those(owners)}, for {what}", owners)
            return
    if text in SHARED_CHAINS:
        yield Explanation(CHAIN, f"{text} is shared by all pods. {SHARED_CHAINS[text]}")
        return
    for prefix, what in ((masquerade_nftables.SUBNET, "ipMasq"), (nftables_rules.FROM, "port mappings")):
        if text.startswith(prefix):
            yield Explanation(CHAIN, f"{text} is a chain of table fastcni, for {what} of the pods in one subnet")
            return
    places = {f"{store.table} {text}" for store in backends.stores() if text in store.sets}
    if places:
        owners = node.owners(lambda it: any(each.place.endswith(f" {place}") for each in it.sightings
                                            for place in places))
        yield Explanation(CHAIN, f"{text} is a set of fastcni's nftables table", owners)
    elif re.fullmatch(r"CNI-(DN-|SN-)?[0-9a-f]{20,24}", text):
        yield Explanation(CHAIN, f"{text} has the form of a pod's iptables chain, and no attachment here has that "
                          "name: it was left by a pod, or the runtime's cache is elsewhere (--cache-dir)")


def explain_container(node: Node, text: str) -> Iterator[Explanation]:
    """Explain a container id, the beginning of a container id, or NAMESPACE/NAME of a pod."""
    owners = tuple(matching(node.inventory.attachments, text))
    if owners and text.strip("/"):
        yield Explanation(CONTAINER, f"{text} is {those(owners)}", owners)
    if len(owners) == 1:
        yield from (Explanation(CONTAINER, one) for ip in owners[0].addresses for one in node.policies(ip))


def those(owners: tuple[NodeAttachment, ...]) -> str:
    """Return attachments as text: "eth0 of container c1 in network net1"; "3 attachments" for more than two."""
    if len(owners) > 2:
        return f"{len(owners)} attachments"
    return " and ".join(f"{it.ifname or 'an interface'} of {named(it)}"
                        + (f" in network {it.network}" if it.network else "") for it in owners)


def named(attachment: NodeAttachment) -> str:
    """Return the pod of an attachment as text: "container c1", or "pod shop/web (container c1)"."""
    container = f"container {attachment.container_id[:SHORT_ID]}"
    return f"pod {attachment.pod} ({container})" if attachment.pod else container


def those_networks(found: list[str]) -> str:
    return f"network {found[0]}" if len(found) == 1 else f"networks {', '.join(found)}"


def document(explanation: Explanation, attachment: Callable[[NodeAttachment], dict[str, Any]]) -> dict[str, Any]:
    """Return an explanation as a JSON value."""
    return {"kind": explanation.kind, "what": explanation.what,
            "owners": [attachment(owner) for owner in explanation.owners]}
