"""Run GC of one network: choose the cached attachments to keep, run DEL for the stale attachments, and call GC of each
plugin."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastcni.handle import REPORT
from fastcni.kernel import wire
from fastcni.kernel.presence import GONE, state_of
from fastcni.kit.links import find
from fastcni.kit.networks import other_caches
from fastcni.kit.networks.keys import CNI_DIR
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.runtime import inject
from fastcni.runtime.cache import DEFAULT_DIR, Cache
from fastcni.runtime.call import NO_CONTAINER, Call, to_pair
from fastcni.runtime.errors import PluginError
from fastcni.runtime.records import Attachment, NetworkList, PluginConf
from fastcni.runtime.replaced import Key, key_of, replaced, successors
from fastcni.runtime.report import Collected, Deleted, GcReport, Judged, Released
from fastcni.runtime.trace import Trace
from fastcni.spec import errors, json, version
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.runtime.cni import CNI

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a GC of one network. kept, stale: the cached attachments that GC keeps or deletes. valid: (container
    id, ifname) of attachments that the plugins must keep, even if they are not in the cache. of_multus: directories
    with the results of multus, whose pods may be in the network, too. taken: attachments whose namespace path a later
    attachment uses now: a DEL with this path would delete the later attachment's interface."""

    kept: tuple[Judged, ...]
    stale: tuple[Judged, ...]
    valid: frozenset[Pair]
    of_multus: tuple[str, ...] = ()
    taken: frozenset[Key] = frozenset()


def make_plan(remembered: Iterable[Attachment], network: str, valid: Iterable[Pair] = (),
              everything: bool = False, of_multus: Iterable[str] = ()) -> Plan:
    """Return the Plan of a network. The plan keeps the valid attachments and, unless `everything` is set, the
    attachments whose network namespace may exist. remembered: the cached attachments of all networks. of_multus: see
    Plan. Raises OSError."""
    remembered = list(remembered)
    later = successors(remembered)
    pairs, kept, stale, ended = frozenset(valid), [], [], replaced(later, link_kinds)
    taken = frozenset(key_of(it) for it, _ in later)
    for it in remembered:
        if it.network != network:
            continue
        state, why = ended.get(key_of(it)) or state_of(it.netns, it.since)
        if to_pair(it) in pairs:
            kept.append(Judged(it, "said to be valid"))
        elif state == GONE or everything:
            stale.append(Judged(it, why))
        else:
            kept.append(Judged(it, why))
    return Plan(tuple(kept), tuple(stale), pairs, tuple(of_multus), taken)


def link_kinds() -> dict[str, str]:
    """Return {name: kind} of the links of the calling thread's network namespace. Raises OSError."""
    with wire.open_socket() as sock:
        return {link.name: link.kind for link in find.all_links(sock)}


def find_others(cni: "CNI", net: NetworkList, of_multus: Sequence[str]) -> tuple[Judged, ...]:
    """Return the living attachments that the plugins must keep although the ADD of another network has made them: only
    a GC of that other network deletes these attachments. These are attachments of pods that multus has attached to this
    network. If this network is multus's own, these are attachments of pods that the runtime has attached directly to a
    network to which multus attaches pods. Raises OSError, and CniError 5."""
    own = cni.cache.directory or DEFAULT_DIR
    found = {(net.name, pair): why for pair, why in
             other_caches.living(net.name, [it for it in of_multus if it != own]).items()}
    if plugins := [it.values for it in net.plugins if it.type in RUNS_NETWORKS]:
        names = {it.network for where in of_multus for it in Cache(where).attachments(without_config=True)}
        delegates = [it for plugin in plugins for it in plugin.get("delegates") or ()]
        names |= {it["name"] for it in delegates if isinstance(it, dict) and isinstance(it.get("name"), str)}
        mine = [plugin.get("cniDir") or CNI_DIR for plugin in plugins]
        for name in sorted(names - {net.name}):
            found |= {(name, pair): f"of network {name}, {why}" for pair, why in other_caches.living(
                name, [own, *(it for it in of_multus if it not in mine)]).items()}
    return tuple(Judged(Attachment(container_id, name, ifname), why)
                 for (name, (container_id, ifname)), why in found.items())


def unread_files(directory: str, network: str, remembered: Iterable[Attachment]) -> list[str]:
    """Return the paths of the network's cache files that are not in `remembered`: damaged files, and files of an old
    libcni.

    The attachments of these files may exist. Raises OSError if the directory cannot be listed.
    """
    known = {f"{it.network}-{it.container_id}-{it.ifname}" for it in remembered}
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [os.path.join(directory, name) for name in sorted(names)
            if name.startswith(f"{network}-") and name not in known]


def rehearse(cni: "CNI", net: NetworkList, plan: Plan) -> GcReport:
    """Return the report that run() would return, but call no plugin. The report does not list what the plugins' GC
    would release."""
    stale = tuple(Deleted(it.attachment, it.why) for it in plan.stale)
    plugins = tuple(Collected(plugin, skipped=why_skipped(cni, net, plugin)) for plugin in net.plugins)
    return GcReport((*plan.kept, *find_others(cni, net, plan.of_multus)), stale, plugins, dry_run=True)


