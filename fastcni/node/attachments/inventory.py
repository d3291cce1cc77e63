"""Take the inventory of this node's attachments. All commands use this module to find attachments.

    collect(Places())       reads the result caches, host-local's address files, nftables, iptables, links and network
                            namespaces, and merges the results to attachments

The inventory changes nothing. Without root, collect() finds fewer attachments; `Inventory.unseen` lists what collect()
could not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastcni.kernel import presence, uapi, wire
from fastcni.kit.datapath import pins
from fastcni.kit.links import find
from fastcni.node import confs
from fastcni.node.attachments import (
    address_dirs,
    caches,
    drops,
    iptables,
    links,
    namespaces,
    pod_files,
    refusals,
    tables,
)
from fastcni.node.attachments.attachment import FASTCNI, MAP, REDIRECTED, RESTRICTED, Inventory, Sighting
from fastcni.node.attachments.merge import Facts, merge
from fastcni.node.own import datapath
from fastcni.runtime.cache import DEFAULT_DIR, Cache
from fastcni.runtime.cni import DEFAULT_CONF_DIR
from fastcni.spec.address import ip_text


@dataclass(frozen=True, slots=True)
class Places:
    """The places to read. cache_dirs: directories with a subdirectory `results`. data_dirs: dataDirs of host-local, in
    addition to those in configurations. path: the directories of programs, separated by ":"; "" for the usual
    directories. quick: enter no namespace and run no program. enter_pods: read also the interfaces in the pods'
    namespaces; for a moment these namespaces then cannot be unmounted."""

    conf_dir: str = DEFAULT_CONF_DIR
    cache_dirs: tuple[str, ...] = (DEFAULT_DIR,)
    data_dirs: tuple[str, ...] = ()
    path: str = ""
    quick: bool = False
    enter_pods: bool = True


@dataclass(slots=True)
class Seen:
    """The results of all readers. facts: the input of merge(). files: the configuration files. notes: address files
    without an attachment. data_dirs: the dataDirs of host-local."""

    facts: Facts
    files: list[confs.ConfFile]
    notes: list[address_dirs.Note] = field(default_factory=list)
    data_dirs: list[str] = field(default_factory=list)


def collect(places: Places) -> Inventory:
    """Return the inventory of this node, as the calling thread's network namespace shows it."""
    return merge(look(places).facts)


def look(places: Places) -> Seen:
    """Run all readers. If a reader cannot read a part, record that in `unseen`, and run the other readers."""
    unseen: list[str] = []
    files = confs.read_quietly(places.conf_dir, unseen)
    nets = confs.networks(files)
    facts = Facts(state_of=presence.state_of, unseen=unseen, configured={
        net.name: caches.types_of({"plugins": [plugin.values for plugin in net.plugins]}) for net in nets})
    seen = Seen(facts, files)
    for where in dict.fromkeys(places.cache_dirs):
        for sighting, cached in caches.read_cache(Cache(where), unseen):
            facts.sightings.append(sighting)
            facts.cached[sighting.network, sighting.container_id, sighting.ifname] = cached
    configurations = [*confs.values_of(nets), *(it.config for it in facts.cached.values())]
    seen.data_dirs = list(dict.fromkeys([*address_dirs.data_dirs(configurations), *places.data_dirs]))
    for where in seen.data_dirs:
        look_at_addresses(seen, where, address_dirs.read_owner)
    for where in address_dirs.cluster_dirs(configurations):
        look_at_addresses(seen, where, address_dirs.read_space_owner)
    for kind, directory in pod_files.directories(configurations):
        facts.sightings += pod_files.read_directory(kind, directory, unseen)
    look_at_links(facts)
    with_socket(facts, "datapath ebpf", uapi.NETLINK_ROUTE, lambda sock: look_at_datapath(facts, sock))
    look_at_nftables(facts)
    if places.quick:
        return seen
    look_at_iptables(facts, places.path)
    look_at_drops(facts)
    if not places.enter_pods:
        return seen
    refused: list[str] = []
    cached_paths = [it.netns for it in facts.cached.values() if it.netns]
    facts.interfaces = namespaces.read_all(cached_paths, refused)
    facts.blind = list(presence.unseen(cached_paths))
    unseen += [*refused, *(f"network namespaces: {directory} {why}" for directory, why in facts.blind)]
    facts.all_namespaces = not refused and not facts.blind and presence.sees_processes()
    return seen


