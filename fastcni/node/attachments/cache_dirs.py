"""List the directories of cached results: the runtimes' directory, and those in which multus keeps the results of its
networks."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastcni.kit.networks.keys import CNI_DIR
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.node import confs
from fastcni.node.attachments.address_dirs import sections
from fastcni.runtime.cache import DEFAULT_DIR

IN_HELP = f"{DEFAULT_DIR}, and the cniDir of networks of type multus"


def known_cache_dirs(given: Iterable[str], conf_dir: str) -> tuple[str, ...]:
    """Return the given directories. Without given directories return the defaults: the runtimes' directory, the cniDir
    of each network of type multus in conf_dir, and the usual cniDir, in which Multus may have left pods."""
    if found := tuple(given):
        return found
    values = confs.values_of(confs.networks(confs.read_quietly(conf_dir, [])))
    named = [plugin.get("cniDir") for kind in RUNS_NETWORKS for plugin in sections(values, kind)]
    usable = [where for where in named if isinstance(where, str) and os.path.isabs(where)]
    return tuple(dict.fromkeys([DEFAULT_DIR, *map(os.path.normpath, usable), CNI_DIR]))
