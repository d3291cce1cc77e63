"""Which pods are gone, by their network namespaces.

A pod counts as gone only if its namespace's path is gone, and this server has seen a namespace in the same folder: a
server in a container may have an empty /run/netns, although all pods run.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Attachment = tuple[str, str, str]           # network, container id, ifname

GONE, ALIVE = "gone", "alive"           # as runtime/collect.py has them


class Pods:
    """state_of(path): (ALIVE, GONE or other, why), see runtime/collect.py. cached(): the namespaces' paths that the
    runtimes' result caches have, {(network, container id, ifname): path}."""

    def __init__(self, state_of: Callable[[str], tuple[str, str]],
                 cached: Callable[[], Mapping[Attachment, str]]) -> None:
        self.state_of, self.cached = state_of, cached
        self.folders: set[str] = set()          # in which a namespace was seen
        self.paths: Mapping[Attachment, str] | None = None

    def forget(self) -> None:
        """Forget what the caches had, because they may have changed. The next is_gone() reads them again."""
        self.paths = None

    def is_gone(self, attachment: Attachment, noted: str = "") -> bool:
        """Return whether the pod of an attachment is gone. noted: the path of its network namespace, as its ADD
        wrote it into the address file. If a cache has another path, both namespaces must be gone. False if no path is
        known."""
        if noted and not self._is_gone(noted):
            return False
        if self.paths is None:
            self.paths = self.cached()
        cached = self.paths.get(attachment, "")
        return self._is_gone(cached) if cached and cached != noted else bool(noted)

    def _is_gone(self, path):
        state = self.state_of(path)[0]
        if state == ALIVE:
            self.folders.add(os.path.dirname(path))
        return state == GONE and (path.startswith("/proc/") or os.path.dirname(path) in self.folders)


def blind() -> Pods:
    """Pods of which nothing is known: none counts as gone."""
    return Pods(lambda path: ("unknown", "this server does not look"), dict)
