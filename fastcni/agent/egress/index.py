"""Which pods leave the cluster from which egress addresses: kept up to date by a Compiler of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.egress.objects import subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastcni.agent.egress.objects import EgressAddress, Subjects
    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.groups import Groups
    from fastcni.agent.policy.objects import Pod


class EgressIndex:
    """documents: by name. notify: called after each change that subjects() may show."""

    def __init__(self, cluster: Cluster, groups: Groups) -> None:
        self.documents: dict[str, EgressAddress] = {}
        self.notify: Callable[[], object] = lambda: None
        self._cluster, self._groups = cluster, groups

    def put(self, name: str, egress_address: EgressAddress | None) -> None:
        """Add an EgressAddress, or replace it; None: the object is gone."""
        old = self.documents.pop(name, None)
        if egress_address:
            self._groups.use(egress_address.pods)
            self.documents[name] = egress_address
        if old:
            self._groups.release(old.pods)
        self.notify()

    def pods_changed(self) -> None:
        """Record that a pod has come, changed or gone."""
        if self.documents:
            self.notify()

    def subjects(self) -> Subjects:
        """Return which EgressAddress counts for each address of a pod."""
        return subjects(self.documents.values(), self._members)

    def selects(self, pod: Pod) -> list[EgressAddress]:
        """Return the documents that select a pod, even one that was not put."""
        return [each for each in self.documents.values() if each.pods.matches(pod, self._cluster.namespaces)]

    def _members(self, egress_address: EgressAddress) -> Iterator[Pod]:
        return (self._cluster.pods[key] for key in self._groups.members(egress_address.pods))
