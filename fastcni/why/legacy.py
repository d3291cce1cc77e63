"""Find the rules of legacy iptables that dropped the packet, by their counters before and after the packet.

A trace of legacy iptables needs rules, which would stay if this process were killed. So this module compares counters:
if a rule's counter grew while the packet was on its way, and the rule's conditions do not exclude the packet, the rule
dropped the packet.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from fastcni.kernel import process
from fastcni.kit.firewall.iptables import USUAL_PATH
from fastcni.node.attachments.iptables import installed

# {(table, line of iptables-save without its counter): number of packets}
Counters = dict[tuple[str, str], int]
NAMES = {False: "/proc/thread-self/net/ip_tables_names", True: "/proc/thread-self/net/ip6_tables_names"}
PROGRAMS = {False: "iptables-legacy", True: "ip6tables-legacy"}
LINE = re.compile(r"(?:\[(\d+):\d+\] )?(-A .*?|:\S+ \S+)(?: \[(\d+):\d+\])?$")
QUEUE = "NFQUEUE"
DROPS = ("DROP", "REJECT", QUEUE)
TIMEOUT_S = 2.0
BUILT_IN = {"prerouting": "PREROUTING", "input": "INPUT", "forward": "FORWARD", "output": "OUTPUT",
            "postrouting": "POSTROUTING"}


@dataclass(frozen=True, slots=True)
class Packet:
    """The fields of a packet that rules compare. iif, oif: names of the incoming and outgoing link, "" if unknown."""

    source: str
    destination: str
    protocol: str
    port: int
    iif: str
    oif: str


def in_use(v6: bool) -> bool:
    """Return whether the calling thread's namespace has tables of legacy iptables."""
    try:
        with open(NAMES[v6], encoding="ascii") as file:
            return bool(file.read().strip())
    except OSError:
        return False


def read(v6: bool) -> Counters:
    """Return the counters of all rules and policies in the calling thread's namespace; {} without legacy iptables."""
    programs = installed([f"{PROGRAMS[v6]}-save"]) if in_use(v6) else []
    if not programs:
        return {}
    done = process.run(programs[0], {"PATH": USUAL_PATH}, b"", [programs[0], "-c"], timeout=TIMEOUT_S)
    found: Counters = {}
    table = ""
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif match := LINE.match(line):
            key = table, match[2]
            found[key] = found.get(key, 0) + int(match[1] or match[3] or 0)
    return found


def dropped(before: Counters, after: Counters, hook: str, packet: Packet) -> Iterator[tuple[str, str]]:
    """Yield (table, line) of each rule and policy that may have dropped the packet at a hook, the likeliest first."""
    chain = BUILT_IN.get(hook, "")
    grown = [(after[key] - before.get(key, 0), key) for key in after if after[key] > before.get(key, 0)]
    for _, (table, line) in sorted(grown, key=lambda it: (it[1][1].startswith(":"), it[0])):
        if line == f":{chain} DROP" or not (line.startswith(":") or excludes(line, packet, chain)):
            yield table, line


def excludes(line: str, packet: Packet, chain: str) -> bool:
    """Return whether a line is no rule that drops, or is a rule that this packet does not match."""
    try:
        words = shlex.split(line)
    except ValueError:
        return True
    options = dict(pairwise(words))
    if options.get("-j") not in DROPS:
        return True
    if options["-A"] in BUILT_IN.values() and options["-A"] != chain:
        return True
    if "!" in words:
        return False                    # this function does not evaluate inverted conditions
    for option, ip in (("-s", packet.source), ("-d", packet.destination)):
        if option in options and ipaddress.ip_address(ip) not in ipaddress.ip_network(options[option], strict=False):
            return True
    known = {"-p": packet.protocol, "-i": packet.iif, "-o": packet.oif, "--dport": str(packet.port)}
    return any(option in options and value and not same(options[option], value) for option, value in known.items())


def queue_of(line: str) -> int | None:
    """Return the number of the queue into which a rule puts packets; None if the rule uses no queue."""
    words = shlex.split(line)
    options = dict(pairwise(words))
    if options.get("-j") != QUEUE:
        return None
    return int(options.get("--queue-num") or options.get("--queue-balance", "0").partition(":")[0])


def same(pattern: str, value: str) -> bool:
    """Return whether a value matches a rule's pattern: "cni+" matches cni0, "80:90" matches 85."""
    if pattern.endswith("+"):
        return value.startswith(pattern[:-1])
    first, _, last = pattern.partition(":")
    if last and value.isdecimal() and first.isdecimal() and last.isdecimal():
        return int(first) <= int(value) <= int(last)
    return pattern == value
