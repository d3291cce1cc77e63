"""Define the contract of an option: a module with the functions that a plugin calls only if its configuration asks for
the option.

Only type checkers import this module. An option's functions have the names of the plugin's functions, except `prepare`,
which bridge calls before `add`. Each option has `add`; the other functions are optional. The plugin's Conf lists the
options that the network asks for, in the order of ADD. DEL calls them in the reverse order.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol, TypeVar

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    C_contra = TypeVar("C_contra", contravariant=True)      # the plugin's Conf
    L_contra = TypeVar("L_contra", contravariant=True)      # PodLink of kit/call/pod.py, or a subclass

    class Option(Protocol[C_contra, L_contra]):
        """An option whose state disappears together with the pod's link."""

        def add(self, req: Request, conf: C_contra, link: L_contra, undo: Undo) -> None:
            """Apply the option to the new link. Raises CniError, NetlinkError."""

    class Kept(Option[C_contra, L_contra], Protocol[C_contra, L_contra]):
        """An option that has state on the host for the pod."""

        def delete(self, req: Request, conf: C_contra, found: Sequence[bytes], given: Sequence[bytes]) -> None:
            """Remove the pod's state; a second call is no error. found, given: packed addresses, see
            remove.pod_link()."""

        def gc(self, req: Request, conf: C_contra) -> None:
            """Remove the state of pods that no longer exist, and report this state by req.release()."""

    class Restored(Kept[C_contra, L_contra], Protocol[C_contra, L_contra]):
        """An option whose state other programs can remove, for example by `nft flush ruleset`."""

        def restore(self, req: Request, conf: C_contra, previous: dict[str, Any]) -> None:
            """Add again the state that another program removed. previous: prevResult."""

    class Prepared(Option[C_contra, L_contra], Protocol[C_contra, L_contra]):
        """An option in when_up of bridge's Conf that needs a step before the pod's link exists."""

        def prepare(self, req: Request, conf: C_contra, link: L_contra, undo: Undo) -> None:
            """Set attributes of `link` that decide how bridge makes the pod's link. Raises CniError."""

    class Checked(Protocol[C_contra, L_contra]):
        """An option that CHECK verifies."""

        def check(self, req: Request, conf: C_contra, link: L_contra) -> None:
            """Raise CniError if the option's state differs from the state that ADD made."""
