"""Check the server, and the addresses, rules and links of pods."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Collection, Iterator

import fastcni
from fastcni.kernel import nft, uapi, wire
from fastcni.kit.firewall import backends, doubled
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.adopt import gc_command, gc_networks
from fastcni.node.attachments.attachment import (
    ADDRESS_FILE,
    CACHE,
    ELEMENT,
    GONE,
    LINK,
    ORPHANED,
    RULE,
    RUNNING,
    NodeAttachment,
)
from fastcni.node.attachments.caches import addresses_of, types_of
from fastcni.node.checks.findings import ERROR, NEARLY, WARNING, Finding, Node, plural, some
from fastcni.node.ranges import ranges_of
from fastcni.runtime.records import LO_IFNAME
from fastcni.server import status

LEAST_FREE_BYTES = 1 << 16      # a result and an address file take one block each, usually of 4 KiB
IPV4, IPV6 = "IPv4", "IPv6"
MASQUERADE_SETS, PORT_SETS = ("pods",), ("hostports", "hostip-hostports")      # sets, named without 4 or 6
# {key of the plugin bridge: the set with an element for each guarded pod}. ipspoofchk also turns macspoofchk on
GUARDS = {"macspoofchk": "guarded", "ipspoofchk": "bound"}
ISOLATION = "ingressPolicy isolated"
IPTABLES_ISOLATION = "CNI-ISOLATION-STAGE-1"
DECLINES = "the server declines the request for its state"


def server(node: Node) -> Iterator[Finding]:
    """If a server runs, it answers, and its queue is not full."""
    if not node.socket:
        return
    start = "systemctl restart fastcni.service"
    if not os.path.lexists(node.socket):
        unit = os.path.join(node.unit_dir, "fastcni.socket")
        if os.path.exists(unit):
            yield Finding(WARNING, f"{unit} is installed, and there is no socket {node.socket}",
                          "all requests run one-shot, and flushed firewall rules are not restored",
                          "systemctl enable --now fastcni.socket")
        return
    try:
        found = status.ask(node.socket)
    except (PermissionError, FileNotFoundError) as e:
        node.unseen.append(f"server {node.socket}: {e.strerror}")
        return
    except TimeoutError:
        yield Finding(ERROR, f"the server at {node.socket} does not answer",
                      "plugins wait for the server before they go one-shot", start)
        return
    except OSError as e:
        what = "no server listens" if e.errno == errno.ECONNREFUSED else f"the server refuses ({e.strerror or e})"
        yield Finding(WARNING, f"{node.socket} exists, but {what}", "each plugin tries the socket in vain, then runs "
                      "one-shot", start)
        return
    if found is None:
        node.unseen.append(f"server {node.socket}: {DECLINES}; its log says why (event request_declined)")
        return
    if found["version"] != fastcni.__version__:
        yield Finding(WARNING, f"the server is of {found['version']}, this is fastcni {fastcni.__version__}",
                      "the server runs that version's code until it is restarted", start)
    if found["waiting"] >= found["queueSize"] * NEARLY:
        yield Finding(ERROR, f"the server's queue is full: {found['waiting']} of {found['queueSize']} requests wait",
                      "the server rejects further requests with code 11",
                      "journalctl -u fastcni shows the slow requests; see also `fastcni serve --queue-size`")
    if found["watching"] == 0 and node.inventory.attachments:
        yield Finding(WARNING, "the server watches no network namespace", "flushed firewall rules are not restored",
                      f"{start}; the log says why (event watch_unavailable)")


def ranges(node: Node) -> Iterator[Finding]:
    """Ranges of host-local have free addresses."""
    held: dict[str, list[str]] = defaultdict(list)
    for it in node.seen.facts.sightings:
        if it.kind == ADDRESS_FILE:
            held[os.path.dirname(it.place)].append(it.text)
    for note in node.seen.notes:
        held[os.path.dirname(note.path)].append(os.path.basename(note.path))
    for one in ranges_of(node.networks):
        count, total = one.held(held[one.directory]), one.range.size()
        if count >= total * NEARLY:
            full = count >= total
            yield Finding(ERROR if full else WARNING,
                          f"range {one.range} of network {one.network} is {'' if full else 'nearly '}full: {count} of "
                          f"{total} addresses are held", "ADD fails without a free address",
                          f"fastcni gc {one.network} releases addresses of pods that are gone; else enlarge the range")


def state_directories(node: Node) -> Iterator[Finding]:
    """The directories of cached results and of addresses are writable, and have free space."""
    seen: set[int] = set()              # devices, to yield only one finding for each file system
    for path in (*(os.path.join(it, "results") for it in node.places.cache_dirs), *node.seen.data_dirs):
        path = os.path.abspath(path)            # absolute, so that the loop below ends at "/"
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        device, found = os.stat(path).st_dev, os.statvfs(path)
        if device in seen:
            continue
        seen.add(device)
        if found.f_flag & os.ST_RDONLY:
            what, do = "is on a read-only file system", f"findmnt -T {path} shows the mount: mount it read-write"
        elif found.f_bfree * found.f_frsize < LEAST_FREE_BYTES:
            what, do = "is on a full file system", f"df -h {path} shows the file system: free some space there"
        elif found.f_files and not found.f_ffree:
            what, do = "is on a file system without free inodes", f"df -i {path} shows the mount: remove files there"
        else:
            continue
        yield Finding(ERROR, f"{path} {what}", "ADD and DEL fail, since they cannot write results and addresses", do)


def namespaces(node: Node) -> Iterator[Finding]:
    """This process sees the network namespaces of all pods."""
    for directory, why in node.seen.facts.blind:
        yield Finding(WARNING, f"{directory} {why}", "pods whose namespace cannot be seen count as unknown: `fastcni "
                      "gc` and the server keep their addresses and rules, and `fastcni restore` skips these pods",
                      f"in a container: mount {directory} of the node by rslave (Kubernetes: mountPropagation: "
                      "HostToContainer); on the node: remove files there that no pod uses")


def stale(node: Node) -> Iterator[Finding]:
    """Pods that no longer exist have no address and no rule."""
    left: dict[tuple[str, str], list[NodeAttachment]] = defaultdict(list)
    network_of = gc_networks(node.inventory, node.networks)
    for it in node.inventory.attachments:
        if it.state in (GONE, ORPHANED):
            left[it.network, it.network if it.ifname == LO_IFNAME else network_of(it)].append(it)
    configured = {net.name for net in node.networks}
    for (network, of_gc), found in left.items():
        kinds = [each.kind for it in found for each in it.sightings]
        parts = [plural(kinds.count(kind), noun) for kind, noun in (
            (ADDRESS_FILE, "address"), (ELEMENT, "firewall element"), (RULE, "firewall rule"), (CACHE, "cached result"))
            if kind in kinds]
        names = some(it.container_id[:12] for it in found)
        what = f"network {network or '(unknown)'} has {plural(len(found), 'pod')} that {verb(found)} gone ({names})"
        do = gc_command(node.inventory, of_gc, node.places)
        if " --all" in do:
            do = f"if no pod of {of_gc} runs: {do}"
        if of_gc not in configured and all(it.ifname == LO_IFNAME for it in found) and {*kinds} == {CACHE}:
            do = f"rm {' '.join(each.place for it in found for each in it.sightings)}"  # no file names the network
        elif of_gc not in configured:
            do = f"no configuration has this network: put the network's file back, then {do}"
        yield Finding(WARNING, f"{what}: {', '.join(parts) or 'links'} left", "addresses and ports of these pods stay "
                      "in use; the next pod with such an address may get the old pod's rules", do)


def verb(found: list[NodeAttachment]) -> str:
    return "is" if len(found) == 1 else "are"


def unowned(node: Node) -> Iterator[Finding]:
    """No link and no rule of a CNI plugin is without an attachment."""
    facts = node.seen.facts
    if not (facts.firewall and facts.all_namespaces):
        return                              # the attachments may be in parts of the node that could not be read
    for kind, noun, do in ((RULE, "firewall rule", "fastcni explain ADDRESS"), (LINK, "link", "ip link delete {}")):
        found = [it for it in node.inventory.unowned if it.kind == kind]
        if found:
            yield Finding(WARNING, f"{plural(len(found), noun)} of no attachment: {some(it.place for it in found)}",
                          "a pod was removed without DEL, or its runtime keeps its cache elsewhere (--cache-dir)",
                          f"if no pod has it: {do.format(found[0].place)}")


def damaged_files(node: Node) -> Iterator[Finding]:
    """Each address file names its pod."""
    paths: dict[str, list[str]] = defaultdict(list)
    for note in node.seen.notes:
        paths[note.why].append(note.path)
    for why, found in paths.items():
        rm = "rm -r" if any(map(os.path.isdir, found)) else "rm"
        yield Finding(WARNING, f"{some(found)}: {why}", "host-local gives out a torn address again, and never an "
                      "address with another text", f"if no pod has the address: {rm} {' '.join(found)}")


def lost_rules(node: Node) -> Iterator[Finding]:
    """Running pods have masquerade and port mappings in each address family, spoof guards and isolation."""
    facts = node.seen.facts
    if not facts.firewall or any("tables-save" in text for text in facts.unseen):
        return
    lacking: dict[str, list[NodeAttachment]] = defaultdict(list)
    for it in running(node):
        for what, wanted, there in (
                ("masquerade", masqueraded(it), families_of(it, MASQUERADE_SETS, "ipMasq", "masquerade")),
                ("port mappings", mapped(it), families_of(it, PORT_SETS, "portmap", "port mapping"))):
            if lost := wanted - there:
                lacking[what if lost == wanted else f"{' and '.join(sorted(lost))} {what}"].append(it)
        for what in unguarded(node, it):
            lacking[what].append(it)
    yield from flushed_chains(node)
    for what, found in lacking.items():
        effect = "forbidden packets pass" if what in (*GUARDS, ISOLATION) else "connections of these pods fail"
        yield Finding(ERROR, f"{plural(len(found), 'running pod')} lack{'s' if len(found) == 1 else ''} {what}: "
                      f"{some(it.container_id[:12] for it in found)}",
                      f"another program has flushed the firewall: {effect}", "fastcni restore")


def unguarded(node: Node, attachment: NodeAttachment) -> Iterator[str]:
    """Yield the key of each guard or isolation that ADD set up for the pod, but of which the firewall has no element.
    """
    there = {(each.place.rpartition(" ")[2], each.kind) for each in attachment.sightings} | {
        (each.text, each.kind) for each in attachment.sightings if each.kind == RULE}
    for keys in sections(attachment.config, "bridge"):
        for key, name in GUARDS.items():
            wanted = keys.get(key) is True or (key == "macspoofchk" and keys.get("ipspoofchk") is True)
            if wanted and not there & {(name, ELEMENT), (key, RULE)}:
                yield key
    by_iptables = any(IPTABLES_ISOLATION in line for lines in node.seen.facts.saved.values() for line in lines)
    isolated = any(keys.get("ingressPolicy") == "isolated" for keys in sections(attachment.config, "firewall"))
    if isolated and not by_iptables and ("isolated", ELEMENT) not in there:
        yield ISOLATION


def flushed_chains(node: Node) -> Iterator[Finding]:
    """Yield a finding for tables whose sets have elements of running pods, but whose chains have lost rules or are not
    called: `nft flush table` and `nft flush chain` delete rules and keep the sets."""
    places = {each.place for it in running(node) for each in it.sightings if each.kind == ELEMENT}
    dormant, flushed, foreign = dict[str, None](), dict[str, None](), dict[str, str]()
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        for store in backends.stores():
            table = f"{nft.FAMILIES[store.family]} {store.table}"
            if any(f"nftables {table} {name}" in places for name in store.sets) and not store.complete_on(sock):
                if store.dormant(sock):
                    dormant[table] = None
                elif refused := store.refusal(sock):
                    foreign[store.remedy] = str(refused)
                else:
                    flushed.update((f"{table} {chain}", None) for chain in store.chains)
    if dormant:
        yield Finding(ERROR, f"nftables tables of running pods have the flag dormant: {some(dormant)}",
                      "another program has set the flag: the kernel uses no rule of these tables", "fastcni restore")
    for remedy, text in foreign.items():
        yield Finding(ERROR, f"rules of running pods cannot be restored: {text}", "another program has made a chain or "
                      "set with a name of fastcni's and of another kind", remedy)
    if flushed:
        yield Finding(ERROR, f"nftables chains of running pods have lost rules, among {some(flushed, 6)}",
                      "another program has flushed these chains: the elements of the sets have no effect",
                      "fastcni restore")


def doubled_rules(node: Node) -> Iterator[Finding]:
    """Each rule of fastcni's own nftables tables exists once."""
    if not node.seen.facts.firewall:
        return
    with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
        found = [f"{nft.FAMILIES[family]} {table} {chain}" for family, table, chain in sorted(doubled.chains(sock))]
    if found:
        yield Finding(WARNING, f"nftables chains have rules twice: {some(found, 6)}", "`nft -f` with a saved ruleset "
                      "has added the rules again: packets pass more rules than necessary, and GC keeps unused chains",
                      "fastcni restore")


