"""Sweep the datapath ebpf of the server's node: flows that have ended, and addresses of pods that no longer exist."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastcni.kernel import wire
from fastcni.kit.datapath import redirect

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.log import Logger

SWEEP_S = 30.0


class DatapathSweep:
    """The periodic sweep. background(fn, *args): runs fn in a thread that is in the server's network namespace."""

    def __init__(self, background: Callable[..., object], logger: Logger) -> None:
        self.background, self.logger = background, logger
        self.due, self.failed = 0.0, ""

    def poll(self) -> None:
        """Begin a sweep if one is due; never waits."""
        if monotonic() >= self.due:
            self.due = monotonic() + SWEEP_S
            self.background(self.sweep)

    def sweep(self) -> None:
        """Sweep now. Log an error once, until a sweep succeeds or a different error occurs."""
        try:
            with wire.open_socket() as sock:
                redirect.sweep(sock)
            self.failed = ""
        except OSError as e:
            if str(e) != self.failed:
                self.failed = str(e)
                self.logger.warning("datapath_unswept", error=self.failed)
