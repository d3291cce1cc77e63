"""Send requests to a Kubernetes API server: read, list in pages, create, merge patch, delete with preconditions, watch.
This module knows no kinds of objects.

Reads and lists name no resourceVersion, except list_each(). So the API server's answers contain all earlier writes,
like etcd's answers, and never come from an older cache. The order of requests in kit/ipam/cluster/stores/kubernetes.py
depends on that.
"""

from __future__ import annotations

import time
from _thread import allocate_lock

from fastcni.clients.errors import Away, Busy, Invalid, Rejected
from fastcni.clients.http import Answer, Http, Stream
from fastcni.clients.kubeconfig import in_cluster, read_kubeconfig
from fastcni.kernel import waiting
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fastcni.clients.kubeconfig import Access

    Object = dict[str, Any]

MANAGER = "fieldManager=fastcni"
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
STRATEGIC_PATCH = {"Content-Type": "application/strategic-merge-patch+json"}     # API servers reject this type for CRDs
# With this header the API server sends only the metadata of objects. API servers before 1.15 send complete objects.
METADATA = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
METADATA_LIST, METADATA_OBJECT = (METADATA.format(f"PartialObjectMetadata{each}") for each in ("List", ""))
PAGE = 500                      # limit of the objects in one answer of a list
WATCH_S = 240                   # the API server ends a watch after this time or up to twice as long, at random
WATCH_GRACE_S = 20.0
LIST_WAIT_S = 60.0              # the limit until a list from the cache begins: an API server may first encode all of it
LIST_SILENCE_S = 20.0           # the longest time without data within a list from the cache
# Seconds before this client repeats a request after "429 Too Many Requests"; longer if the answer's Retry-After is
# longer
BUSY_WAITS_S, MAX_RETRY_AFTER_S = (0.1, 0.5, 1.0), 10.0
TOO_LARGE = "Too large resource version"        # the text of a list's answer with status 504
OK, CREATED, ACCEPTED = 200, 201, 202
UNAUTHORIZED, NOT_FOUND, CONFLICT, GONE = 401, 404, 409, 410
BUSY, FORBIDDEN = 429, 403              # FORBIDDEN: by access rights, a quota or a webhook, which may change
ERRORS = {BUSY: Busy, FORBIDDEN: Rejected, 400: Invalid, 413: Invalid, 422: Invalid}


class Conflict(Exception):
    """Status 409: the object already exists, or has changed since the caller read it."""


class Missing(Exception):
    """Status 404: the object does not exist."""


class Expired(Exception):
    """Status 410: the API server no longer has the changes since the requested revision. The caller must list again."""


class NoSuchKind(Away):
    """The API server does not know the path, because the CRDs are missing."""


