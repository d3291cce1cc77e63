"""Decide by a pod's network namespace whether the pod no longer exists; kernel/presence.py explains the proof."""

from __future__ import annotations

from fastcni.kernel.presence import GONE, UNKNOWN, unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    Attachment = tuple[str, str, str]           # network, container id, ifname
    Place = tuple[str, float]                   # path of a namespace, a time at which it existed: see Pods.state_of


class Pods:
    """The pods of the node. state_of: see kernel/presence.py. cached(): returns the Place of each attachment that the
    runtimes' result caches have. replaced(): returns each ended attachment whose namespace's path a later pod now uses,
    see runtime/replaced.py."""

    def __init__(self, state_of: Callable[[str, float], tuple[str, str]],
                 cached: Callable[[], Mapping[Attachment, Place]],
                 replaced: Callable[[], Collection[Attachment]] = tuple) -> None:
        self.state_of, self.cached, self.replaced = state_of, cached, replaced
        self.places: Mapping[Attachment, Place] | None = None
        self.ended: Collection[Attachment] | None = None

    def forget(self) -> None:
        """Forget the contents of the result caches, so that the next is_gone() reads the caches again."""
        self.places = self.ended = None

    def is_gone(self, attachment: Attachment, path: str = "", since: float = 0.0, *, shared: bool = False) -> bool:
        """Return whether the pod of an attachment no longer exists. path: the path of its network namespace, which ADD
        wrote into the address file at the time `since`. If a result cache has another path, True only if both
        namespaces no longer exist. False if no path is known. shared: whether another pod has this path, too."""
        if shared:
            self.ended = self.replaced() if self.ended is None else self.ended
            if attachment in self.ended:
                return True
        if path and not self._is_gone(path, since):
            return False
        if self.places is None:
            self.places = self.cached()
        cached, cached_since = self.places.get(attachment, ("", 0.0))
        return self._is_gone(cached, cached_since) if cached and cached != path else bool(path)

    def unseen(self) -> list[tuple[str, str]]:
        """Return (directory, why) of each directory in which this process cannot see namespaces of pods."""
        return list(unseen(path for path, _ in self.cached().values() if path))

    def _is_gone(self, path: str, since: float) -> bool:
        return self.state_of(path, since)[0] == GONE


def blind() -> Pods:
    """Return a Pods that answers UNKNOWN for every pod, so that callers treat each pod as existing."""
    return Pods(lambda path, since: (UNKNOWN, "this server does not look"), dict)
