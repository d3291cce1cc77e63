"""Limit Python's garbage collector in a process that answers many short requests."""

import gc

THRESHOLD = 10_000              # new objects between collections: a request makes hundreds of objects, almost no cycles


def freeze() -> None:
    """Exclude all existing objects from later collections, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD)
