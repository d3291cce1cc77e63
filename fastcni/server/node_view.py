"""Define NodeView, by which the server reads the state of its node. With this base class the server neither restores
nor shows the node's attachments."""

from __future__ import annotations

from fastcni.server.cluster.pods import Pods, blind
from fastcni.server.metrics.pools import Counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.server.restoring.drop_watch import Drops
    from fastcni.server.restoring.replay import Run
    from fastcni.server.web.status_page import Ask, Document


class NodeView:
    """A node whose files the server does not read. `fastcni serve` uses the class in node/served.py, which reads these
    files.

    replay  restores the firewall rules of all attachments; None: the server does not restore rules
    drops   finds the pods whose packets another program's firewall drops; None: the server does not search
    pods    answers whether the pod of an attachment still exists
    """

    replay: Run | None = None
    drops: Drops | None = None

    def __init__(self, pods: Pods | None = None) -> None:
        self.pods = pods or blind()

    def configured(self) -> Iterable[Keys]:
        """Return the keys of the networks with cluster-wide addresses."""
        return ()

    def networks(self) -> Iterable[dict[str, Any]]:
        """Return the network configurations of the node."""
        return ()

    def count(self) -> Counted:
        """Count the addresses of each range, and the attachments."""
        return Counted()

    def make_status(self, describe: Callable[[], Document], ask: Ask | None) -> Callable[[], Document]:
        """Return a function that makes the status page's document of requests. describe: makes the server's status
        document. ask: returns the requests; None if the server keeps no history."""
        return dict

    def topology(self) -> Document:
        """Return the status page's document of the node's attachments."""
        return {}
