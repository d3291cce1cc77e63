"""Define the records of the report: the hops of a connection, and the fault at which it ends."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """The hop at which a connection ends, and the reason.

    hop: the name of the hop, as docs/why.md lists it. what: a sentence. rule: the rule or setting that causes the
    fault, as a program prints it; "" if no rule does. owner: the program or person to whom the rule belongs, with the
    table and chain; "" without a rule. do: a shell command that mends the fault; if no command can, a sentence.
    """

    hop: str
    what: str
    rule: str = ""
    owner: str = ""
    do: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The treatment of a connection between two pods by the datapath ebpf.

    redirected: whether the datapath redirects the packets after the first ones. why: why the datapath does not redirect
    them; "" also if the probe does not arrive. flows: number of other connections from the source to the target's port
    that are redirected now. packets, bytes: sums over these connections, (from the source, back to the source).
    """

    redirected: bool
    why: str
    flows: int = 0
    packets: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Report:
    """The result for one connection. hops: (name, ok) in the order of the path, up to the hop where the packet ends.
    ends: the Fault; None if the packet arrives. datapath: None if an end is no pod of the datapath ebpf. flowtable:
    whether packets of the established connection take the agent's flowtable."""

    hops: tuple[tuple[str, bool], ...]
    ends: Fault | None
    datapath: Redirect | None = None
    flowtable: bool = False

    @property
    def reaches(self) -> bool:
        return self.ends is None

    def as_document(self) -> dict[str, Any]:
        return {"reaches": self.reaches, "hops": [{"hop": name, "ok": ok} for name, ok in self.hops],
                "ends": asdict(self.ends) if self.ends else None,
                "datapath": asdict(self.datapath) if self.datapath else None, "flowtable": self.flowtable}
