"""Show the progress of a run on stderr: a bar with the remaining time, or lines if stderr is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

REFRESH_SECONDS = 0.5
LINE_SECONDS = 60               # at most one line in this time for a part, after its first line
TRUSTED_SECONDS = 15            # the weight of the estimate, in seconds of the run


class Meter:
    """The position in the run. expected: {part: seconds}, an estimate, which is corrected during the run."""

    def __init__(self, console: Console, expected: Mapping[str, float]) -> None:
        self.console, self.expected = console, dict(expected)
        self.part, self.ended = "", 0.0         # ended: the expected seconds of the parts that have ended
        self.started = time.monotonic()

    @contextmanager
    def of_part(self, part: str) -> Iterator[None]:
        """Count the steps of the body to this part."""
        self.part = part
        yield
        self.ended += self.expected.get(part, 0.0)

    def left(self, done: float) -> str:
        """Return the remaining time as text. done: the expected seconds of the finished work."""
        elapsed, total = time.monotonic() - self.started, sum(self.expected.values())
        slower = (elapsed + TRUSTED_SECONDS) / (done + TRUSTED_SECONDS)
        return f"{duration((total - done) * slower)} left"

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Callable[..., None]]:
        """Show the progress: `with meter.steps("density", 10) as step:`.

        step() counts one step, step(0, "ptp") sets the text. Only these calls draw, so that nothing is drawn while a
        call is measured."""
        at, count = 1 + list(self.expected).index(self.part), 0
        what = f"{at}/{len(self.expected)} {what}"
        whole, mine = max(1.0, sum(self.expected.values())), self.expected[self.part]
        shown = self.console.is_terminal
        name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
        columns = name, BarColumn(16), TaskProgressColumn(), TextColumn("{task.fields[left]}")
        drawn = time.monotonic()

        def draw() -> None:
            nonlocal drawn
            done = self.ended + mine * count / max(1, total)
            if shown:
                bar.update(task, completed=done, left=self.left(done))
                bar.refresh()
            else:
                text = bar.tasks[task].description
                self.console.print(f"{text}: {done / whole:.0%}, {self.left(done)}", highlight=False, markup=False)
            drawn = time.monotonic()

        def step(more: int = 1, text: str = "") -> None:
            nonlocal count
            count += more
            if text:
                bar.update(task, description=f"{what}: {text}")
            if time.monotonic() - drawn > (REFRESH_SECONDS if shown else LINE_SECONDS):
                draw()

        with Progress(*columns, console=self.console, auto_refresh=False, transient=True, expand=True,
                      disable=not shown) as bar:
            task = bar.add_task(what, total=whole, completed=int(self.ended), left=self.left(self.ended))
            draw()
            yield step


def duration(length: float) -> str:
    """Return seconds as rounded text: "about 40 s", "about 7 min"."""
    if length < 10:
        return "a few seconds"
    if length < 90:
        return f"about {round(length, -1):.0f} s"
    return f"about {length / 60:.0f} min"
