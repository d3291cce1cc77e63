"""Find a network's attachments that the caller of a GC does not know. The runtime and the plugin multus may both
attach pods to a network, and each keeps only the results of its own pods."""

from __future__ import annotations

import posix

from fastcni.kit.call import files
from fastcni.kit.networks import keys, state
from fastcni.kit.networks.ready import exists
from fastcni.spec.config import VALID_ATTACHMENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fastcni.kit.call.request import Request

RUNTIME_DIR = "/var/lib/cni"            # libcni's default cache directory

Pair = tuple[str, str]                  # container id, ifname


def living(network: str, cache_dirs: Iterable[str]) -> dict[Pair, str]:
    """Read the network's libcni cache files in cache_dirs, and return {attachment: why a GC keeps the attachment}.
    Leave out an attachment if its network namespace certainly no longer exists. Raises CniError 5."""
    from fastcni.kernel.presence import GONE, state_of

    found: dict[Pair, str] = {}
    for directory in dict.fromkeys(f"{it}/{state.RESULTS}" for it in cache_dirs):
        for name in sorted(files.names(directory)):
            if not name.startswith(f"{network}-"):
                continue
            path = f"{directory}/{name}"
            try:
                since = posix.stat(path).st_mtime
            except FileNotFoundError:   # a DEL has removed the file
                continue
            kept = state.read_result(path)
            if kept is None:
                netns, pairs = "", [*splits(name.removeprefix(f"{network}-"))] if exists(path) else []
            else:
                netns, pairs = kept.netns, [(kept.container_id, kept.ifname)] * (kept.definition.name == network)
            verdict, why = state_of(netns, since)
            if verdict != GONE:
                found.update(dict.fromkeys(pairs, f"in {directory}: {why if kept else 'the file is damaged'}"))
    return found


def splits(name: str) -> Iterator[Pair]:
    """Yield each (container id, ifname) that the text CONTAINERID-IFNAME can mean: both parts may have hyphens. This
    text is part of a cache file's name, and all that is known if the file is damaged."""
    words = name.split("-")
    for place in range(1, len(words)):
        yield "-".join(words[:place]), "-".join(words[place:])


def with_pods_of_multus(req: Request) -> Request:
    """Return a GC request whose valid attachments include the attachments that the plugin multus has made. The runtime
    does not list these: it only knows attachments to the network whose plugin is multus."""
    more = living(req.name, (keys.CNI_DIR,)).keys() - req.valid_attachments
    return req.delegate(req.plugin, {**req.conf.values, VALID_ATTACHMENTS: [
        *req.conf.items(VALID_ATTACHMENTS), *objects(more)]}) if more else req


def objects(pairs: Iterable[Pair]) -> list[dict[str, str]]:
    return [{"containerID": container_id, "ifname": ifname} for container_id, ifname in sorted(pairs)]
