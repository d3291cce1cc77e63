"""One check of the self-test, and the error of a probe that failed."""

from __future__ import annotations

from dataclasses import dataclass

ONE_SHOT, WARM = "one-shot", "warm"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    name: the check, such as "gateway" or "outside-ipv6". network: the network's name. mode: ONE_SHOT or WARM.
    ms: the check's duration in milliseconds. Of a failed check: hop: where it failed, such as "bridge cni0"; what: the
    observation; command: a shell command that mends the fault or shows more. All three are "" if `ok` is true; only of
    a check that does not fit the network, what says why it was left out.
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
    """A check failed. hop, what, command: as in Check."""

    def __init__(self, hop: str, what: str, command: str = "fastcni doctor") -> None:
        super().__init__(what)
        self.hop, self.what, self.command = hop, what, command
