"""Find the Go plugins of this node: the plugins that the runtime calls, or the plugins that `fastcni install` has
replaced."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastcni.launcher import replaced
from fastcni.launcher.identify import FASTCNI, GO, identify
from fastcni.runtime.cni import DEFAULT_PLUGIN_DIRS


def find(given: str, usual: Sequence[str] = DEFAULT_PLUGIN_DIRS) -> str:
    """Return the directory of the Go plugins, "" if no directory has Go plugins.

    given: the directory of --peer, "" to search the usual directories. In the directory of --peer, any program counts
    as a Go plugin, except fastcni's own plugins, because a comparison of fastcni with itself is useless.
    """
    for directory in [given] if given else usual:
        for place in (directory, replaced.directory(directory)):
            program = identify(f"{place}/bridge") if os.path.isdir(place) else None
            if program and (program.kind == GO or (given and program.kind != FASTCNI)):
                return place
    return ""


def missing(given: str, usual: Sequence[str] = DEFAULT_PLUGIN_DIRS) -> str:
    """Return the note that the report has if the node has no Go plugins."""
    where = given or ", ".join(usual)
    return (f"no Go plugins in {where}, so fastcni is not compared with them. Debian, Ubuntu: apt-get install "
            "containernetworking-plugins; --peer or PEER names another directory")
