"""Watch one kind of objects of the Kubernetes API in a thread."""

from __future__ import annotations

from threading import Event, Thread
from typing import Generic, TypeVar

from fastcni.clients.errors import Away
from fastcni.clients.kubernetes_watch import KindWatch, key_of
from fastcni.daemon.background import enter_home, start_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.clients.kubernetes import Api
    from fastcni.clients.kubernetes_watch import Key
    from fastcni.daemon.log import Logger

T = TypeVar("T")

RETRY_S = 1.0                   # seconds until the next try, after a watch has ended with an error
STOP_S = 1.0                    # seconds that stop() waits for the thread


class WatchThread(Generic[T]):
    """The thread that watches one kind.

    path: the kind's path in the API. selector: a query that selects objects, "" for all. reduce(document): returns the
    part of an object to keep. changed(key, kept): called in the thread after each change; kept is None if the object no
    longer exists. complete(): called in the thread after each list. home: a descriptor of the server's network
    namespace.

    found: {(namespace, name): the kept part}. why: why the watch is not connected; "" if it is connected. listed:
    whether `found` has been complete once.
    """

    def __init__(self, api: Api, path: str, reduce: Callable[[dict[str, Any]], T], log: Logger, home: int, *,
                 selector: str = "", changed: Callable[[Key, T | None], object] = lambda key, kept: None,
                 complete: Callable[[], object] = lambda: None) -> None:
        self.api, self.path, self.selector, self.reduce = api, path, selector, reduce
        self.changed, self.complete = changed, complete
        self.log, self.home, self.stopping = log, home, Event()
        self.found: dict[Key, T] = {}
        self.why, self.listed = "", False
        self._listed_keys: set[Key] = set()             # keys in the list of the current connection
        self.thread: Thread | None = None

    @property
    def current(self) -> bool:
        """Return whether the watch is connected and `found` is complete, so that `found` agrees with the API server."""
        return self.listed and not self.why

    def start(self) -> None:
        """Start the thread unless it runs. Call start() periodically, because Python cannot always start a thread."""
        if self.stopping.is_set() or (self.thread and self.thread.is_alive()):
            return
        thread = Thread(target=self._run, name=f"watch-{self.path.rpartition('/')[2]}", daemon=True)
        self.thread = thread if start_thread(thread, self.log) else None

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        if self.thread:
            self.thread.join(STOP_S)

    def _run(self) -> None:
        if not enter_home(self.home, f"watch of {self.path}", self.log):
            return
        while not self.stopping.is_set():
            self._listed_keys = set()
            try:
                KindWatch(self.api, self.path, self.path, self._tell, self._list_ended,
                          selector=self.selector).follow(self.stopping.is_set)
            except Away as e:
                if not self.why:
                    self.log.warning("networks_watch_lost", path=self.path, why=str(e))
                self.why = str(e)
            except Exception:
                self.log.exception("server_fault")
                self.why = "a fault of fastcni, see the log"
            self.stopping.wait(RETRY_S)

    def _tell(self, path: str, document: dict[str, Any], gone: bool) -> None:
        key = key_of(document)
        if gone:
            self._drop(key)
            return
        self._listed_keys.add(key)
        self.found[key] = kept = self.reduce(document)
        self.changed(key, kept)

    def _drop(self, key: Key) -> None:
        self._listed_keys.discard(key)
        self.found.pop(key, None)
        self.changed(key, None)

    def _list_ended(self, path: str) -> None:
        """Remove objects that are not in the list: they were deleted while the watch was not connected, and no event
        reports them."""
        for key in self.found.keys() - self._listed_keys:
            self._drop(key)
        self.complete()
        if self.why:
            self.log.info("networks_watch_restored", path=self.path)
        self.why, self.listed = "", True
