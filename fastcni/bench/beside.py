"""Measure the part beside: calls of the plugin firewall while another program changes iptables ten times a second.

For each kind of iptables (legacy, nft) the calls are measured twice with the same rules: first while no program changes
the rules, then while a program adds and deletes a rule. Before each call there is a pause, in which the program makes
about one change.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastcni.bench.cases import title
from fastcni.bench.churn import networks, noting_failures
from fastcni.bench.idle import Calls
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.bench.bench import Bench
    from fastcni.bench.idle import Samples

USUAL = ("firewall", "firewall-iptables")
KINDS = ("nft", "legacy")
PAUSE_S = 0.1                   # seconds between two changes of the rules
CHAIN = "KUBE-BENCH"
RULE = ('-A {chain} -d 10.96.{high}.{low}/32 -p tcp -m comment --comment "bench/service-{number}" -m tcp --dport 80 '
        "-j RETURN")
CALLS_A_ROUND = 3               # calls of each implementation in a round
# The child ends when its stdin is closed, at the latest when this process ends.
LOOP = ('while :; do for change in "-A {chain} -j RETURN" "-D {chain} -j RETURN"; do '
        'printf "*filter\\n%s\\nCOMMIT\\n" "$change" | {program} --noflush --wait=5 || exit; '
        'if read -r -t {pause} _; then exit; elif [ $? -le 128 ]; then exit; fi; done; done')


def beside(bench: Bench) -> dict[str, Any]:
    """Measure and return {case: {situation: {series: {call: [ms]}}}}, for the usual cases that --only does not
    exclude."""
    data: dict[str, Any] = {}
    cases = [case for case in bench.cases if case.name in USUAL]
    kinds = [kind for kind in KINDS if has_kind(bench, kind)] if cases else []
    with bench.steps("beside kube-proxy", 2 * len(cases) * len(kinds)) as step:
        for kind in kinds:
            with rules(kind, bench.plan.foreign_rules):
                for case in cases:
                    sides = bench.sides_of(case)
                    what = f"{title(case.name)}, beside {kind}"
                    with networks(bench, case, sides) as made, noting_failures(bench, what):
                        calls = Calls(bench, case, sides, made)
                        found = data.setdefault(case.name, {})
                        step(0, what)
                        found[quiet(kind)] = after_pauses(calls)
                        step()
                        with changes(kind):
                            found[changing(kind)] = after_pauses(calls)
                        step()
    return data


def after_pauses(calls: Calls) -> Samples:
    """Make the case's calls of each implementation, each call after a pause of PAUSE_S. Return {series: {call:
    [ms]}}."""
    found: Samples = {}
    for _ in range(calls.plan.idle_rounds):
        for side in calls.bench.shuffled(calls.sides):
            for _ in range(CALLS_A_ROUND):
                for call in calls.case.calls:
                    time.sleep(PAUSE_S)
                    calls.make(found, call, side)
    return found


def quiet(kind: str) -> str:
    return f"iptables-{kind}, no changes"


def changing(kind: str) -> str:
    return f"iptables-{kind}, ten changes a second"


def has_kind(bench: Bench, kind: str) -> bool:
    """Return whether iptables of this kind, "legacy" or "nft", is installed and works. If not, add a note to the
    report."""
    try:
        restore(kind, [])
    except (CniError, FileNotFoundError) as e:
        bench.note(f"iptables-{kind} is left out: {e}")
        return False
    return True


def restore(kind: str, lines: list[str]) -> None:
    """Replace the iptables table filter by `lines`. kind: "legacy" or "nft". Raise CniError, or FileNotFoundError
    without the program."""
    program = f"iptables-{kind}-restore"
    done = subprocess.run([program, "--wait=5"], input="\n".join(["*filter", *lines, "COMMIT", ""]), text=True,
                          capture_output=True, check=False)
    if done.returncode:
        raise CniError(errors.INTERNAL, f"{program}: {done.stderr.strip()[:200]}")


@contextmanager
def rules(kind: str, count: int) -> Iterator[None]:
    """While the body runs, have a chain with `count` rules in the table filter. No packet passes the chain."""
    restore(kind, [f":{CHAIN} - [0:0]", *(RULE.format(chain=CHAIN, high=number >> 8 & 255, low=number & 255,
                                                      number=number) for number in range(count))])
    try:
        yield
    finally:
        restore(kind, [])


@contextmanager
def changes(kind: str) -> Iterator[None]:
    """While the body runs, have a child process change the chain every PAUSE_S seconds. Raise CniError if the child has
    failed."""
    loop = LOOP.format(chain=CHAIN, program=f"iptables-{kind}-restore", pause=PAUSE_S)
    child = subprocess.Popen([shutil.which("bash") or "bash", "-c", loop], stdin=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, process_group=0)
    try:
        yield
    finally:
        ended = child.poll()
        _, message = child.communicate()            # closes the child's stdin, so its loop ends
    if ended is not None:
        raise CniError(errors.INTERNAL, f"iptables-{kind}-restore ended with status {ended}: {message.strip()[:200]}")
