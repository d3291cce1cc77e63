"""Find the groups to which a pod belongs, by an index of groups: by namespace, and by one label that a group requires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.policy.objects import IN

if TYPE_CHECKING:
    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.objects import Group, Pod

    Place = tuple[str, tuple[str, str] | None]      # (namespace or "", (label, value) or None)


class Groups:
    """The groups in use with their members, and the pods with their groups. Methods name a pod by its key."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._members: dict[Group, set[str]] = {}
        self._uses: dict[Group, int] = {}
        self._index: dict[Place, set[Group]] = {}
        self._of: dict[str, set[Group]] = {}
        self._of_namespace: dict[str, set[str]] = {}

    def of(self, key: str) -> set[Group]:
        """Return the groups to which the pod `key` belongs."""
        return self._of.get(key, set())

    def members(self, group: Group) -> set[str]:
        return self._members[group]

    def use(self, group: Group) -> set[str]:
        """Record one more use of a group. Return the keys of its pods."""
        self._uses[group] = self._uses.get(group, 0) + 1
        if group not in self._members:
            self._index.setdefault(place(group), set()).add(group)
            keys = self._of_namespace.get(group.namespace, ()) if isinstance(group.namespace, str) else (
                self._cluster.pods)
            pods, namespaces = self._cluster.pods, self._cluster.namespaces
            self._members[group] = {key for key in keys if group.matches(pods[key], namespaces)}
            for key in self._members[group]:
                self._of[key].add(group)
        return self._members[group]

    def release(self, group: Group) -> None:
        """Record the end of one use of a group, and forget a group without uses."""
        self._uses[group] -= 1
        if not self._uses[group]:
            for key in self._members.pop(group):
                self._of[key].discard(group)
            at = place(group)
            self._index[at].discard(group)
            if not self._index[at]:
                del self._index[at]
            del self._uses[group]

    def matching(self, pod: Pod) -> set[Group]:
        """Return the groups in use to which `pod` belongs. The pod need not have been added."""
        namespaces = self._cluster.namespaces
        return {group for where in (pod.namespace, "") for label in (*pod.labels.items(), None)
                for group in self._index.get((where, label), ()) if group.matches(pod, namespaces)}

    def add(self, pod: Pod) -> None:
        self._of[pod.key] = found = self.matching(pod)
        for group in found:
            self._members[group].add(pod.key)
        self._of_namespace.setdefault(pod.namespace, set()).add(pod.key)

    def remove(self, pod: Pod) -> None:
        for group in self._of.pop(pod.key):
            self._members[group].discard(pod.key)
        self._of_namespace[pod.namespace].discard(pod.key)


def place(group: Group) -> Place:
    """Return a group's key in the index: (namespace, label). All pods of the group have this namespace and this label;
    "" and None stand for any."""
    label = next(((one.key, next(iter(one.values))) for one in group.pods.requirements
                  if one.operator == IN and len(one.values) == 1), None)
    return group.namespace if isinstance(group.namespace, str) else "", label
