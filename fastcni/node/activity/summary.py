"""Summarize a server's activity in one document: rates, times by phase, errors, slow requests and pools.

This module only computes; `fastcni top` and the status page draw the document. Keys that end in Ms are milliseconds,
`time` and `ended` are in Unix seconds. A value is null if no request has the value:

    {"time": 1763900000.5, "seconds": 60.0, "filter": "", "requests": 740, "perSecond": 12.3, "failed": 2, "lost": 0,
     "server": {"version": "0.1.0", "pid": 812, "uptimeSeconds": 4711.0, "running": 2, "waiting": 0, "queueSize": 1024,
                "workers": 32, "flows": {"dropped": 3, "last": [{...}]}},
     "commands": [{"command": "ADD", "requests": 370, "perSecond": 6.2, "failed": 2, "p50Ms": 1.9, "p99Ms": 4.4,
                   "maxMs": 9.1}],
     "phases": [{"phase": "netlink", "command": "ADD", "requests": 370, "p50Ms": 0.8, "p99Ms": 2.1, "maxMs": 6.0}],
     "errors": [{"outcome": "11", "text": "try again later", "requests": 2, "network": "n", "time": 1763899999.0}],
     "networks": [{"network": "n", "requests": 740, "perSecond": 12.3, "failed": 2, "p50Ms": 1.9, "p99Ms": 4.4,
                   "maxMs": 9.1, "attachments": 40, "pool": {...}}],
     "pools": [{"ipam": "host-local", "network": "n", "range": "10.1.0.1-10.1.0.254", "held": 40, "free": 213,
                "full": 0.158}],
     "slowest": [{"number": 4711, "id": "ab12-17", "time": ..., "ended": ..., "command": "ADD", "plugin": "bridge",
                  "network": "n", "container": "c", "ifname": "eth0", "outcome": "0", "queueMs": 0.02, "ms": 9.1,
                  "phases": {"netlink": 6.0}}]}

flows: as in the server's status; null without `serve --flows`.
seconds: the time that the figures cover. lost: requests of this time that the server's history dropped before `fastcni`
read them; only perSecond counts these requests. pool: the fullest of the network's pools, or null. slowest: sorted by
the sum of queueMs and ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from fastcni.server.metrics.pools import Pool
from fastcni.server.records import ended as records
from fastcni.spec import errors

SPAN_S = 60.0                   # seconds that the figures cover
MAX_REQUESTS = 10_000           # limit of stored requests; with more requests in SPAN_S the figures cover less time
MAX_POLLS = 64                  # limit of the answers that one poll() reads from a busy server
SLOWEST = 20
QUEUE = "queue"
FAILED_NOT = ("0", records.DECLINED)
SERVER_KEYS = ("version", "pid", "uptimeSeconds", "running", "waiting", "queueSize", "workers", "flows")
TEXTS = {
    str(errors.INCOMPATIBLE_VERSION): "incompatible CNI version", str(errors.UNSUPPORTED_FIELD): "unsupported field",
    str(errors.UNKNOWN_CONTAINER): "unknown container", str(errors.INVALID_ENVIRONMENT): "invalid variables",
    str(errors.IO_FAILURE): "I/O failure", str(errors.DECODING_FAILURE): "cannot be decoded",
    str(errors.INVALID_CONFIG): "invalid configuration", str(errors.INVALID_NETNS): "invalid namespace",
    str(errors.TRY_AGAIN_LATER): "try again later", str(errors.PLUGIN_NOT_AVAILABLE): "plugin not available",
    str(errors.LIMITED_CONNECTIVITY): "limited connectivity", str(errors.INTERNAL): "internal error",
    records.DECLINED: "went one-shot", records.CALLER_GONE: "the caller left", records.ABANDONED: "given up",
    records.FAULT: "a fault of fastcni",
}


@dataclass(frozen=True, slots=True)
class Request:
    """An ended request. time, ended: its arrival and its end in Unix seconds. phases: {name: ms}, without the time in
    the queue."""

    number: int
    id: str
    time: float
    ended: float
    command: str
    plugin: str
    network: str
    container: str
    ifname: str
    outcome: str
    queue_ms: float
    ms: float
    phases: dict[str, float]

    @property
    def total_ms(self) -> float:
        return self.queue_ms + self.ms

    @property
    def failed(self) -> bool:
        return self.outcome not in FAILED_NOT

    @property
    def timed(self) -> bool:
        """Return whether a worker ran the request and sent an answer. As in the metrics, the times include only such
        requests, because other requests would distort the times."""
        return self.ms > 0 and self.outcome.isdecimal()


@dataclass(frozen=True, slots=True)
class Sample:
    """The requests that ended between `since` and `until` (Unix seconds). lost: as in the document."""

    requests: tuple[Request, ...]
    since: float
    until: float
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """The data that do not come from requests. server: the status document, see server/status.py. pools, attachments:
    as in Counted."""

    server: dict[str, Any] = field(default_factory=dict)
    pools: Sequence[Pool] = ()
    attachments: dict[str, int] = field(default_factory=dict)


def read_request(entry: dict[str, Any]) -> Request:
    """Convert an entry of the server's history to a Request."""
    phases: dict[str, float] = {}
    for phase in entry["phases"]:
        phases[phase["name"]] = phases.get(phase["name"], 0.0) + phase["ms"]
    queue_ms, ms = float(entry["queueMs"]), float(entry["ms"])
    return Request(entry["number"], entry["id"], entry["time"], entry["time"] + (queue_ms + ms) / 1e3,
                   entry["command"], entry["plugin"], entry["network"], entry["container"], entry["ifname"],
                   entry["outcome"], queue_ms, ms, phases)


