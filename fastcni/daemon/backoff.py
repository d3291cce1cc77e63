"""Delay a repeated action, so that two programs that undo each other's work do not keep a processor busy."""

from __future__ import annotations

from time import monotonic

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
RESET_S = 30.0                  # if the action has not happened for this long, the next delay is 0 again


class Backoff:
    """The delay of a repeated action: 0 after the first action, then FIRST_DELAY_S, then doubled up to MAX_DELAY_S.

    seconds: the delay before the next action. until: the end of the delay, in monotonic seconds.
    """

    def __init__(self) -> None:
        self.seconds, self.until, self.last = 0.0, 0.0, -RESET_S

    def begin(self) -> None:
        """Record that the action happens now, and compute the delay before the next action."""
        now = monotonic()
        repeated = now - self.last < RESET_S
        self.seconds = min(max(FIRST_DELAY_S, 2 * self.seconds), MAX_DELAY_S) if repeated else 0.0
        self.last, self.until = now, now + self.seconds
