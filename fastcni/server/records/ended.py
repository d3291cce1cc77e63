"""Record an ended request: its names, its outcome and its phases.

A running request records each phase when the phase ends; the log line and the metrics use the phases. The server makes
an Ended only if there is a receiver.
"""

from __future__ import annotations

from fastcni._steps import PhaseTimes
from fastcni.kernel import uapi
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni._steps import Steps
    from fastcni.server.requests.request_queue import Call

NAMES: dict[int | str, str] = {uapi.NETLINK_ROUTE: "netlink", uapi.NETLINK_NETFILTER: "nftables",
                               uapi.NETLINK_SOCK_DIAG: "sockets"}
# Outcomes other than "0" and the codes of errors
DECLINED, CALLER_GONE, ABANDONED, FAULT = "declined", "caller_gone", "abandoned", "fault"


class Phases(PhaseTimes):
    """The phases of a running request, in the order of their ends. note(kind, started) records a phase that ends now.

    Phases can be nested: the netlink messages of an IPAM plugin are "netlink" within "ipam". entries: [(kind, begin by
    time.perf_counter_ns(), nanoseconds)], at most MAX_PHASES. sums: {kind: nanoseconds} of all phases. merged: {kind:
    nanoseconds} of the other phases. steps: the request's steps, see stories.py; None: none are recorded.
    """

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: Steps | None = None

    def totals(self) -> dict[str, int]:
        """Return {name: nanoseconds in all phases of that name}: "netlink", "nftables", "ipam", "delegate",
        "program"."""
        return {NAMES.get(what) or str(what): took for what, took in self.sums.items()}


class Ended:
    """A request that has ended.

    call     the Call, with the request's names and its message
    outcome  "0", the code of the error, or one of DECLINED, CALLER_GONE, ABANDONED, FAULT if the caller got no answer
    queued   seconds in the queue
    took     seconds from the end of the queue to the request's end; 0.0 if the queue rejected the request
    phases   the request's Phases
    error    the error document, or why the server declined the request, or ""
    """

    __slots__ = ("call", "error", "outcome", "phases", "queued", "took")

    def __init__(self, call: Call, outcome: str, queued: float, took: float, phases: Phases, error: str = "") -> None:
        self.call, self.outcome, self.queued, self.took, self.phases = call, outcome, queued, took, phases
        self.error = error


class Records:
    """The receivers of ended requests. report() passes an Ended to each receiver, in the request's thread after the
    answer. receivers: functions of one Ended. fault(event): logs an exception of a receiver."""

    __slots__ = ("fault", "receivers")

    def __init__(self, fault: Callable[[str], Any]) -> None:
        self.fault = fault
        self.receivers: list[Callable[[Ended], object]] = []

    def report(self, call: Call, outcome: str, queued: float, took: float = 0.0, phases: Phases | None = None,
               error: str = "") -> None:
        if not self.receivers:
            return
        try:
            ended = Ended(call, outcome, queued, took, phases or Phases(), error)
            for receive in self.receivers:
                receive(ended)
        except Exception:               # a defect of fastcni, after the request's answer
            self.fault("server_fault")


def code_of(document: str) -> str:
    """Return the code of an error document as an outcome; FAULT if the document has no code."""
    try:
        code = json.read(document.encode("utf-8", "replace")).get("code")
    except (json.JsonError, AttributeError):
        return FAULT
    return str(code) if isinstance(code, int) else FAULT
