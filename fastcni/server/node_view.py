"""What the server asks about its own node. Without an answer it neither restores nor shows anything of the node."""

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
    """A node of which nothing is known. `fastcni serve` takes node/served.py, which reads the node's files.

    replay  restores the firewall rules of all attachments; None: nothing does
    drops   which pods another program's firewall drops; None: nobody looks
    pods    whether the pods of attachments are gone
    """

    replay: Run | None = None
    drops: Drops | None = None

    def __init__(self, pods: Pods | None = None) -> None:
        self.pods = pods or blind()

    def configured(self) -> Iterable[Keys]:
        """The cluster-wide address spaces of the node's networks."""
        return ()

    def networks(self) -> Iterable[dict[str, Any]]:
        """The network configurations of the node."""
        return ()

    def count(self) -> Counted:
        """Count the addresses of each range, and the attachments."""
        return Counted()

    def make_status(self, describe: Callable[[], Document], ask: Ask | None) -> Callable[[], Document]:
        """What makes the status page's document of requests. describe: makes the server's own document. ask: its
        requests; None without a history."""
        return dict

    def topology(self) -> Document:
        """The status page's document of the node's attachments."""
        return {}
