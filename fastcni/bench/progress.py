"""Show the progress of a run on stderr: a bar with the remaining time, or lines if stderr is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

REFRESH_SECONDS = 0.5
LINE_SECONDS = 60               # without a terminal, the fewest seconds between two lines of a part
TRUSTED_SECONDS = 15            # the estimate counts as much as this many measured seconds


class Meter:
    """The progress of a run, and an estimate of the remaining time. expected: {part: estimated seconds}. Meter corrects
    the estimate during the run."""

    def __init__(self, console: Console, expected: Mapping[str, float]) -> None:
        self.console, self.expected = console, dict(expected)
        self.part, self.ended = "", 0.0         # ended: the estimated seconds of finished parts
        self.started = time.monotonic()

    @contextmanager
    def of_part(self, part: str) -> Iterator[None]:
        """Count the steps in the body as steps of this part."""
        self.part = part
        yield
        self.ended += self.expected.get(part, 0.0)

    def left(self, done: float) -> str:
        """Return the remaining time as text, such as "about 7 min left". done: the estimated seconds of the finished
        work."""
        elapsed, total = time.monotonic() - self.started, sum(self.expected.values())
        slower = (elapsed + TRUSTED_SECONDS) / (done + TRUSTED_SECONDS)
        return f"{duration((total - done) * slower)} left"

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Callable[..., None]]:
        """Show the progress of a part: `with meter.steps("density", 10) as step:`. total: the number of steps.

        step() counts one step, step(0, "ptp") sets the text. Only calls of step() draw, so that drawing does not
        disturb a measured call."""
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
    """Return a length in seconds as rounded text: "about 40 s", "about 7 min"."""
    if length < 10:
        return "a few seconds"
    if length < 90:
        return f"about {round(length, -1):.0f} s"
    return f"about {length / 60:.0f} min"
