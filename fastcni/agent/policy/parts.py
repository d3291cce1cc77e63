"""List the parts of the policy service: DNS names, HTTP rules and egress addresses. Each part updates its own state, in
the kernel or in another program, when the compiler's state changes. The loop of service.py calls the parts."""

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
    """One feature of policies. If the kernel rejects a change, attend() raises OSError. The caller then logs the error
    and calls attend() again a second later."""

    def changed(self) -> None:
        """Adapt the part to changes by the source or by an ADD. The loop calls this method after it has written the
        table."""
        ...

    def figures(self) -> Mapping[str, int]:
        """Return the part's metrics: {name in metrics.POLICY_GAUGES: value}."""
        ...

    def close(self) -> None:
        """Stop the part when the agent ends. Rules that protect pods stay in the kernel."""
        ...


OPENERS: tuple[Opener, ...] = (Names, Proxy, EgressPart)
