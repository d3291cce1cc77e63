"""The features of policies besides rules on addresses and ports. Each part has a state of its own, in the kernel or in
another program, and adapts this state to the compiler's. The loop of service.py calls the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fastcni.agent.egress.part import EgressPart
from fastcni.agent.policy.http.part import Proxy
from fastcni.agent.policy.names.part import Names
from fastcni.daemon.attended import Attended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastcni.agent.policy.engine import Engine
    from fastcni.agent.policy.service import Settings
    from fastcni.daemon.log import Logger

    Opener = Callable[[Engine, Settings, Logger], "Part"]


class Part(Attended, Protocol):
    """attend() raises OSError if the kernel refuses; the caller logs the error and calls again a second later."""

    def changed(self) -> None:
        """Follow a change by the source or by an ADD. Called after the table was written."""
        ...

    def figures(self) -> Mapping[str, int]:
        """Return the part's metrics: {name: value}."""
        ...

    def close(self) -> None:
        """End the part together with the agent. Rules that protect pods stay in the kernel."""
        ...


OPENERS: tuple[Opener, ...] = (Names, Proxy, EgressPart)
