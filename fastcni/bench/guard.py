"""Make the benchmark safe on a node that is in use: detect a busy node, and list what the benchmark will change."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastcni.bench import estimate
from fastcni.bench.density import processor_ticks
from fastcni.bench.node import DIRECTORY, PREFIX
from fastcni.bench.progress import duration
from fastcni.daemon import listening
from fastcni.runtime.cache import Cache
from fastcni.server import status
from fastcni.server.records import history

if TYPE_CHECKING:
    from fastcni.bench.cases import Options

SAMPLE_S = 2.0                  # seconds in which busy_share() observes the processors
MAX_BUSY = 0.25                 # the limit of busy_share()
PODS_S = 10.0                   # seconds in which no pod may have been added or deleted
POD_COMMANDS = ("ADD", "DEL")


class Busy(Exception):
    """The node is too busy for the benchmark. reasons: the texts of reasons()."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def busy_share(seconds: float = SAMPLE_S) -> float:
    """Wait for `seconds`. Return the share of this time, 0 to 1, in which the processors were busy."""
    busy, total = processor_ticks()
    time.sleep(seconds)
    busy_after, total_after = processor_ticks()
    return (busy_after - busy) / max(1, total_after - total)


def reasons(busy: float, sock: str = listening.PATH, results: str = "") -> Iterator[str]:
    """Yield the reasons why the node is too busy, each with the measured value and its limit. Yield nothing if the node
    is not too busy.

    busy: the result of busy_share(). sock: the socket of the node's fastcni server. results: the directory where
    runtimes cache results, "" for the default."""
    if busy > MAX_BUSY:
        yield f"the processors were busy for {busy:.0%} of the last {SAMPLE_S:g} s (limit {MAX_BUSY:.0%})"
    requests = requests_for_pods(sock)
    if requests:
        yield f"the server at {sock} had {requests} requests for pods in the last {PODS_S:g} s (limit 0)"
        return
    ago = time.time() - last_pod(results)
    if 0 <= ago < PODS_S:
        yield f"a pod was added or deleted {ago:.0f} s ago (limit {PODS_S:g} s)"


def last_pod(results: str = "") -> float:
    """Return when a runtime last cached or removed a pod's result, in Unix seconds; 0 if there is no cache."""
    try:
        return os.stat(results or Cache().results()).st_mtime
    except OSError:
        return 0.0


def requests_for_pods(sock: str) -> int:
    """Return the number of requests that the server at `sock` runs now, plus the number of ADDs and DELs of the last
    PODS_S seconds; 0 if no server listens."""
    try:
        now, found = status.ask(sock) or {}, history.ask(sock) or {}
    except OSError:
        return 0
    since = time.time() - PODS_S
    ended = [it for it in found.get("requests", ()) if it["command"] in POD_COMMANDS and it["time"] >= since]
    return int(now.get("running", 0)) + int(now.get("waiting", 0)) + len(ended)


def touches(options: Options, data_dir: str) -> str:
    """Return a text for a terminal: which objects the benchmark makes on this node, and what it does not change.
    data_dir: the parent directory of address files."""
    name = f"{PREFIX}{os.getpid()}-*"
    directories = " and ".join(dict.fromkeys(f"{directory}/{name}" for directory in (tempfile.gettempdir(), data_dir)))
    length = duration(sum(estimate.seconds(options).values()))
    return f"""\
This takes {length}. It makes these, and removes them, also after Ctrl-C:
  - namespaces {DIRECTORY}/{name}: a node and up to {estimate.pods(options):,} pods
  - all links, addresses, routes and firewall rules: in these namespaces
  - directories {directories}
  - processes: its own servers, and plugins, up to {estimate.at_once(options)} at once
The node's own links, addresses, routes, firewall rules, pods and files stay as
they are. What the node does notice:
  - processor time, and processors that stay out of deep idle states
  - kernel modules for bridges and firewalls, which the kernel may load
  - the lock of iptables, which some plugins hold for milliseconds at a time
"""
