"""Read the node's files for `fastcni serve`: the network configurations, and the results that runtimes cached.

Most modules are imported only at the first scrape or page request, so that the server is ready early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fastcni.kernel.presence import state_of
from fastcni.runtime.cache import Cache
from fastcni.runtime.cni import DEFAULT_CONF_DIR
from fastcni.runtime.collect import link_kinds
from fastcni.runtime.replaced import gone, key_of
from fastcni.runtime.restore import restore
from fastcni.server.cluster.configured import read_configured
from fastcni.server.cluster.pods import Pods
from fastcni.server.cluster.upkeep import place_of
from fastcni.server.node_view import NodeView

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.node.activity.source import Source
    from fastcni.node.attachments.inventory import Places
    from fastcni.runtime.records import Attachment
    from fastcni.runtime.restore import Restored
    from fastcni.server.metrics.pools import Counted
    from fastcni.server.restoring.replay import DeletedAt
    from fastcni.server.web.status_page import Ask, Document


class Served(NodeView):
    """The node, read from its files. cache_dir: the runtimes' cache directory, "" for the default."""

    def __init__(self, cache_dir: str = "") -> None:
        self.cache = Cache(cache_dir)
        super().__init__(Pods(state_of, lambda: {key_of(it): (it.netns, it.since) for it in self._attachments()},
                              lambda: gone(self._attachments(), link_kinds)))

    def replay(self, deleted_at: DeletedAt) -> Restored:
        return restore(self.cache, deleted_at=deleted_at)

    def drops(self) -> list[tuple[str, str, str]]:
        from fastcni.node.checks import doctor, kernel

        return kernel.pods_dropped(doctor.node_of(self._places(enter_pods=False), (), ""))

    def configured(self) -> Iterable[Keys]:
        """Yield the keys of the networks in the configuration directory, those of cached attachments, and those of
        further address spaces that this node has joined."""
        from fastcni.node import confs
        from fastcni.node.attachments import address_dirs, caches
        from fastcni.node.cluster import state

        files = confs.read_quietly(DEFAULT_CONF_DIR, [])
        cached = {it.config for it in self._attachments()}
        values = [*confs.values_of(confs.networks(files)), *map(caches.read_config, cached)]
        found = [*read_configured(values)]
        places = {place_of(keys) for keys in found}
        joined = state.used(address_dirs.cluster_dirs(values), [])
        return [*found, *(keys for keys in joined if place_of(keys) not in places)]

    def networks(self) -> Iterable[dict[str, Any]]:
        from fastcni.node import confs

        return confs.values_of(confs.networks(confs.read_quietly(DEFAULT_CONF_DIR, [])))

    def count(self) -> Counted:
        from fastcni.node.activity.pools import count

        return count(DEFAULT_CONF_DIR, *(Cache(it).results() for it in self._cache_dirs()))

    def make_status(self, describe: Callable[[], Document], ask: Ask | None) -> Callable[[], Document]:
        source: Source | None = None

        def make() -> Document:
            nonlocal source
            if not source:
                from fastcni.node.activity.source import Source

                source = Source(describe, ask, self.count)
            source.poll()
            return {**source.document(""), "history": ask is not None}

        return make

    def topology(self) -> Document:
        from fastcni.node.attachments.topology import document

        return document(self._places())

    def _places(self, *, enter_pods: bool = True) -> Places:
        from fastcni.node.attachments.inventory import Places

        return Places(DEFAULT_CONF_DIR, self._cache_dirs(), enter_pods=enter_pods)

    def _attachments(self) -> Iterator[Attachment]:
        for where in self._cache_dirs():
            yield from Cache(where).attachments()

    def _cache_dirs(self) -> tuple[str, ...]:
        from fastcni.node.attachments.cache_dirs import known_cache_dirs

        return known_cache_dirs(filter(None, [self.cache.directory]), DEFAULT_CONF_DIR)
