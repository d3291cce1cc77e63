"""Find and remove the files of fastcni itself on a node: indexes of address files, and marks and backups of attributes
of pods' links."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from fastcni.kit.links.attribute_backup import DIRECTORY as TUNING
from fastcni.node.attachments.adopt import INDEX
from fastcni.node.attachments.attachment import GONE, ORPHANED
from fastcni.node.attachments.pod_files import MARKS, listed, marks
from fastcni.node.own.state import OwnState
from fastcni.plugins.host_device import DIRECTORY as HOST_DEVICE

DIRECTORIES = (TUNING, HOST_DEVICE)


def find(state: OwnState, directories: Collection[str] = DIRECTORIES) -> tuple[list[str], list[str]]:
    """Return (files that no pod needs, files that a pod needs), as paths. directories: the directories with backups of
    link attributes.

    The reference plugins ignore an index. They use the backups of tuning, too, but only fastcni's GC needs the marks of
    these backups. Only fastcni has backups of host-device.
    """
    free = [path for where in state.data_dirs for path in indexes(where)]
    alive = {(it.network, f"{it.container_id}_{it.ifname}.json") for it in state.known
             if it.state not in (GONE, ORPHANED)}
    needed = []
    for where in directories:
        for network, name in marks(where):
            mark, backup = os.path.join(where, MARKS, network, name), os.path.join(where, name)
            if where != HOST_DEVICE:
                free.append(mark)
            elif os.path.exists(backup) and (network, name) in alive:
                needed.append(backup)
            else:
                free += [path for path in (backup, mark) if os.path.lexists(path)]
    return free, needed


def indexes(data_dir: str) -> Iterator[str]:
    """Yield the paths of the index files below a dataDir of host-local."""
    for network in listed(data_dir):
        path = os.path.join(data_dir, network, INDEX)
        if os.path.lexists(path):
            yield path


def remove(paths: Collection[str], directories: Collection[str] = DIRECTORIES) -> list[str]:
    """Remove files, then the empty directories of marks. Return the paths of the removed files. Raises OSError."""
    removed = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed.append(path)
    for where in directories:
        top = os.path.join(where, MARKS)
        for directory in [*(os.path.join(top, network) for network in listed(top)), top]:
            with contextlib.suppress(OSError):          # the directory has files of pods, or does not exist
                os.rmdir(directory)
    return removed