class Recent:
    """The requests of a server in the last SPAN_S. ask(after): returns the answer of the server's history, see
    server/records/history.py."""

    def __init__(self, ask: Callable[[int], dict[str, Any]], span_s: float = SPAN_S) -> None:
        self.ask, self.span_s = ask, span_s
        self.requests: deque[Request] = deque(maxlen=MAX_REQUESTS)
        self.losses: deque[tuple[float, int]] = deque()         # (time of the poll, number of lost requests)
        self.pid = self.after = 0
        self.complete_from = 0.0        # the requests that ended before this time are unknown

    def poll(self, now: float) -> None:
        """Read the requests that have ended since the last call. Raises the exceptions of ask()."""
        for _ in range(MAX_POLLS):
            answer = self.ask(self.after)
            if answer["pid"] != self.pid:
                another, self.pid = self.after > 0, answer["pid"]
                if another:             # the server was restarted, and counts from the beginning
                    self.after = 0
                    continue
            self._note_loss(answer, now)
            entries = answer["requests"]
            full = len(self.requests) + len(entries) > MAX_REQUESTS
            self.requests.extend(map(read_request, entries))
            if full:
                self.complete_from = self.requests[0].ended
            self.after = answer["next"]
            if not entries:
                return

    def _note_loss(self, answer: dict[str, Any], now: float) -> None:
        if answer["lost"]:
            self.losses.append((now, answer["lost"]))
        elif not self.after and answer["first"] > 1:            # the history dropped requests before the first poll
            kept = (read_request(entry) for entry in answer["requests"] if entry["number"] >= answer["first"])
            self.complete_from = next((request.ended for request in kept), now)

    def sample(self, now: float) -> Sample:
        """Return the requests of the last SPAN_S, or of a shorter time if earlier requests are unknown."""
        since = max(now - self.span_s, self.complete_from)
        while self.requests and self.requests[0].ended < now - self.span_s:
            self.requests.popleft()
        while self.losses and self.losses[0][0] < now - self.span_s:
            self.losses.popleft()
        known = tuple(it for it in self.requests if it.ended >= since)
        return Sample(known, since, now, sum(count for _, count in self.losses))


