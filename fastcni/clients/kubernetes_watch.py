"""Watch several kinds of objects: list each kind, then read its changes, in a thread for each kind."""

from __future__ import annotations

from time import monotonic

from fastcni.clients.kubernetes import Api, Expired
from fastcni.kernel import waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    Object = dict[str, Any]
    Tell = Callable[[str, Object, bool], object]        # (plural, object, whether it was deleted)
    Key = tuple[str, str]                               # namespace or "", name

# The watches of all nodes may end at the same time. Each node waits for a random time before it lists from the cache,
# so that one processor of the API server can encode the lists. The API server takes 20 us to encode a pod: n pods for
# each of n / 20 nodes take n * n us.
LIST_S_OF_AN_OBJECT, MAX_SPREAD_S = 1e-6, 10.0
PAUSE_S = 1.0                   # seconds between two watches, if the server ends them immediately; randomised by half


def watch_all(api: Api, plurals: tuple[str, ...], tell: Tell, stop: Callable[[], bool],
              listed: Callable[[str], object] = lambda plural: None, base: str = "", cached: Collection[str] = (),
              metadata: Collection[str] = ()) -> None:
    """Call tell() for each existing object, then for each change, one call at a time. Return when stop() returns true.
    If a watch fails, raise its exception.

    plurals: the plurals of kinds below the path `base`; for other kinds a path such as "/api/v1/pods". If a later list
    of such a path no longer has an object, tell() gets only the object's name, because storing all pods of a cluster
    would take hundreds of megabytes. listed(): called with the plural after each list. cached: plurals whose lists may
    come from the API server's cache. metadata: plurals whose objects are read without spec and status.
    """
    import threading

    failed: list[BaseException] = []
    one = threading.Lock()

    def over() -> bool:
        return bool(failed) or stop()

    def tell_one(plural: str, document: Object, gone: bool) -> None:
        with one:
            if not failed:
                tell(plural, document, gone)

    def list_ended(plural: str) -> None:
        with one:
            if not failed:              # after a failure tell() has not got all objects of the list
                listed(plural)

    def run(plural: str) -> None:
        try:
            KindWatch(api, plural, path_of(plural, base), tell_one, list_ended, cached=plural in cached,
                      metadata=plural in metadata).follow(over)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(plural,), name=f"watch-{plural}", daemon=True)
               for plural in plurals[1:]]
    for thread in threads:
        thread.start()
    run(plurals[0])
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class KindWatch:
    """The watch of one kind.

    name: the kind's name for tell() and listed(), a plural or a path as in watch_all(). path: the kind's path in the
    API. selector: a query that selects objects, "" for all. cached, metadata: see watch_all().

    known: {key: object} of the objects that exist; None instead of an object if `name` is a path.
    """

    __slots__ = ("api", "name", "path", "tell", "listed", "selector", "cached", "metadata", "known")

    def __init__(self, api: Api, name: str, path: str, tell: Tell, listed: Callable[[str], object], *,
                 selector: str = "", cached: bool = False, metadata: bool = False) -> None:
        self.api, self.name, self.path, self.tell, self.listed = api, name, path, tell, listed
        self.selector, self.cached, self.metadata = selector, cached, metadata
        self.known: dict[Key, Object | None] = {}

    def follow(self, stop: Callable[[], bool]) -> None:
        """Read the list, then its changes, until stop() returns true. If the server no longer has the changes, list the
        kind again."""
        import random

        while not stop():
            try:
                revision = self._list(stop)
                self.listed(self.name)
                while not stop():
                    started = monotonic()
                    for kind, document in self.api.watch(self.path, revision, stop, self.selector, self.metadata):
                        revision = document["metadata"]["resourceVersion"]
                        if kind != "BOOKMARK":
                            self._note(document, kind == "DELETED")
                    if not stop() and monotonic() - started < PAUSE_S:
                        waiting.readable(-1, random.uniform(0.5, 1.5) * PAUSE_S, waiting.STORE)
            except Expired:
                if self.cached:
                    most = min(LIST_S_OF_AN_OBJECT * len(self.known) ** 2, MAX_SPREAD_S)
                    waiting.until(stop, random.uniform(0.0, most), waiting.STORE)

    def _list(self, stop: Callable[[], bool]) -> str:
        """Call tell() for all objects of a list, and for the objects that were deleted since the last list. Return the
        resourceVersion to watch from."""
        there: set[Key] = set()

        def tell_one(document: Object) -> None:
            there.add(key_of(document))
            self._note(document, gone=False)

        if self.cached:     # handle each object when it arrives: all pods of a cluster would take gigabytes
            revision = self.api.list_each(self.path, tell_one, stop, self.selector, self.metadata)
        else:
            documents, revision = self.api.list_with_revision(self.path, self.selector, self.metadata)
            for document in documents:
                tell_one(document)
        for key in self.known.keys() - there:
            self._note(self.known[key] or named(key), gone=True)
        return revision

    def _note(self, document: Object, gone: bool) -> None:
        if gone:
            self.known.pop(key_of(document), None)
        else:
            self.known[key_of(document)] = document if is_own(self.name) else None
        self.tell(self.name, document, gone)


def is_own(plural: str) -> bool:
    return not plural.startswith("/")


def path_of(plural: str, base: str) -> str:
    return f"{base}/{plural}" if is_own(plural) else plural


def named(key: Key) -> Object:
    """Return an object with only its name."""
    namespace, name = key
    return {"metadata": {**({"namespace": namespace} if namespace else {}), "name": name}}


def key_of(document: Object) -> Key:
    metadata = document["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
