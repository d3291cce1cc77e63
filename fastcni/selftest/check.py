"""Define Check, the result of one check, and Failed, the error of a failed probe."""

from __future__ import annotations

from dataclasses import dataclass

ONE_SHOT, WARM = "one-shot", "warm"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    name: the check, such as "gateway" or "outside-ipv6". network: the network's name. mode: ONE_SHOT or WARM.
    ms: the check's duration in milliseconds. A failed check has hop: where it failed, such as "bridge cni0"; what: the
    observation; and command: a shell command that repairs the fault or shows more. For a passed check, they are "". For
    a check that does not apply to the network, `ok` is true and `what` is the reason.
    """

    name: str
    network: str
    mode: str
    ok: bool
    ms: float
    hop: str = ""
    what: str = ""
    command: str = ""


class Failed(Exception):
    """The error of a failed probe. hop, what, command: as in Check."""

    def __init__(self, hop: str, what: str, command: str = "fastcni doctor") -> None:
        super().__init__(what)
        self.hop, self.what, self.command = hop, what, command
