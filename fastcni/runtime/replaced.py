"""Find pods that ended without DEL, and whose namespace path a later pod uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.kernel.presence import GONE, UNKNOWN
from fastcni.runtime.records import LO_IFNAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fastcni.runtime.records import Attachment

Key = tuple[str, str, str]              # network, container id, ifname


def successors(cached: Iterable[Attachment]) -> list[tuple[Attachment, Attachment]]:
    """Return [(attachment, its successor)]. The successor has the same namespace path and interface name: it is the
    last attachment there, and belongs to another container. Attachments without a successor are left out."""
    found = [it for it in cached if it.netns and it.ifname != LO_IFNAME]
    newest: dict[tuple[str, str], Attachment] = {}
    for it in sorted(found, key=lambda it: it.since):
        newest[it.netns, it.ifname] = it
    pairs = [(it, newest[it.netns, it.ifname]) for it in found]
    return [(it, last) for it, last in pairs if it.container_id != last.container_id and it.since < last.since]


def replaced(pairs: Sequence[tuple[Attachment, Attachment]],
             kinds: Callable[[], Mapping[str, str]]) -> dict[Key, tuple[str, str]]:
    """Return {attachment: (GONE or UNKNOWN, why)} of the attachments with a successor and without a veth link on the
    host. The namespace at their path belongs to their successors.

    pairs: the result of successors(). kinds(): returns {name: kind} of the host's links; called only if an attachment
    has a successor. GONE: the result names a link on the host, and this link no longer exists, because the kernel
    deletes a veth pair with its pod. UNKNOWN: the result names no such link. An attachment with a veth link on the host
    is not returned: its pod may run without the path.
    """
    links = kinds() if pairs else {}
    return {key_of(it): (GONE if any(name not in links for name in it.host_links) else UNKNOWN,
                         f"{it.netns} is now the namespace of {last.container_id}")
            for it, last in pairs if not any(links.get(name) == "veth" for name in it.host_links)}


def gone(cached: Iterable[Attachment], kinds: Callable[[], Mapping[str, str]]) -> set[Key]:
    """Return the attachments that replaced() finds GONE."""
    return {key for key, (state, _) in replaced(successors(cached), kinds).items() if state == GONE}


def key_of(attachment: Attachment) -> Key:
    return attachment.network, attachment.container_id, attachment.ifname
