"""Make packages of other projects importable in a one-shot plugin, which runs under `python3 -I -S` and so does not see
them."""

from __future__ import annotations

import sys

NEEDED = ("urllib3", "yaml", "h2")
DIRECTORIES: tuple[str, ...] = ()           # launcher/modules.py writes the directories into a plugin file


def make_importable() -> None:
    """Append DIRECTORIES and the interpreter's site-packages directories to sys.path, as the site module would, but
    read no .pth files."""
    if "site" in sys.modules:
        return
    import site  # under -S site only defines functions; Debian's version includes dist-packages

    sys.path += [directory for directory in (*DIRECTORIES, *site.getsitepackages()) if directory not in sys.path]
