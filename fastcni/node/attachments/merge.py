"""Merge sightings to attachments, and derive the state of each attachment, without reading files or kernel state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastcni.kernel import presence
from fastcni.kernel.rtnl import Link
from fastcni.kit.call import names
from fastcni.node.attachments import drops, refusals
from fastcni.node.attachments.attachment import (
    ADDRESS_FILE,
    CACHE,
    FILE,
    GONE,
    NAMESPACE,
    ORPHANED,
    RUNNING,
    UNKNOWN,
    Cached,
    HostPort,
    Inventory,
    NodeAttachment,
    Sighting,
)
from fastcni.node.attachments.caches import types_of
from fastcni.node.attachments.namespaces import Interface
from fastcni.runtime.records import Attachment
from fastcni.runtime.replaced import replaced, successors

Key = tuple[str, str, str]          # network, container id, ifname


@dataclass(slots=True)
class Facts:
    """The state of the node that the readers found.

    state_of: see kernel/presence.py. cached: {attachment: its cached result}. links: {index: link} of the host.
    interfaces: the interfaces inside of namespaces. all_namespaces: whether all namespaces could be entered. blind:
    [(directory, why)] of presence.unseen(). configured: {network: CNI types} of the configuration directory. firewall:
    whether nftables could be read. saved: {program: the lines that it printed} of iptables-save and its variants.
    dropping: nftables chains that drop pods' forwarded packets. members: addresses in fastcni's ipsets. chains:
    nftables chains at the hook forward. refusals: {name: rule} of the rules that drop pods' forwarded packets, which
    merge() adds.
    """

    state_of: Callable[[str, float], tuple[str, str]]
    sightings: list[Sighting] = field(default_factory=list)
    cached: dict[Key, Cached] = field(default_factory=dict)
    links: dict[int, Link] = field(default_factory=dict)
    interfaces: list[Interface] = field(default_factory=list)
    all_namespaces: bool = False
    blind: list[tuple[str, str]] = field(default_factory=list)
    configured: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    firewall: bool = False
    saved: dict[str, list[str]] = field(default_factory=dict)
    dropping: list[drops.Dropping] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    chains: list[refusals.NftChain] = field(default_factory=list)
    refusals: dict[str, refusals.Refusal] = field(default_factory=dict)

    def chains_that_drop(self) -> list[drops.Dropping]:
        """Return all chains that drop pods' forwarded packets, of both kinds of iptables and of nftables."""
        return [*drops.of_iptables(self.saved, self.members), *self.dropping]


class Group:
    """The sightings of one attachment. hashes: names.hashes() of the attachment; "" while one of its names is
    unknown."""

    __slots__ = ("container_id", "cut", "hashes", "ifname", "network", "sightings")

    def __init__(self, sighting: Sighting) -> None:
        self.network, self.container_id = sighting.network, sighting.container_id
        self.ifname, self.cut = sighting.ifname, sighting.cut
        self.sightings: list[Sighting] = []
        self.hashes = exact(sighting) or sighting.hashes

    @property
    def key(self) -> Key:
        return self.network, self.container_id, self.ifname

    def has(self, sighting: Sighting) -> bool:
        """Return whether the sighting may belong to this attachment: each name that both have is the same in both."""
        return (sighting.network in ("", self.network) and sighting.container_id in ("", self.container_id)
                and sighting.ifname in ("", self.ifname))

    def addresses(self) -> set[str]:
        return {ip for it in self.sightings for ip in it.addresses}

    def links(self) -> set[str]:
        return {name for it in self.sightings for name in it.links}


def merge(facts: Facts) -> Inventory:
    """Return the inventory: the attachments that the sightings show, and the sightings without an attachment."""
    groups = group([it for it in facts.sightings if it.container_id])
    kinds = {link.name: link.kind for link in facts.links.values()}
    interfaces, ended = Interfaces(facts, groups), ended_pods(facts, kinds)
    for each in groups:
        if each.key not in ended:
            each.sightings += interfaces.of(each, facts.cached.get(each.key))
    unowned = put_to_owners([it for it in facts.sightings if not it.container_id], groups)
    chains, masters = facts.chains_that_drop(), masters_of(facts)
    rules: list[refusals.IptablesForward | refusals.NftChain] = [
        *refusals.of_iptables(facts.saved, facts.members), *facts.chains]
    found = [dropped(attachment(each, facts, kinds, ended), chains, rules, masters, facts.refusals)
             for each in sorted(groups, key=lambda each: each.key)]
    return Inventory(tuple(found), tuple(unowned), tuple(dict.fromkeys(facts.unseen)))


