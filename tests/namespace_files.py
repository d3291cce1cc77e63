"""Paths of network namespaces that no longer exist, or that this process cannot see."""

import os


def end(path):
    """Make the path look as if a runtime has removed the namespace since its ADD: create the file, and delete it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x", encoding="ascii"):
        pass
    os.unlink(path)
