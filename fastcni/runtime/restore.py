"""Restore the host's firewall rules of all cached attachments, after another program has flushed the rules.

No pod, link or address is changed, and rules that are present stay. An attachment is restored only in the host network
namespace that its pod is linked to, because several host namespaces may share one cache.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fastcni import plugins
from fastcni._netlink import Batch
from fastcni.handle import restore as restore_one
from fastcni.kernel import netns, rtnl, wire
from fastcni.kernel.presence import ALIVE, GONE, UNKNOWN, state_of
from fastcni.kit.firewall import doubled
from fastcni.kit.links import find
from fastcni.runtime import inject
from fastcni.runtime.cache import Cache
from fastcni.runtime.call import Call
from fastcni.runtime.exec import NOWHERE
from fastcni.runtime.iptables_batch import BatchMode
from fastcni.runtime.mode import SharedMode
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.records import Attachment, NetworkList, PluginConf
from fastcni.spec import errors
from fastcni.spec.errors import CniError

ELSEWHERE, HERE = "elsewhere", "here"
UNREAD = Attachment("", "", "")         # stands for the attachment of a cache file that cannot be read


@dataclass(frozen=True, slots=True)
class Failure:
    """The error of one attachment. plugin: the type of the failed plugin, "" if the error was before the first plugin.
    path: "", or the path of a cache file that cannot be read; the attachment is then UNREAD."""

    attachment: Attachment
    plugin: str
    error: CniError
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"cached result {self.path}: {self.error}"
        it = self.attachment
        what = f"{self.plugin} of {it.ifname}" if self.plugin else it.ifname
        return f"{what} of container {it.container_id} in network {it.network}: {self.error}"


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of restore(), with counts.

    attachments: attachments whose plugins have firewall rules. plugins: calls of these plugins, also failed calls.
    gone: attachments that were skipped because their network namespace no longer exists. elsewhere: attachments that
    were skipped because their pod has no link to the caller's namespace.
    """

    attachments: int
    plugins: int
    gone: int
    failed: tuple[Failure, ...]
    elsewhere: int = 0


def restore(cache: Cache, environ: Mapping[str, str] | None = None, *,
            deleted_at: Callable[[Attachment], float] = lambda _: 0.0) -> Restored:
    """Restore all attachments of the cache in the calling thread's network namespace. Continue after errors.

    environ: the environment of programs (iptables); None: this process's environment. deleted_at: returns when the last
    DEL of an attachment began, in seconds since the epoch, 0.0 if unknown. An attachment that was not added again after
    its last DEL is skipped. Raises OSError if the cache cannot be listed, or the kernel refuses the reading of rules.
    """
    environ = os.environ if environ is None else environ
    batch, mode = BatchMode(), SharedMode()
    try:
        doubled.replace(mode.firewall)
        done = walk(cache, environ, batch, deleted_at)
        try:
            batch.carry_out(environ, mode)
        except CniError:                # the batch failed: separate calls show which attachment has the error
            done = walk(cache, environ, mode, deleted_at)
    finally:
        batch.close()
        mode.close()
    return done


def walk(cache: Cache, environ: Mapping[str, str], mode: SharedMode,
         deleted_at: Callable[[Attachment], float]) -> Restored:
    """Restore the attachments one after another, and each attachment's plugins one after another."""
    attachments = calls = 0
    left_out = {GONE: 0, ELSEWHERE: 0}
    failed: list[Failure] = []
    unread: list[tuple[str, str]] = []
    for it in cache.attachments(without_config=True, unread=unread):
        try:
            place, why = whereabouts(it, mode)
            if place in left_out:
                left_out[place] += 1
                continue
            todo = list(inputs(cache, it))
            if todo and place == UNKNOWN:
                raise CniError(errors.INVALID_CONFIG, why)
        except CniError as e:
            failed.append(Failure(it, "", e))
            continue
        except OSError as e:            # the pod's namespace cannot be read, or the result has an invalid link name
            failed.append(Failure(it, "", CniError(errors.INTERNAL, f"read the pod's network namespace: {e}")))
            continue
        if is_older(cache, it, deleted_at(it)):
            continue
        attachments, calls = attachments + bool(todo), calls + len(todo)
        for kind, stdin in todo:
            if is_older(cache, it, deleted_at(it)):
                break
            try:
                restore_one(kind, {**environ, **Call("CHECK", it.runtime_conf(), None, NOWHERE).env()}, stdin, mode)
            except CniError as e:
                failed.append(Failure(it, kind, e))
    failed += [Failure(UNREAD, "", CniError(errors.DECODING_FAILURE, why), path) for path, why in unread]
    return Restored(attachments, calls, left_out[GONE], tuple(failed), left_out[ELSEWHERE])


