"""Repeat an action that ends with an error, such as the watch of a registry, with growing pauses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from time import monotonic


def tries(stop: Callable[[], bool], wait: Callable[[float], object], first_s: float, most_s: float) -> Iterator[float]:
    """Yield before each try, until stop() returns true. The value is the pause that follows the try, in seconds.

    wait(seconds): waits for the pause, made randomly shorter or longer by up to half. The first pause is first_s. Each
    further pause is twice as long, up to most_s. After a try that took longer than most_s, the pause is first_s again.
    """
    pause = first_s
    while not stop():
        began = monotonic()
        yield pause
        if monotonic() - began > most_s:
            pause = first_s
        if not stop():
            wait(random.uniform(0.5, 1.5) * pause)
            pause = min(2 * pause, most_s)
