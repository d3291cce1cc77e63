"""Count the held addresses of each range, and the attachments of each network, for the server's metrics.

The count only lists directories: it opens no address file and no cached result, and takes no lock. The server counts
while requests run, so the count pauses often. docs/metrics.md lists what the count does not include.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from time import monotonic, sleep

from fastcni.kit.ipam.address_files import address_of
from fastcni.kit.ipam.ranges import Range
from fastcni.node import confs
from fastcni.node.attachments.address_dirs import data_dirs, networks
from fastcni.node.ranges import ranges_of
from fastcni.server.metrics.pools import MAX_POOLS, UNKNOWN, Counted, Pool
from fastcni.server.metrics.requests import MAX_NETWORKS, OTHER, text

STEP, PAUSE_S = 256, 0.001      # number of names before a pause, some 0.2 ms of work; seconds of a pause


def count(conf_dir: str, *results: str) -> Counted:
    """Count the held addresses of host-local, and the attachments in `results`, directories of libcni's result cache.

    The ranges are those of the configurations in conf_dir. Directories and files that cannot be read count as empty.
    """
    nets = confs.networks(confs.read_quietly(conf_dir, []))
    ranges: dict[str, list[Range]] = {}
    for one in ranges_of(nets):
        ranges.setdefault(one.directory, []).append(one.range)
    directories = {f"{where.rstrip('/')}/{name}": name
               for where in data_dirs(confs.values_of(nets)) for name in networks(where, [])}
    directories |= {directory: os.path.basename(directory) for directory in ranges}
    pools = [pool for directory, name in list(directories.items())[:MAX_POOLS]
             for pool in pools_of(name, directory, ranges.get(directory, []))]
    found = attachments(results, [net.name for net in nets] + [*directories.values()])
    return Counted(tuple(pools), found, monotonic())


def pools_of(network: str, directory: str, ranges: list[Range]) -> list[Pool]:
    """Return the pools of one directory. The addresses outside of all ranges form one pool without a size."""
    held, elsewhere = [0] * len(ranges), 0

    def note(name: str) -> None:
        nonlocal elsewhere
        packed = address_of(name)
        if packed is None:
            return
        for at, one in enumerate(ranges):
            if one.contains(packed):
                held[at] += packed != one.gateway
                return
        elsewhere += 1

    handle(names_in(directory), note)
    pools = [Pool("host-local", network, str(one), number, max(0, one.size() - number))
             for one, number in zip(ranges, held, strict=True)]
    return pools + [Pool("host-local", network, UNKNOWN, elsewhere)] * bool(elsewhere)


def attachments(results: Iterable[str], known: Iterable[str]) -> dict[str, int]:
    """Return {network: number of attachments} by the names of the files, NETWORK-CONTAINERID-IFNAME. Each part may
    contain hyphens, so a file counts for the longest known network that fits. Other files count as "other"."""
    names = sorted(dict.fromkeys(known), key=len, reverse=True)[:MAX_NETWORKS]
    found = {text(name): 0 for name in names}

    def note(file: str) -> None:
        network = next((text(name) for name in names if file.startswith(f"{name}-")), OTHER)
        found[network] = found.get(network, 0) + 1

    for directory in results:
        handle(names_in(directory), note)
    return found


def names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def handle(names: list[str], note: Callable[[str], None]) -> None:
    """Call note(name) for each name, with pauses in which the server's requests run."""
    for at, name in enumerate(names, 1):
        note(name)
        if not at % STEP:
            sleep(PAUSE_S)
