"""Changes of many attachments to iptables, made by one run a family and table.

While a Host has a Together, kit/firewall/iptables.py reads a table once and notes what it is asked to change; the lines
that it gives are those that will be there. carry_out() does it.
"""

from fastcni.kit.firewall import iptables


class Together:
    """tables: {(program, table): (lines as iptables-save prints them, commands)}."""

    __slots__ = ("tables",)

    def __init__(self):
        self.tables = {}

    def read(self, key, read):
        """The lines of a table, which read() reads when it is first asked for."""
        if key not in self.tables:
            self.tables[key] = read(), []
        return [*self.tables[key][0]]

    def note(self, key, commands):
        lines, noted = self.tables[key]
        for command in commands:
            change(lines, command)
            noted.append(command)


def change(lines, command):
    """What a command of iptables-restore makes of lines of iptables-save."""
    verb, chain, rule = (*command.split(" ", 2), "")[:3]
    start = f"-A {chain} "
    if verb == "-N":
        lines.append(f":{chain} - [0:0]")
    elif verb == "-A":
        lines.append(command)
    elif verb == "-I":
        at = next((i for i, line in enumerate(lines) if line.startswith(start)), len(lines))
        lines.insert(at, start + rule.removeprefix("1 "))
    else:                               # -D a rule, -F a chain's rules, -X the chain
        gone = {"-D": lambda line: line == start + rule, "-F": lambda line: line.startswith(start),
                "-X": lambda line: line.startswith(f":{chain} ")}[verb]
        lines[:] = [line for line in lines if not gone(line)]


def carry_out(req):
    """Make the changes that the request's Host has noted, and note no more. Raises CniError: then some tables may not
    have been changed."""
    together, req.host.together = req.host.together, None
    for (program, table), (_, commands) in together.tables.items():
        if commands:
            iptables.change(req, program, commands, table)