def running(node: Node) -> Iterator[NodeAttachment]:
    """Yield the running pods that have a link on this node and whose configuration is known."""
    yield from (it for it in node.inventory.attachments
                if it.state == RUNNING and types_of(it.config) and it.links)


def masqueraded(attachment: NodeAttachment) -> set[str]:
    """Return the address families in which ADD set up masquerade for the pod."""
    wanted = any(plugin.get("ipMasq") is True for kind in ("bridge", "ptp")
                 for plugin in sections(attachment.config, kind))
    return pod_families(attachment) if wanted else set()


def mapped(attachment: NodeAttachment) -> set[str]:
    """Return the address families in which ADD mapped ports of the host to the pod."""
    if not attachment.ports or "portmap" not in attachment.plugins:
        return set()
    mappings = attachment.cached.capability_args.get("portMappings") if attachment.cached else None
    asked = [str(one.get("hostIP") or "") for one in mappings if isinstance(one, dict)] if isinstance(
        mappings, list) else [""]
    return {family for family in pod_families(attachment) if any(ip == "" or family_of(ip) == family for ip in asked)}


def pod_families(attachment: NodeAttachment) -> set[str]:
    """Return the address families of the addresses in the result of ADD."""
    return {family_of(ip) for ip in tuple(addresses_of(attachment.result)) or attachment.addresses}


def family_of(ip: str) -> str:
    return IPV6 if ":" in ip else IPV4


def families_of(attachment: NodeAttachment, sets: Collection[str], *rules: str) -> set[str]:
    """Return the address families in which the attachment has an element in one of `sets`, or a rule, named in `rules`,
    of another plugin or of iptables. The name of a set ends with 4 or 6. The result of multus shows only one of the
    pod's networks, so for multus an element in one family counts for all families."""
    found: set[str] = set()
    for each in attachment.sightings:
        if each.kind == ELEMENT and (name := each.place.rpartition(" ")[2])[:-1] in sets:
            found.add(IPV6 if name.endswith("6") else IPV4)
        elif each.kind == RULE and each.text in rules:
            words = each.place.split()[:2]
            found |= {IPV6} if words[0] == "ip6tables" or words[1:] == ["ip6"] else (
                {IPV4} if words[0] == "iptables" or words[1:] == ["ip"] else {IPV4, IPV6})
    return {IPV4, IPV6} if found and "multus" in attachment.plugins else found
