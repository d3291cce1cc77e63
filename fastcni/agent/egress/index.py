"""Keep an index of EgressAddress documents and the pods that they select. The compiler of policies updates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.agent.egress.objects import EgressAddress, Subjects
    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.groups import Groups
    from fastcni.agent.policy.objects import Pod


class EgressIndex:
    """The EgressAddress documents and their pods. documents: {name: document}. notify(): called after each change that
    may change the result of subjects()."""

    def __init__(self, cluster: Cluster, groups: Groups) -> None:
        self.documents: dict[str, EgressAddress] = {}
        self.notify: Callable[[], object] = lambda: None
        self._cluster, self._groups = cluster, groups

    def put(self, name: str, egress_address: EgressAddress | None) -> None:
        """Add or replace the document `name`; egress_address None: remove it."""
        old = self.documents.pop(name, None)
        if egress_address:
            self._groups.use(egress_address.pods)
            self.documents[name] = egress_address
        if old:
            self._groups.release(old.pods)
        self.notify()

    def pods_changed(self) -> None:
        """Call notify() after a pod was added, changed or removed, if documents exist."""
        if self.documents:
            self.notify()

    def subjects(self) -> Subjects:
        """Return {a pod's address: the EgressAddress that applies to it}."""
        found: dict[bytes, EgressAddress] = {}
        for _, each in sorted(self.documents.items()):
            for key in self._groups.members(each.pods):
                for packed in self._cluster.pods[key].addresses:
                    if each.closed or each.of_family(packed):
                        found.setdefault(packed, each)
        return found

    def selects(self, pod: Pod) -> list[EgressAddress]:
        """Return the documents that select `pod`. The cluster's records need not have the pod yet."""
        return [each for each in self.documents.values() if each.pods.matches(pod, self._cluster.namespaces)]
