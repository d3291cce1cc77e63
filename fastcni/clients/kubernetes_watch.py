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
            follow(api, plural, path_of(plural, base), tell_one, over, list_ended, cached=plural in cached,
                   metadata=plural in metadata)
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


def follow(api: Api, plural: str, path: str, tell: Tell, stop: Callable[[], bool],
           listed: Callable[[str], object], selector: str = "", cached: bool = False, metadata: bool = False) -> None:
    """Watch one kind. If the server no longer has the changes, list the kind again. selector: a query that selects
    objects. cached, metadata: see watch_all()."""
    import random

    known: dict[Key, Object | None] = {}
    while not stop():
        try:
            revision = list_all(api, plural, path, tell, stop, selector, cached, metadata, known)
            listed(plural)
            while not stop():
                started = monotonic()
                for kind, document in api.watch(path, revision, stop, selector, metadata):
                    revision = document["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        note(plural, document, kind == "DELETED", known, tell)
                if not stop() and monotonic() - started < PAUSE_S:
                    waiting.readable(-1, random.uniform(0.5, 1.5) * PAUSE_S, waiting.STORE)
        except Expired:
            if cached:
                most = min(LIST_S_OF_AN_OBJECT * len(known) ** 2, MAX_SPREAD_S)
                waiting.until(stop, random.uniform(0.0, most), waiting.STORE)


def list_all(api: Api, plural: str, path: str, tell: Tell, stop: Callable[[], bool], selector: str, cached: bool,
             metadata: bool, known: dict[Key, Object | None]) -> str:
    """Call tell() for all objects of a list, and for the objects that were deleted since the last list. Return the
    resourceVersion to watch from. See follow()."""
    there: set[Key] = set()

    def tell_one(document: Object) -> None:
        there.add(key_of(document))
        note(plural, document, False, known, tell)

    if cached:                          # handle each object when it arrives: all pods of a cluster would take gigabytes
        revision = api.list_each(path, tell_one, stop, selector, metadata)
    else:
        documents, revision = api.list_with_revision(path, selector, metadata)
        for document in documents:
            tell_one(document)
    for key in known.keys() - there:
        note(plural, known[key] or named(key), True, known, tell)
    return revision


def is_own(plural: str) -> bool:
    return not plural.startswith("/")


def path_of(plural: str, base: str) -> str:
    return f"{base}/{plural}" if is_own(plural) else plural


def named(key: Key) -> Object:
    """Return an object with only its name."""
    namespace, name = key
    return {"metadata": {**({"namespace": namespace} if namespace else {}), "name": name}}


def note(plural: str, document: Object, gone: bool, known: dict[Key, Object | None], tell: Tell) -> None:
    if gone:
        known.pop(key_of(document), None)
    else:
        known[key_of(document)] = document if is_own(plural) else None
    tell(plural, document, gone)


def key_of(document: Object) -> Key:
    metadata = document["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
