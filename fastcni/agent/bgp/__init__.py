"""Announce this node's subnets, and its blocks of cluster-wide addresses, by BGP with BIRD 2 or FRR.

    settings  reads the file of `fastcni agent --bgp FILE`
    bird      the engine BIRD
    frr       the engine FRR

An engine is a module with the functions of Engine. The engine has the BGP sessions: the agent writes the engine's
configuration, and does not read the state of sessions.

The engine continues to announce while the agent restarts. After `fastcni agent --leave`, the node announces nothing.
"""

from __future__ import annotations

import contextlib
import json
from ipaddress import ip_network
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from fastcni.agent import files
from fastcni.agent.bgp import bird, frr
from fastcni.agent.bgp.settings import BgpError, Settings, read_settings
from fastcni.agent.contract import ConfigurationError
from fastcni.kit.ipam.cluster.node_state import BLOCKS, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastcni.agent.contract import Address, Prefix
    from fastcni.daemon.log import Logger

__all__ = ["Bgp", "Settings", "read_settings"]


class Engine(Protocol):
    """The contract of engines: BIRD or FRR. Each function raises BgpError if the program does not answer, or rejects
    the configuration."""

    @property
    def CHECK_S(self) -> float:
        """Return the seconds between two calls of is_applied(); inf: the program keeps its configuration itself."""
        ...

    def text(self, settings: Settings, router_id: str, prefixes: Collection[Prefix]) -> str:
        """Return the program's configuration that announces `prefixes`."""
        ...

    def apply(self, settings: Settings, configuration: str) -> None:
        """Write the configuration to settings.config, and make the program read it."""
        ...

    def is_applied(self, settings: Settings) -> bool:
        """Return whether the program still has the configuration."""
        ...


ENGINES: dict[str, Engine] = {"bird": bird, "frr": frr}
LOOK_S = 1.0                    # seconds between two reads of the address spaces' blocks
RETRY_S = 5.0                   # seconds between tries while the engine is unavailable


def blocks_of(directories: Sequence[str]) -> list[Prefix]:
    """Return this node's blocks in the address spaces of `directories`. A missing directory has no blocks. Raises
    ValueError if a file is damaged."""
    found = []
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            document = json.loads(files.read(Path(directory, BLOCKS)))
            found += [ip_network(cidr) for cidr in State(document).blocks]
    return found


class Bgp:
    """The announcements of this node by a BGP engine. due: when to call attend(), in monotonic seconds. A separate
    thread calls attend(), because the engine may take long to answer."""

    def __init__(self, settings: Settings, log: Logger) -> None:
        self.settings, self.log = settings, log
        self.router_id = settings.router_id
        self.engine = ENGINES[settings.engine]
        self.subnets: list[Prefix] = []
        self.due = float("inf")
        self.told = ""                  # the configuration that the engine has read
        self.problem = ""               # the last logged error
        self.checked = 0.0              # when the engine last confirmed this configuration, monotonic

    def announce(self, subnets: Collection[Prefix], public: Address | None) -> None:
        """Announce `subnets` with the next attend(). public: the node's IPv4 address, the default router id. Raises
        ConfigurationError if the settings have no router id and `public` is None."""
        if not self.router_id:
            if public is None:
                raise ConfigurationError("--bgp: the node has no public IPv4 address, so router_id is needed")
            self.router_id = str(public)
        self.subnets, self.due = list(subnets), 0.0

    def set(self, subnets: Collection[Prefix], public: Address | None) -> None:
        """Announce `subnets` immediately. Raises ConfigurationError, OSError."""
        self.announce(subnets, public)
        self.attend()

    def attend(self) -> None:
        """If the subnets, the blocks or the engine's configuration have changed, write the configuration file and make
        the engine read it. Raises OSError."""
        now = monotonic()
        if now < self.due:
            return
        self.due = now + min(LOOK_S if self.settings.spaces else float("inf"), self.engine.CHECK_S)
        try:
            prefixes = [*self.subnets, *blocks_of(self.settings.spaces)]
        except ValueError as e:         # a power failure left a file incomplete; the IPAM plugin repairs it
            self._tell_problem(f"blocks of a space: {e}")
            return
        text = self.engine.text(self.settings, self.router_id, prefixes)
        try:
            if text == self.told and self._is_kept(now):
                return
            self.engine.apply(self.settings, text)
        except BgpError as e:
            self._tell_problem(str(e))
            self.due, self.told = now + RETRY_S, ""
            return
        self.checked = now
        self.told, self.problem = text, ""
        self.log.info("announced", prefixes=" ".join(map(str, prefixes)))

    def _is_kept(self, now: float) -> bool:
        """Return whether the engine still has the configuration. Ask the engine at most every CHECK_S; in between,
        return True. Raises BgpError."""
        if now - self.checked < self.engine.CHECK_S:
            return True
        self.checked = now
        return self.engine.is_applied(self.settings)

    def _tell_problem(self, text: str) -> None:
        if text != self.problem:
            self.log.error("bgp_failed", error=text)
        self.problem = text