def is_older(cache: Cache, attachment: Attachment, moment: float) -> bool:
    """Return whether the attachment's cache file was written before `moment`, in unix seconds, or no longer exists.
    False if `moment` is 0."""
    try:
        return bool(moment) and os.stat(cache.path(attachment.network, attachment.runtime_conf())).st_mtime <= moment
    except FileNotFoundError:
        return True


def whereabouts(attachment: Attachment, mode: SharedMode) -> tuple[str, str]:
    """Return (place, why). place is GONE if the pod's namespace no longer exists, UNKNOWN if its state is unknown,
    ELSEWHERE if the pod has no link to the calling thread's namespace, otherwise HERE."""
    state, why = state_of(attachment.netns, attachment.since)
    if state != ALIVE:
        return state, why
    try:
        pod = netns.open_path(attachment.netns)
    except OSError:                     # the namespace exists, but belongs to another user
        return HERE, why
    try:
        return HERE if is_linked(pod, mode) and has_host_link(attachment, mode) else ELSEWHERE, why
    finally:
        os.close(pod)


def is_linked(pod: int, mode: SharedMode) -> bool:
    """Return whether the namespace `pod` and the calling thread's namespace are linked: whether a link was moved
    between them, or the peer or parent of a pod's link is in the calling thread's namespace.

    The kernel gives namespace A an nsid in namespace B when it must name A in B. In this namespace, the pod's namespace
    gets an nsid for the peer of a veth pair and for a moved link. In the pod's namespace, this namespace gets an nsid
    for the parent of a macvlan.
    """
    if netns.is_own(pod) or knows(mode.route, pod):
        return True
    home = netns.open_own()
    try:
        with netns.inside(pod, home):
            inside = wire.open_socket()
        try:
            return knows(inside, home)
        finally:
            inside.close()
    finally:
        os.close(home)


def knows(sock: "wire.Socket", fd: int) -> bool:
    (_, payload), *_ = wire.exchange(sock, rtnl.get_nsid(Batch(), fd))
    return rtnl.read_nsid(payload) >= 0


def has_host_link(attachment: Attachment, mode: SharedMode) -> bool:
    """Return whether the host end of the pod's link is in this namespace. True also if the result does not name the
    host end. A bridge of the right name is no proof, because each namespace may have a bridge of that name."""
    found = [find.link(mode.route, name) for name in attachment.host_links]
    return None not in found or any(link.kind == "veth" for link in found if link)


def inputs(cache: Cache, attachment: Attachment) -> Iterable[tuple[str, bytes]]:
    """Yield (type, stdin of CHECK) for each plugin of the attachment that has rules in the firewall. Raises
    CniError."""
    if not attachment.config:
        raise CniError(errors.INVALID_CONFIG, "its cache file has no network configuration",
                       "libcni before 0.8 wrote the result alone: delete and add the pod again")
    net = network_of(attachment)
    found = [plugin for plugin in net.plugins if restores(plugin)]
    if found:
        rt = attachment.runtime_conf()
        result = cache.read_result(attachment.network, net.version, rt)
        for plugin in found:
            yield plugin.type, inject.for_attachment(attachment.network, net.version, plugin, rt, result)


def network_of(attachment: Attachment) -> NetworkList:
    """Return the network list that ADD used. If the attachment was made by add_plugin(), return a list of that
    plugin."""
    net = parse_list(attachment.config)
    return net if net.plugins else list_of_plugin(parse_plugin(attachment.config))


def restores(plugin: PluginConf) -> bool:
    return plugin.type in plugins.BUILT_IN and hasattr(plugins.load(plugin.type), "restore")
