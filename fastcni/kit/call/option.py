"""The contract of an option: what a plugin does only if its configuration asks for it, as one module.

Only type checkers import this module. The functions of an option have the names of the plugin's; an option has `add`,
and those of the others for which it has something to do. The plugin's Conf has a list of the options for which a
network asks, in the order of ADD: the plugin goes through it forwards, and backwards in DEL.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol, TypeVar

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    C_contra = TypeVar("C_contra", contravariant=True)      # the plugin's Conf
    L_contra = TypeVar("L_contra", contravariant=True)      # its PodLink

    class PodLink(Protocol):
        """The pod's veth pair, as far as ADD has made it, or as CHECK has found it.

        host, inside  its ends
        result        ADD: the result so far; CHECK: prevResult
        """

        pod: Pod
        host: Link
        inside: Link
        result: dict[str, Any]

    class Option(Protocol[C_contra, L_contra]):
        """An option whose state disappears together with the pod's link."""

        def add(self, req: Request, conf: C_contra, link: L_contra, undo: Undo) -> None:
            """Apply the option to the new link. Raises CniError, NetlinkError."""

    class Kept(Option[C_contra, L_contra], Protocol[C_contra, L_contra]):
        """An option that has state on the host for the pod."""

        def delete(self, req: Request, conf: C_contra, found: Sequence[bytes], given: Sequence[bytes]) -> None:
            """Remove the pod's state; idempotent. found, given: packed addresses as remove.pod_link() returns them."""

        def gc(self, req: Request, conf: C_contra) -> None:
            """Remove the state of pods that no longer exist, and report this state by req.release()."""

    class Restored(Kept[C_contra, L_contra], Protocol[C_contra, L_contra]):
        """An option that other programs can undo, as by a flush of nftables."""

        def restore(self, req: Request, conf: C_contra, previous: dict[str, Any]) -> None:
            """Add again the state that another program removed. previous: prevResult."""

    class Checked(Protocol[C_contra, L_contra]):
        """An option that CHECK verifies."""

        def check(self, req: Request, conf: C_contra, link: L_contra) -> None:
            """Raise CniError if the option's state differs from the state that ADD made."""