def document(sample: Sample, node: Node, chosen: str = "") -> dict[str, Any]:
    """Return the document of this module. chosen: include only requests and networks that have this text in the
    network's name or the container's id."""
    requests = [it for it in sample.requests if chosen in it.network or chosen in it.container]
    uptime = node.server.get("uptimeSeconds")
    since = sample.since if uptime is None else max(sample.since, sample.until - uptime)
    seconds = max(1.0, sample.until - since)
    lost = 0 if chosen else sample.lost
    pools = [pool_row(it) for it in node.pools if chosen in it.network]
    return {
        "time": sample.until, "seconds": round(seconds, 1), "filter": chosen, "requests": len(requests),
        "perSecond": round((len(requests) + lost) / seconds, 2), "failed": sum(it.failed for it in requests),
        "lost": sample.lost, "server": {key: node.server.get(key) for key in SERVER_KEYS} if node.server else None,
        "commands": [{"command": command, **row(of, seconds)}
                     for command, of in grouped(requests, lambda it: it.command)],
        "phases": phase_rows(requests), "errors": error_rows(requests),
        "networks": network_rows(requests, seconds, pools, node.attachments, chosen), "pools": pools,
        "slowest": [request_row(it) for it in sorted(requests, key=lambda it: -it.total_ms)[:SLOWEST]]}


def grouped(requests: Iterable[Request], key: Callable[[Request], str]) -> list[tuple[str, list[Request]]]:
    """Return (key, the requests of the key) for each key, the key with most requests first."""
    found: dict[str, list[Request]] = {}
    for it in requests:
        found.setdefault(key(it), []).append(it)
    return sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of all values do not exceed; None without values. ordered: the
    values in ascending order. share: from 0.0 to 1.0."""
    return round(ordered[max(0, ceil(share * len(ordered)) - 1)], 3) if ordered else None


def times(values: Iterable[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {"p50Ms": percentile(ordered, 0.5), "p99Ms": percentile(ordered, 0.99), "maxMs": percentile(ordered, 1.0)}


def row(requests: Sequence[Request], seconds: float) -> dict[str, Any]:
    """Return the members that the rows of commands and of networks have in common."""
    return {"requests": len(requests), "perSecond": round(len(requests) / seconds, 2),
            "failed": sum(it.failed for it in requests), **times(it.total_ms for it in requests if it.timed)}


def phase_rows(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Return a row for each phase and command: first the time in the queue, then the phases that take most time."""
    spent: dict[tuple[str, str], list[float]] = {}
    for it in requests:
        if it.timed:
            for name, ms in ((QUEUE, it.queue_ms), *it.phases.items()):
                spent.setdefault((name, it.command), []).append(ms)
    totals: dict[str, float] = {}
    for (name, _), values in spent.items():
        totals[name] = totals.get(name, 0.0) + sum(values)
    order = sorted(spent, key=lambda key: (key[0] != QUEUE, -totals[key[0]], key))
    return [{"phase": name, "command": command, "requests": len(spent[name, command]),
             **times(spent[name, command])} for name, command in order]


def error_rows(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Return a row for each outcome other than success, most requests first."""
    rows = []
    for outcome, of in grouped((it for it in requests if it.outcome != "0"), lambda it: it.outcome):
        last = max(of, key=lambda it: it.ended)
        rows.append({"outcome": outcome, "text": TEXTS.get(outcome, "an error of the plugin"), "requests": len(of),
                     "network": last.network, "time": last.ended})
    return rows


def network_rows(requests: Iterable[Request], seconds: float, pools: Iterable[dict[str, Any]],
                 attachments: dict[str, int], chosen: str) -> list[dict[str, Any]]:
    """Return a row for each network that has requests, attachments or a pool; most requests first."""
    of = dict(grouped(requests, lambda it: it.network))
    fullest = {pool["network"]: pool for pool in sorted(pools, key=lambda it: it["full"] or 0.0)}
    names = [*of, *sorted({name for name in (*attachments, *fullest) if chosen in name} - {*of})]
    return [{"network": name, **row(of.get(name, ()), seconds), "attachments": attachments.get(name, 0),
             "pool": fullest.get(name)} for name in names]


def pool_row(pool: Pool) -> dict[str, Any]:
    size = None if pool.free is None else pool.held + pool.free
    return {"ipam": pool.ipam, "network": pool.network, "range": pool.range, "held": pool.held, "free": pool.free,
            "full": round(pool.held / size, 3) if size else None}


def request_row(req: Request) -> dict[str, Any]:
    return {"number": req.number, "id": req.id, "time": req.time, "ended": round(req.ended, 3), "command": req.command,
            "plugin": req.plugin, "network": req.network, "container": req.container, "ifname": req.ifname,
            "outcome": req.outcome, "queueMs": req.queue_ms, "ms": req.ms,
            "phases": {name: round(ms, 3) for name, ms in req.phases.items()}}