def run(cni: "CNI", net: NetworkList, plan: Plan, *, trace: Trace | None = None) -> GcReport:
    """Run DEL of the plan's stale attachments, then GC of each plugin. Continue after errors."""
    deleted = delete_stale(cni, net, plan, trace)
    try:
        valid, others = still_valid(cni, net, plan), find_others(cni, net, plan.of_multus)
    except (OSError, CniError) as e:
        error = CniError(errors.IO_FAILURE, f"no plugin was called: list the result cache: {e}")
        return GcReport(plan.kept, deleted, error=error)
    valid = sorted({*valid, *(to_pair(it.attachment) for it in others)})
    return GcReport((*plan.kept, *others), deleted, gc_plugins(cni, net, valid, trace))


def delete_stale(cni: "CNI", net: NetworkList, plan: Plan, trace: Trace | None) -> tuple[Deleted, ...]:
    return tuple(delete_one(cni, net, it, key_of(it.attachment) in plan.taken, trace) for it in plan.stale)


def still_valid(cni: "CNI", net: NetworkList, plan: Plan) -> list[Pair]:
    """Return (container id, ifname) of the attachments that the plugins must keep, sorted. They include the attachments
    that an ADD has added to the cache since the plan was made."""
    stale = {to_pair(it.attachment) for it in plan.stale}
    now = {to_pair(it) for it in cni.attachments() if it.network == net.name}
    return sorted(plan.valid | {to_pair(it.attachment) for it in plan.kept} | (now - stale))


def delete_one(cni: "CNI", net: NetworkList, stale: Judged, taken: bool, trace: Trace | None) -> Deleted:
    """Run DEL of a stale attachment, with the args of its ADD. taken: see Plan."""
    it = stale.attachment
    try:
        cni.delete(net, it.runtime_conf("" if taken else None), trace=trace)
    except CniError as e:
        what = f"failed to delete stale attachment {it.container_id} {it.ifname}"
        return Deleted(it, stale.why, CniError(e.code, f"{what}: {e.msg}", e.details))
    return Deleted(it, stale.why)


def gc_plugins(cni: "CNI", net: NetworkList, valid: Sequence[Pair] | None,
               trace: Trace | None) -> tuple[Collected, ...]:
    return tuple(gc_plugin(cni, net, plugin, valid, trace) for plugin in net.plugins)


def gc_plugin(cni: "CNI", net: NetworkList, plugin: PluginConf, valid: Sequence[Pair] | None,
              trace: Trace | None) -> Collected:
    """Run GC of one plugin. fastcni's own plugins accept GC in every CNI version, and report each object that they
    release."""
    if why := why_skipped(cni, net, plugin):
        return Collected(plugin, skipped=why)
    more = {} if valid is None else report_key(cni, plugin)
    try:
        stdin = inject.for_gc(net.name, net.version, plugin, valid, more)
        stdout = cni.call(Call("GC", NO_CONTAINER, trace, cni.path), plugin, stdin)
        return Collected(plugin, released=read_released(stdout) if more else None)
    except CniError as e:
        return Collected(plugin, error=PluginError(plugin, "gc", e))


def report_key(cni: "CNI", plugin: PluginConf) -> dict[str, bool]:
    """Return a key for the stdin of GC, which makes fastcni's own plugins report their releases; {} for other
    plugins."""
    return {REPORT: True} if cni.is_own(plugin) else {}


def why_skipped(cni: "CNI", net: NetworkList, plugin: PluginConf) -> str:
    """Return why a plugin gets no GC, "" if it gets GC."""
    if at_least(net.version, "1.1.0") or cni.is_own(plugin):
        return ""
    return f"{below(net, 'GC', '1.1.0')}, and it is not one of fastcni's own plugins"


def below(net: NetworkList, command: str, since: str) -> str:
    """Return a text such as 'cniVersion "1.0.0" has no GC (since 1.1.0)'."""
    return f'cniVersion "{net.version}" has no {command} (since {since})'


def at_least(config_version: str, since: str) -> bool:
    """Return whether a version is `since` or later. False for a malformed version."""
    try:
        return version.at_least(config_version, since)
    except ValueError:
        return False


def read_released(stdout: bytes) -> tuple[Released, ...] | None:
    """Decode the report that one of fastcni's own plugins printed for GC. None: no output, from an older fastcni."""
    if not stdout:
        return None
    try:
        found = json.read(stdout)["released"]
        return tuple(Released(it["plugin"], it["what"], it["of"]) for it in found)
    except (json.JsonError, KeyError, TypeError):
        raise CniError(errors.DECODING_FAILURE, "the plugin's report of GC cannot be read",
                       f"{stdout[:200]!r}") from None

