"""Answer the control request NAME, by which `fastcni doctor` reads the state of a running server.

    {"version": "0.1.0", "pid": 812, "uptimeSeconds": 4711.0, "running": 2, "waiting": 0, "queueSize": 1024,
     "workers": 32, "watching": 1,
     "cluster": [{"store": "etcd", "node": "n1", "epoch": 1, "awaySeconds": 12.0, "why": "...", "spaces": [
         {"space": "default", "dataDir": "/var/lib/cni/cluster", "blocks": 3, "idle": 1, "conflicts": [],
          "ranges": [{"range": "10.0.0.0/16", "free": 150, "size": 192}]}]}]}

watching: the number of network namespaces whose firewall the server restores. cluster: the stores of cluster-wide
addresses; awaySeconds and why are present only while the server cannot reach the store; free and size count the
addresses of a range in this node's blocks; conflicts: blocks that another node has, too. A server that does not know
this request declines it.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import Any

import fastcni
from fastcni.server import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.server.cluster.upkeep import ClusterUpkeep
    from fastcni.server.requests.request_queue import RequestQueue
    from fastcni.server.restoring.restorer import Restoring

NAME = "fastcni-status"         # valid as a plugin's name, but no plugin has this name


def document(started: float, queue: RequestQueue, restoring: Restoring, cluster: ClusterUpkeep) -> dict[str, Any]:
    """Return the status document. started: monotonic() at the server's start."""
    return {
        "version": fastcni.__version__, "pid": os.getpid(), "uptimeSeconds": round(monotonic() - started, 1),
        "running": queue.running, "waiting": queue.waiting, "queueSize": queue.size, "workers": queue.workers,
        "watching": len(restoring.watches) if restoring.thread.is_alive() else 0, "cluster": cluster.status()}


def ask(path: str, timeout_s: float = control.TIMEOUT_S) -> dict[str, Any] | None:
    """Return the status document of the server at a socket. None: the server declines.
    Raises OSError as control.ask()."""
    return control.ask(path, NAME, {}, timeout_s)
