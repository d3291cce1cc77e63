"""Define Bench, the state that all parts of a run share: the node, the implementations, and the notes for the
report."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence

from rich.console import Console

from fastcni.bench.cases import Case, Options
from fastcni.bench.floor import Floor
from fastcni.bench.node import Node
from fastcni.bench.progress import Meter
from fastcni.bench.sides import Plugins, Side
from fastcni.kernel import wire
from fastcni.kit.links.devices import has_kind

LOG_SECONDS = 2


class Bench:
    """The state that all parts of a run share.

    expected: {part: estimated seconds}. node, sides, floor: the objects of node.py, sides.py and floor.py. directory:
    the directory of fastcni's plugin files. outside: a descriptor of the caller's network namespace. run.set_up() sets
    all of these except `expected`."""

    node: Node
    floor: Floor
    directory: str
    outside: int

    def __init__(self, options: Options, expected: dict[str, float]) -> None:
        self.options, self.plan, self.cases = options, options.plan, options.cases
        self.random = random.Random(options.plan.seed)
        self.progress = Console(stderr=True)
        self.meter = Meter(self.progress, expected)
        self.steps = self.meter.steps
        self.notes: list[str] = []
        self.failed = False
        self.sides: list[Side] = []

    def has_kind(self, case: Case) -> bool:
        """Return whether this kernel supports the case's kind of link. If not, add a note that the run leaves out the
        case."""
        with wire.open_socket() as sock:
            there = not case.kind or has_kind(sock, case.kind)
        if not there:
            self.note(f"{case.name} is left out: this kernel has no {case.kind} links")
        return there

    def sides_of(self, case: Case) -> list[Side]:
        """Return the implementations that can run the case. The floor cannot run a case with `single`; old Go plugins
        may lack the case's plugin."""
        found: list[Side] = []
        for side in self.sides:
            if isinstance(side, Floor):
                found += [] if case.single else [side]
            elif os.path.exists(f"{side.directory}/{case.type}"):
                found.append(side)
            else:
                self.note(f"{case.name} is without {side.name}: there is no {case.type} in {side.directory}")
        return found

    def shuffled(self, sides: Sequence[Side]) -> list[Side]:
        """Return the implementations in random order."""
        return self.random.sample(sides, len(sides))

    def note(self, text: str) -> None:
        """Print a note about the measurements, and store the note for the report."""
        self.notes.append(text)
        self.progress.print(f"Note: {text}", markup=False, highlight=False)

    def compare_with_log(self, side: Plugins) -> None:
        """Add a note if the server did not answer all warm calls. The missing calls ran one-shot, so the times are not
        those of warm calls."""
        assert side.server is not None
        deadline = time.monotonic() + LOG_SECONDS
        while (answered := side.server.answered()) < side.sent and time.monotonic() < deadline:
            time.sleep(0.1)             # the server writes its log after its answer
        if answered < side.sent:
            self.note(f"the server's log lacks {side.sent - answered} of {side.sent} warm calls, so these ran one-shot")
