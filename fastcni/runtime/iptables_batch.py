"""Change the iptables rules of many attachments with one run of iptables-restore for each family and table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastcni.kernel.process import Finished
from fastcni.kit.call.request import Request
from fastcni.kit.firewall import iptables
from fastcni.runtime.mode import SharedMode


class BatchMode(SharedMode):
    """A mode that reads each iptables table once, and records the commands that change the table until carry_out() runs
    them. Until then read_iptables() returns the table as the recorded commands will change it.

    tables: {(program, table): (lines as iptables-save prints them, recorded commands)}.
    """

    __slots__ = ("tables",)

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[tuple[str, str], tuple[list[str], list[str]]] = {}

    def read_iptables(self, program: str, table: str, read: Callable[[], list[str]]) -> list[str]:
        if (program, table) not in self.tables:
            self.tables[program, table] = read(), []
        return [*self.tables[program, table][0]]

    def change_iptables(self, program: str, table: str, commands: list[str], run: Callable[[], Finished]) -> Finished:
        """Record the commands. The table is already in `tables`, because the caller made the commands from the table's
        lines."""
        lines, noted = self.tables[program, table]
        for command in commands:
            change(lines, command)
            noted.append(command)
        return Finished(0, b"", b"", "")

    def carry_out(self, environ: Mapping[str, str], mode: SharedMode) -> None:
        """Run the recorded commands through `mode`. After a CniError some tables may be unchanged."""
        req = Request(mode, env=environ)
        for (program, table), (_, commands) in self.tables.items():
            if commands:
                iptables.change(req, program, commands, table)


def change(lines: list[str], command: str) -> None:
    """Apply an iptables-restore command, such as "-A CHAIN RULE", to the lines of a table, which iptables-save
    printed."""
    verb, chain, rule = (*command.split(" ", 2), "")[:3]
    start = f"-A {chain} "
    if verb == "-N":
        lines.append(f":{chain} - [0:0]")
    elif verb == "-A":
        lines.append(command)
    elif verb == "-I":
        at = next((i for i, line in enumerate(lines) if line.startswith(start)), len(lines))
        lines.insert(at, start + rule.removeprefix("1 "))
    else:                               # -D deletes a rule, -F a chain's rules, -X the chain
        gone = [start + rule] if verb == "-D" else [line for line in lines if line.startswith(
            start if verb == "-F" else f":{chain} ")]
        lines[:] = [line for line in lines if line not in gone]
