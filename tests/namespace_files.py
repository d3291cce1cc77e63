"""Paths of network namespaces that are gone, or that this process cannot see."""

import os


def end(path):
    """Make the path one of a namespace that a runtime has removed since its ADD: the file came, and is deleted."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x", encoding="ascii"):
        pass
    os.unlink(path)
