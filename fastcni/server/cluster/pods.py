"""Decide which pods no longer exist, by their network namespaces; kernel/presence.py has the proof."""

from __future__ import annotations

from fastcni.kernel.presence import GONE, UNKNOWN, unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Attachment = tuple[str, str, str]           # network, container id, ifname
    Place = tuple[str, float]                   # path of the namespace, and when it existed: as state_of() has them


class Pods:
    """The pods of the node. state_of: see kernel/presence.py. cached(): returns the places in the runtimes' result
    caches."""

    def __init__(self, state_of: Callable[[str, float], tuple[str, str]],
                 cached: Callable[[], Mapping[Attachment, Place]]) -> None:
        self.state_of, self.cached = state_of, cached
        self.places: Mapping[Attachment, Place] | None = None

    def forget(self) -> None:
        """Forget the contents of the result caches, so that the next is_gone() reads the caches again."""
        self.places = None

    def is_gone(self, attachment: Attachment, path: str = "", since: float = 0.0) -> bool:
        """Return whether the pod of an attachment no longer exists. path: the path of its network namespace, which ADD
        wrote into the address file at the time `since`. If a cache has another path, neither namespace may exist. False
        if no path is known."""
        if path and not self._is_gone(path, since):
            return False
        if self.places is None:
            self.places = self.cached()
        cached, cached_since = self.places.get(attachment, ("", 0.0))
        return self._is_gone(cached, cached_since) if cached and cached != path else bool(path)

    def unseen(self) -> list[tuple[str, str]]:
        """Return [(directory, why)] of the directories in which namespaces of pods cannot be seen."""
        return list(unseen(path for path, _ in self.cached().values() if path))

    def _is_gone(self, path: str, since: float) -> bool:
        return self.state_of(path, since)[0] == GONE


def blind() -> Pods:
    """Return a Pods that answers UNKNOWN for every pod, so that callers treat each pod as existing."""
    return Pods(lambda path, since: (UNKNOWN, "this server does not look"), dict)