def look_at_addresses(seen: Seen, data_dir: str, read: address_dirs.Reader) -> None:
    """Read the address files of all networks or address spaces in a dataDir."""
    for network in address_dirs.networks(data_dir, seen.facts.unseen):
        for found in address_dirs.read_directory(data_dir, network, seen.facts.unseen, read):
            if isinstance(found, address_dirs.Note):
                seen.notes.append(found)
            else:
                seen.facts.sightings.append(found)


def look_at_links(facts: Facts) -> None:
    """Read the host's links."""
    with_socket(facts, "links", uapi.NETLINK_ROUTE, lambda sock: facts.links.update(
        {link.index: link for link in find.all_links(sock)}))
    facts.sightings += links.read_links(facts.links.values())


def look_at_datapath(facts: Facts, sock: wire.Socket) -> None:
    """Read the pods of the datapath ebpf. Raises OSError."""
    found = datapath.read(sock)
    for packed, pod in found.pods.items() if found else ():
        ip, link = ip_text(packed), facts.links.get(pod.link)
        if link:                        # if the link no longer exists, GC or the server removes the element
            facts.sightings.append(Sighting(MAP, f"{pins.directory(sock)}/pods-{pins.LAYOUT}",
                                            f"{ip} {RESTRICTED if pod.restricted else REDIRECTED}", addresses=(ip,),
                                            links=(link.name,), author=FASTCNI, alive=True))


def look_at_nftables(facts: Facts) -> None:
    """Read the elements, rules and flowtables of attachments from nftables."""
    def name_of(index: int) -> str:
        link = facts.links.get(index)
        return link.name if link else ""

    def read(sock: wire.Socket) -> None:
        names = {link.name for link in facts.links.values()}
        facts.sightings += [*tables.read_elements(sock, name_of), *tables.read_rules(sock),
                            *tables.read_flowtable(sock, names)]

    facts.firewall = with_socket(facts, "nftables", uapi.NETLINK_NETFILTER, read)


def look_at_iptables(facts: Facts, path: str) -> None:
    """Read the rules of attachments from iptables, if nftables could be read."""
    if not facts.firewall:
        return                              # without permission iptables-save would report the same error four times
    for program in iptables.installed(iptables.VARIANTS, path) or iptables.installed(iptables.PROGRAMS, path):
        family = "ip6tables" if "ip6tables" in program else "iptables"
        try:
            lines = facts.saved[program.rpartition("/")[2]] = iptables.save(program)
            facts.sightings += iptables.read_lines(family, lines)
        except iptables.Unusable as e:
            facts.unseen.append(str(e))


def look_at_drops(facts: Facts) -> None:
    """Read which nftables chains drop pods' forwarded packets, and which addresses are in fastcni's ipsets."""
    def read(sock: wire.Socket) -> None:
        facts.dropping += drops.of_nftables(sock)
        facts.chains += refusals.of_nftables(sock)
        if any("--match-set fastcni-forward" in line for lines in facts.saved.values() for line in lines):
            facts.members |= drops.members(sock, {ip for it in facts.sightings for ip in it.addresses})

    if facts.firewall:
        with_socket(facts, "chains that drop forwarded packets", uapi.NETLINK_NETFILTER, read)


def with_socket(facts: Facts, what: str, protocol: int, read: Callable[[wire.Socket], object]) -> bool:
    """Call read(sock). Record a kernel error in `unseen`. Return whether the call succeeded."""
    try:
        with wire.open_socket(protocol) as sock:
            read(sock)
    except OSError as e:
        facts.unseen.append(f"{what}: {e}")
        return False
    return True
