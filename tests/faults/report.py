"""Count and print the attempts, failures and residue of each campaign."""

import random
import threading
import time

MAX_SHOWN = 8                   # failures of one campaign that stdout shows; the log has all failures


class Row:
    """The row of one campaign in the table. Methods may be called in any thread. until: the end of the campaign in
    seconds of time.monotonic(). log: a file for all failures, or None."""

    def __init__(self, name, seconds, seed, log=None):
        self.name, self.seed, self.until, self.log = name, seed, time.monotonic() + seconds, log
        self.attempts, self.failures, self.residue, self.notes = 0, [], [], []
        self.lock = threading.Lock()

    def rng(self, *more):
        """Return a random generator. The same seed and `more` give the same choices."""
        return random.Random(f"{self.seed} {self.name} {more}")

    @property
    def running(self):
        return time.monotonic() < self.until

    def attempt(self, count=1):
        with self.lock:
            self.attempts += count

    def failed(self, text):
        """Count a failure, such as a hang, a missing document or a wrong answer."""
        self._add(self.failures, text)

    def left(self, text):
        """Count residue that `text` describes. text="": there is no residue."""
        if text:
            self._add(self.residue, text)

    def note(self, text):
        """Add a note to the row."""
        with self.lock:
            self.notes.append(text)

    def _add(self, found, text):
        with self.lock:
            found.append(text)
            if self.log:
                print(f"{self.name}: {text}", file=self.log, flush=True)
        if len(found) <= MAX_SHOWN:
            print(f"  {self.name}: {text[:1000]}", flush=True)


def table(rows, took):
    """Return the table in Markdown. took: {name: seconds}."""
    lines = ["| campaign | attempts | failures | residue | seconds | |", "|---|--:|--:|--:|--:|---|"]
    lines += [f"| {row.name} | {row.attempts:,} | {len(row.failures)} | {len(row.residue)} | {took[row.name]:.0f} "
              f"| {', '.join(row.notes)} |" for row in rows]
    return "\n".join(lines)
