"""Python's garbage collector in a process that answers many short requests."""

import gc

THRESHOLD = 10_000              # new objects; a request makes hundreds, and almost no cycles


def freeze() -> None:
    """Let no later collection search the objects that are there now, and collect seldom from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD)
