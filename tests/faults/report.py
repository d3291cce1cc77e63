"""One campaign's row in the table: attempts, failures, what was left behind."""

import random
import threading
import time

SHOWN = 8                       # of the failures of one campaign


class Row:
    """What a campaign does is counted here, by any thread. `until`: when it stops, in monotonic seconds."""

    def __init__(self, name, seconds, seed):
        self.name, self.seed, self.until = name, seed, time.monotonic() + seconds
        self.attempts, self.failures, self.residue, self.notes = 0, [], [], []
        self.lock = threading.Lock()

    def rng(self, *more):
        """Random choices that the seed repeats."""
        return random.Random(f"{self.seed} {self.name} {more}")

    @property
    def running(self):
        return time.monotonic() < self.until

    def attempt(self, count=1):
        with self.lock:
            self.attempts += count

    def failed(self, text):
        """The program did what it must not: a hang, no document, a wrong answer."""
        self._add(self.failures, text)

    def left(self, text):
        """Something is there that should not be; "" for nothing."""
        if text:
            self._add(self.residue, text)

    def note(self, text):
        """A figure for the table."""
        with self.lock:
            self.notes.append(text)

    def _add(self, found, text):
        with self.lock:
            found.append(text)
        if len(found) <= SHOWN:
            print(f"  {self.name}: {text[:1000]}", flush=True)


def table(rows, took):
    """The table in Markdown; took: {name: seconds}."""
    lines = ["| campaign | attempts | failures | residue | seconds | |", "|---|--:|--:|--:|--:|---|"]
    lines += [f"| {row.name} | {row.attempts:,} | {len(row.failures)} | {len(row.residue)} | {took[row.name]:.0f} "
              f"| {', '.join(row.notes)} |" for row in rows]
    return "\n".join(lines)