class Api:
    """An API server. access: a function that returns the server's Access. Api calls access() at the first request, and
    when the server no longer accepts the credentials. timeout_s: seconds for requests other than watches; 0.0: the
    default."""

    def __init__(self, access: Callable[[], Access]) -> None:
        self._find, self._lock = access, allocate_lock()
        self._session: tuple[Access, Http] | None = None
        self.timeout_s = 0.0
        self.revision = 0               # the resourceVersion of the last list or new object, 0 if it is not a number
        self._revision_at = 0.0         # monotonic time at which the answer with that revision arrived
        self.clock_offset = 0.0         # the server's clock minus this node's, by the last answer
        self._seen: dict[str, str] = {}         # {path of list_each(): the last resourceVersion}

    @property
    def namespace(self) -> str:
        """Return the namespace of the context. Raises Away."""
        return self._open()[0].namespace

    def get(self, path: str) -> Object | None:
        """Return an object, None if it does not exist. Raises Away."""
        try:
            return self._expect("GET", path)
        except Missing:
            return None

    def create(self, path: str, document: Object) -> Object:
        """Create an object, and return the object as the API server has stored it. Raises Conflict, Away; Invalid also
        if the object's namespace does not exist."""
        started = time.monotonic()
        try:
            made = self._expect("POST", f"{path}?{MANAGER}", document)
        except Missing as e:
            raise Invalid(str(e)) from None
        self._note_revision(number_of(made["metadata"]["resourceVersion"]), started)
        return made

    def patch(self, path: str, changes: Object) -> Object:
        """Change an object by a merge patch. If the patch has metadata.resourceVersion, the object must have that
        version. Raises Conflict, Missing, Away."""
        return self._expect("PATCH", f"{path}?{MANAGER}", changes, MERGE_PATCH)

    def patch_by_keys(self, path: str, changes: Object, timeout_s: float = 0.0) -> Object:
        """Change an object of Kubernetes itself by a strategic merge patch: in a list like status.conditions only the
        entries with the given keys change. timeout_s: seconds for the request; 0.0: the default. Raises Conflict,
        Missing, Away."""
        return self._expect("PATCH", f"{path}?{MANAGER}", changes, STRATEGIC_PATCH, timeout_s)

    def delete(self, path: str, uid: str, revision: str) -> None:
        """Remove an object if it has this uid and resourceVersion. Raises Conflict, Missing, Away."""
        self._expect("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions",
                                      "preconditions": {"uid": uid, "resourceVersion": revision}})

    def list_all(self, path: str, selector: str = "", optional: bool = False) -> list[Object]:
        """Return the objects of a kind, all at one revision. selector: a query that selects objects. optional: return
        [] if the kind does not exist. Raises Away."""
        try:
            return self.list_with_revision(path, selector)[0]
        except NoSuchKind:
            if optional:
                return []
            raise

    def list_with_revision(self, path: str, selector: str = "", metadata: bool = False) -> tuple[list[Object], str]:
        """Return list_all(), and the resourceVersion to watch from. metadata: whether to leave out spec and status."""
        while True:
            found: list[Object] = []
            started = time.monotonic()
            try:
                for page in self.pages(path, selector, metadata):
                    found += page.get("items") or []
                    version: str = page["metadata"]["resourceVersion"]
            except Expired:             # a page was requested too late: etcd no longer has the first page's revision
                continue
            self._note_revision(number_of(version), started)
            return found, version

    def list_each(self, path: str, tell: Callable[[Object], object], stop: Callable[[], bool], selector: str = "",
                  metadata: bool = False) -> str:
        """Call tell() for each object of a list from the API server's memory, without a request to etcd, as soon as the
        object has arrived. Return the resourceVersion to watch from.

        The answer may be older than the last write, but not older than the last answer that this Api has received for
        that path. The API server sends all pods of a cluster in one answer, so list_each() does not keep the objects.
        The list ends with Away when stop() returns true. Raises Expired: forget the objects, and call again; the next
        list comes from etcd. Raises Away.
        """
        since, started = self._seen.get(path, "0"), time.monotonic()
        try:
            for page in self._pages(lambda query: self._tell_page(path, query, tell, stop, metadata), selector, since):
                revision: str = page["metadata"]["resourceVersion"]
        except (Expired, Busy) as e:
            if isinstance(e, Busy) and TOO_LARGE not in str(e):
                raise
            self._seen[path] = ""               # etcd was restored from a backup
            raise Expired from None
        self._note_seen(path, revision, from_etcd=not since)
        self._note_revision(number_of(revision), started)
        return revision

    def _tell_page(self, path: str, query: str, tell: Callable[[Object], object], stop: Callable[[], bool],
                   metadata: bool) -> Object:
        """Call tell() for each object of a page. Return the page without its objects."""
        from fastcni.clients.list_reader import ListError, read_list

        headers = {"Accept": METADATA_LIST if metadata else "application/json"}
        with self._stream(path, query, stop, headers, LIST_SILENCE_S, LIST_WAIT_S) as stream:
            try:
                return read_list(stream.pieces(), tell)
            except ListError as e:
                raise Away(f"kubernetes at {stream.endpoint}: GET {path}: {e}") from None

    def pages(self, path: str, selector: str = "", metadata: bool = False) -> Iterator[Object]:
        """Yield the pages of the current list. Raises Expired, Away."""
        return self._pages(lambda query: self._page(path, query, metadata), selector)

    def _pages(self, ask: Callable[[str], Object], selector: str, since: str = "") -> Iterator[Object]:
        """Yield the answers of ask(query), which are the pages of a list. since: "" for the current list, otherwise a
        list from the API server's cache that is not older than this version."""
        # If the query has a limit, the API server asks etcd. With the version 0 it asks etcd only if it has no cache.
        limit = "" if since.strip("0") else f"limit={PAGE}"
        version: str | None = f"resourceVersion={since}" if since else ""
        while version is not None:
            answer = ask("&".join(filter(None, (limit, version, selector))))
            yield answer
            token = answer["metadata"].get("continue")
            version = f"continue={quote(token)}" if token else None

    def _page(self, path: str, query: str, metadata: bool) -> Object:
        try:
            return self._expect("GET", f"{path}?{query}", None, {"Accept": METADATA_LIST} if metadata else None)
        except Missing as e:
            raise Away(str(e)) from None

    def revision_of(self, path: str) -> int:
        """Return the resourceVersion that a list would have now; 0 if it is not a number. Raises Away."""
        return number_of(self._page(path, "limit=1", metadata=True)["metadata"]["resourceVersion"])

    def _note_seen(self, path: str, revision: str, from_etcd: bool = False) -> None:
        """Record the last revision that this Api has seen of a path. Two watches of one path, with different selectors,
        may be at different revisions: the higher revision counts. A revision from_etcd always counts."""
        if from_etcd or number_of(revision) >= number_of(self._seen.get(path, "")):
            self._seen[path] = revision

    def _note_revision(self, revision: int, started: float) -> None:
        """Record a revision. Requests of several threads may end in another order than the server has answered them. So
        a lower revision counts only if its request began after the higher revision had arrived."""
        with self._lock:
            if revision >= self.revision or started > self._revision_at:
                self.revision, self._revision_at = revision, time.monotonic()

    def watch(self, path: str, revision: str, stop: Callable[[], bool], selector: str = "",
              metadata: bool = False) -> Iterator[tuple[str, Object]]:
        """Yield (type, object) of each change since a revision, until stop() returns true or the server ends the watch.
        A BOOKMARK has only a new revision. selector: as for list_all(). metadata: as for list_with_revision(). Raises
        Expired, Away."""
        import random

        # A random time, so that watches of many nodes do not all end at the same time.
        seconds = round(WATCH_S * random.uniform(1.0, 2.0))
        query = f"watch=true&allowWatchBookmarks=true&resourceVersion={revision}&timeoutSeconds={seconds}"
        query = f"{query}&{selector}" if selector else query
        headers = {"Accept": METADATA_OBJECT} if metadata else None
        with self._stream(path, query, stop, headers, seconds + WATCH_GRACE_S) as stream:
            for event in stream:
                document = event["object"]
                if event["type"] == "ERROR":
                    if document.get("code") == GONE:
                        raise Expired
                    raise Away(f"kubernetes: watch of {path}: {document.get('message', document)}")
                if path in self._seen:
                    self._note_seen(path, document["metadata"]["resourceVersion"])
                yield event["type"], document

    def close(self) -> None:
        """Close the connections. The next request opens a new connection."""
        with self._lock:
            session, self._session = self._session, None
        if session:
            session[1].close()

    # -- send a request -------------------------------------------------------------------------------

    def _stream(self, path: str, query: str, stop: Callable[[], bool], headers: dict[str, str] | None, idle: float,
                timeout_s: float = 0.0) -> Stream:
        """Return the answer of a successful GET as a Stream. idle, timeout_s: see Http.stream(). Raises the exceptions
        of _read()."""
        waits, repeated = iter(BUSY_WAITS_S), False
        while True:
            session = self._open()
            stream = session[1].stream("GET", f"{path}?{query}", stop=stop, headers=headers, idle=idle,
                                       timeout=timeout_s)
            if stream.status == OK:
                return stream
            with stream:
                if stream.status == UNAUTHORIZED and not repeated:
                    repeated = True
                    self._renew(session)
                elif stream.status == BUSY and (pause := next(waits, None)):
                    waiting.readable(-1, busy_wait(pause, stream.response.headers), waiting.STORE)
                else:
                    self._read("GET", path, stream.answer())

    def _expect(self, method: str, path: str, body: Object | None = None, headers: dict[str, str] | None = None,
                timeout_s: float = 0.0) -> Object:
        data = None if body is None else json.write(body)
        headers = ({"Content-Type": "application/json"} if body is not None else {}) | (headers or {})
        waits = iter(BUSY_WAITS_S)
        repeated = False
        while True:
            session = self._open()
            answer = session[1].request(method, path, data, headers={"Accept": "application/json"} | headers,
                                        timeout=timeout_s or self.timeout_s)
            if answer.status == UNAUTHORIZED and not repeated:
                repeated = True
                self._renew(session)
            elif answer.status == BUSY and not timeout_s and (pause := next(waits, None)):
                waiting.readable(-1, busy_wait(pause, answer.headers), waiting.STORE)
            else:
                return self._read(method, path, answer)

    def _read(self, method: str, path: str, answer: Answer) -> Object:
        """Return the document of a successful answer. Raises Conflict, Missing, Expired, Away."""
        if date := answer.headers.get("Date"):
            self.clock_offset = read_date(date) - time.time()
        if answer.status in (OK, CREATED, ACCEPTED):
            document: Object = answer.document
            return document
        status = answer.document if answer.data[:1] == b"{" else {}
        message = status.get("message") or answer.text
        if answer.status == CONFLICT:
            raise Conflict(message)
        if answer.status == GONE:
            raise Expired
        if answer.status == NOT_FOUND and (status.get("details") or {}).get("name"):
            raise Missing(message)
        where = f"kubernetes at {answer.endpoint}: {method} {path.partition('?')[0]}"
        if answer.status == NOT_FOUND:
            raise NoSuchKind(f"{where}: the cluster has no such objects; are their CRDs applied?")
        raise ERRORS.get(answer.status, Away)(f"{where}: status {answer.status}: {message}")

    # -- address and credentials ----------------------------------------------------------------------

    def _open(self) -> tuple[Access, Http]:
        with self._lock:
            if self._session is None:
                self._session = self._connect()
            return self._session

    def _connect(self) -> tuple[Access, Http]:
        access = self._find()
        return access, Http([access.server], ca=access.ca, cert=access.cert, key=access.key, verify=access.verify,
                            server_name=access.server_name, headers=access.headers, service="kubernetes")

    def _renew(self, used: tuple[Access, Http]) -> None:
        """Read the credentials again, because the server did not accept them."""
        with self._lock:
            if self._session is not used:
                return                  # another thread has already read the credentials
            access = self._find()
            if access.place() == used[0].place():
                used[1].headers = access.headers
                self._session = access, used[1]
            else:
                self._session = self._connect()
                used[1].close()


def busy_wait(least: float, headers: Any) -> float:
    """Return the seconds to wait before a busy API server is asked again: at least the seconds of its header
    Retry-After, which API Priority and Fairness sends, plus a random part, because the server sends the same
    Retry-After to all agents."""
    import random

    asked = headers.get("Retry-After", "")
    return max(least, min(float(asked), MAX_RETRY_AFTER_S)) * random.uniform(1.0, 1.5) if asked.isdigit() else least


def number_of(version: str) -> int:
    """Return a resourceVersion as a number, 0 if it is not a number."""
    return int(version) if version.isdigit() else 0


def quote(text: str) -> str:
    from urllib.parse import quote_plus

    return quote_plus(text)


def read_date(text: str) -> float:
    """Return the unix time of an HTTP date."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return time.time()


def open_api(kubeconfig: str) -> Api:
    """Return the API server of a kubeconfig; "": the API server of the cluster in which this process is a pod."""
    return Api((lambda: read_kubeconfig(kubeconfig)) if kubeconfig else in_cluster)