def ended_pods(facts: Facts, kinds: Mapping[str, str]) -> dict[Key, tuple[str, str]]:
    """Return {attachment: (state, why)} of ended pods: another pod now has the path of their namespace, see replaced().
    kinds: {name: kind} of the host's links."""
    sightings = [it for it in facts.sightings if it.kind == CACHE]
    return replaced(successors(
        Attachment(it.container_id, it.network, it.ifname, netns=facts.cached[key].netns, host_links=it.links,
                   since=it.since)
        for it in sightings if (key := (it.network, it.container_id, it.ifname)) in facts.cached), lambda: kinds)


def group(sightings: Iterable[Sighting]) -> list[Group]:
    """Group the sightings that name a container by attachment. Sightings with more names come first; a sighting with
    fewer names joins the groups that may be its attachment."""
    groups: list[Group] = []
    by_hashes: dict[str, Group] = {}
    by_container: dict[str, list[Group]] = {}
    for it in sorted(sightings, key=vagueness):
        known = by_hashes.get(it.hashes or exact(it))
        if known:
            known.sightings.append(it)
            continue
        several = [] if it.hashes or exact(it) else [
            each for each in by_container.get(it.container_id, ()) if each.has(it)]
        if not several:
            several = [Group(it)]
            groups += several
            by_container.setdefault(it.container_id, []).extend(several)
            if several[0].hashes:
                by_hashes[several[0].hashes] = several[0]
        for each in narrowed(several, it):
            each.sightings.append(it)
    return groups


def put_to_owners(sightings: Iterable[Sighting], groups: list[Group]) -> list[Sighting]:
    """Add each sighting without a container to the groups that share an address or a link with the sighting. Return the
    sightings that fit no group."""
    by_thing: dict[str, list[Group]] = {}           # {an address or the name of a link: groups}
    for each in groups:
        for thing in each.addresses() | each.links():
            by_thing.setdefault(thing, []).append(each)
    unowned = []
    for it in sightings:
        owners = [each for thing in (*it.addresses, *it.links) for each in by_thing.get(thing, ())]
        for each in dict.fromkeys(owners):
            each.sightings.append(it)
        if not owners:
            unowned.append(it)
    return unowned


def vagueness(sighting: Sighting) -> int:
    """Return 0 for a sighting that has all names of its attachment, up to 3 for a sighting with few names."""
    return 0 if exact(sighting) else 1 if sighting.hashes else 2 if sighting.network else 3


def exact(sighting: Sighting) -> str:
    """Return names.hashes() of the attachment if the sighting has all its names; otherwise ""."""
    if sighting.network and sighting.container_id and sighting.ifname and not sighting.cut:
        return names.hashes(sighting.network, sighting.container_id, sighting.ifname)
    return ""


def narrowed(groups: list[Group], sighting: Sighting) -> list[Group]:
    """Return the groups that share an address with the sighting; if no group does, return all groups."""
    return [each for each in groups if each.addresses().intersection(sighting.addresses)] or groups


class Interfaces:
    """The interfaces inside namespaces, found by namespace and by address.

    holders: {address: the attachments that hold it by an address file or a cached result}. If another attachment holds
    an address, host-local has given the address to a new pod, and the interface with the address is the new pod's.
    """

    def __init__(self, facts: Facts, groups: Iterable[Group]) -> None:
        self.links = facts.links
        self.holders: dict[str, set[Key]] = {}
        for each in groups:
            for ip in (ip for it in each.sightings if it.kind in (ADDRESS_FILE, CACHE) for ip in it.addresses):
                self.holders.setdefault(ip, set()).add(each.key)
        self.by_namespace: dict[str, list[Interface]] = {}
        self.by_address: dict[str, list[Interface]] = {}
        for it in facts.interfaces:
            self.by_namespace.setdefault(it.namespace, []).append(it)
            for ip in it.addresses if it.linked else ():
                self.by_address.setdefault(ip, []).append(it)

    def of(self, each: Group, cached: Cached | None) -> list[Sighting]:
        """Return the sightings of the pod's interface: in the namespace that the cached result names, otherwise in each
        namespace with an address of the pod."""
        if cached and cached.netns:
            found = self.by_namespace.get(cached.netns, [])
        else:
            found = [it for ip in each.addresses() if each.key in self.holders.get(ip, (each.key,))
                     for it in self.by_address.get(ip, ())]
        return [self.sighting(it) for it in dict.fromkeys(found) if each.ifname in ("", it.name)]

    def sighting(self, interface: Interface) -> Sighting:
        host = interface.host_of(self.links)
        return Sighting(NAMESPACE, interface.namespace, f"{interface.name} {' '.join(interface.addresses)}".strip(),
                        links=(host.name,) if host else (), alive=True)


