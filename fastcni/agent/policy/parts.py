"""The features of policies besides rules on addresses and ports: each part keeps a state of its own, in the kernel or
in another program, and follows what the compiler knows. The loop of service.py serves it."""

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
        """Follow what the source or an ADD has changed. It is called after the table was written."""
        ...

    def figures(self) -> Mapping[str, int]:
        """Return what the metrics show, by name."""
        ...

    def close(self) -> None:
        """End what ends with the agent. What protects pods stays."""
        ...


OPENERS: tuple[Opener, ...] = (Names, Proxy, EgressPart)