def attachment(each: Group, facts: Facts, kinds: Mapping[str, str],
               ended: Mapping[Key, tuple[str, str]]) -> NodeAttachment:
    """Return the NodeAttachment of a group. kinds: {name: kind} of the host's links. ended: see ended_pods()."""
    cached = facts.cached.get(each.key)
    order = (CACHE, NAMESPACE, ADDRESS_FILE, FILE)
    sightings = sorted(each.sightings, key=lambda it: order.index(it.kind) if it.kind in order else len(order))
    links = tuple(dict.fromkeys(name for it in sightings for name in it.links if kinds.get(name, "bridge") != "bridge"))
    # A veth pair shows that the pod runs, because the kernel deletes the pair with the pod; an ifb stays.
    state, why = ended.get(each.key) or state_of(
        each, cached, [name for name in links if kinds[name] == "veth"], facts)
    authors = {it.author for it in sightings if it.author}
    namespaces = [it.place for it in sightings if it.kind == NAMESPACE]
    return NodeAttachment(
        each.network, each.container_id, each.ifname, state, why,
        cached.netns if cached and cached.netns else next(iter(namespaces), ""),
        tuple(dict.fromkeys(ip for it in sightings for ip in it.addresses)), ports_of(sightings), links,
        plugins_of(each, cached, facts), since_of(sightings), authors.pop() if len(authors) == 1 else "",
        tuple(sightings), cached)


def masters_of(facts: Facts) -> dict[str, str]:
    """Return {name of a link: name of its master, for example of a bridge}."""
    return {link.name: facts.links[link.master].name for link in facts.links.values() if link.master in facts.links}


def dropped(attachment: NodeAttachment, chains: Sequence[drops.Dropping],
            rules: Sequence[refusals.IptablesForward | refusals.NftChain], masters: Mapping[str, str],
            seen: dict[str, refusals.Refusal]) -> NodeAttachment:
    """Return the attachment with `dropped_by`: the names of the chains that do not accept the pod's forwarded packets,
    and of the rules that drop them. Add these rules to `seen`, {name: rule}."""
    if attachment.state != RUNNING or not {drops.FIREWALL, *drops.ROUTED}.intersection(attachment.plugins):
        return attachment
    ways = [masters.get(name, name) for name in attachment.links]
    links = {*attachment.links, *ways}
    found = dict.fromkeys(chain.name for chain in chains for ip in attachment.addresses
                          if not chain.lets_through(ip, links))
    refused = {rule.name: rule for each in rules for ip in attachment.addresses for link in ways
               if (rule := each.refusal(ip, link))}
    seen.update(refused)
    return replace(attachment, dropped_by=(*found, *refused))


def plugins_of(each: Group, cached: Cached | None, facts: Facts) -> tuple[str, ...]:
    """Return the CNI types of the configuration at ADD; if that configuration is unknown, of the network's current
    one."""
    return types_of(cached.config) if cached and cached.config else facts.configured.get(each.network, ())


def state_of(each: Group, cached: Cached | None, links: Sequence[str], facts: Facts) -> tuple[str, str]:
    """Return (state, why) of a group. links: names of the attachment's veth links on the host."""
    why = ""
    if cached:
        known, why = facts.state_of(cached.netns, since_of(each.sightings))
        if known == presence.ALIVE:
            return RUNNING, why
        if known == presence.GONE:
            return GONE, why
    for it in each.sightings:
        if it.alive:
            return RUNNING, (f"{it.place} has its address" if it.kind == NAMESPACE else
                             f"its link {' '.join(it.links)} exists")
    if links and not cached:
        return RUNNING, f"its link {' '.join(links)} exists"
    if cached:
        return UNKNOWN, why
    if facts.all_namespaces:
        return ORPHANED, "no cached result, and no network namespace has its address"
    return UNKNOWN, "no cached result, and not all network namespaces could be seen"


def since_of(sightings: Iterable[Sighting]) -> float:
    """Return when the attachment was added: the earliest time of its files in Unix seconds, 0.0 without files."""
    return min((it.since for it in sightings if it.since), default=0.0)


def ports_of(sightings: Iterable[Sighting]) -> tuple[HostPort, ...]:
    """Return the host ports, each once. A mapping in the firewall replaces the same mapping in the runtime's
    request."""
    found: dict[tuple[str, str, int, bool], HostPort] = {}
    for it in sightings:
        for port in it.ports:
            found[port.protocol, port.host_ip, port.port, ":" in port.to] = port
    return tuple(sorted(found.values()))
