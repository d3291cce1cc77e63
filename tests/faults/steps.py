"""Inject a fault at each system call of a request, one call after another: each errno, and a kill. Several processes
share the cases. See rounds.py.

The campaign prints each failure immediately, and the progress with the expected end regularly.
"""

import statistics
import tempfile
import time

from faults.cases import PLUGINS, lacking
from faults.pool import Pool
from faults.rounds import COMMANDS, MODES, Tools, count, run_case

SAMPLE = 4                      # with --seconds: the faults of each command in one pass
CORRECTED_S = 120               # after this time the expected end is corrected by the pace so far


def campaign(row, options):
    """Try all faults of all cases in each mode. With --seconds, try SAMPLE faults of each command in a pass."""
    why = {name: lacking(name) for name in PLUGINS if options.only in name}
    cases = [(name, mode, command) for name in why if not why[name] for mode in MODES for command in COMMANDS]
    if skipped := [f"{name} ({reason})" for name, reason in why.items() if reason]:
        row.note(f"left out: {'; '.join(skipped)}")
    if not cases:
        row.failed(f"this node can run no case with {options.only!r} in its name")
        return
    with tempfile.TemporaryDirectory(prefix="fcni-faults-tools-") as directory:
        started = time.monotonic()
        tools = Tools(directory)
        row.until += time.monotonic() - started         # the preparation does not count
        if options.seconds:
            row.rng().shuffle(cases)
            sampled(row, options.processes, tools, cases, SAMPLE)
        else:
            complete(row, options.processes, tools, cases)
    if not row.attempts:
        row.failed("no fault was tried")


class Progress:
    """The progress, and the expected time of the remaining faults. sizes: {case: (faults, expected seconds)}, or {} if
    unknown."""

    def __init__(self, row, processes, sizes):
        self.row, self.processes, self.sizes, self.started = row, processes, sizes, time.monotonic()
        self.present, self.done, self.missed, self.possible = {}, {}, 0, 0

    def on_message(self, conn, kind, case, number, of, hit=True):
        if kind == "possible":
            self.possible += of
            return
        self.present[conn] = (case, number, of)
        self.done[case] = number
        if hit:
            self.row.attempt()
        else:
            self.missed += 1

    def left_s(self):
        """Return the expected seconds of the remaining faults, corrected by the time that the faults so far took."""
        expected = sum(seconds for _, seconds in self.sizes.values())
        done = sum(self.sizes[case][1] * min(1, number / self.sizes[case][0]) for case, number in self.done.items())
        took = time.monotonic() - self.started
        pace = took / done if took > CORRECTED_S and done else 1 / self.processes
        return max(0, expected - done) * pace

    def line(self):
        where = "; ".join(f"{mode} {command} {name}: {number} of {of}"
                          for (name, mode, command), number, of in self.present.values())
        rest = f", some {minutes(self.left_s())} more" if self.sizes else ""
        total = f" of {sum(count for count, _ in self.sizes.values()):,}" if self.sizes else ""
        failures = f", {len(self.row.failures)} failures" if self.row.failures else ""
        return (f"  {minutes(time.monotonic() - self.started)}: {self.row.attempts:,}{total} faults{failures}{rest}"
                f"  [{where}]")


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def complete(row, processes, tools, cases):
    """Count the faults of all cases, print how long they will take, and try all of them."""
    counts = {}

    def counting(case, send, _stopped):
        send(("count", case, *count(tools, *case, lambda text: send(("failed", text)))))

    print("  counting the faults", flush=True)
    Pool(row, processes, counting).run(cases, lambda _, kind, case, *found: counts.update({case: found}), lambda: None)
    round_s = statistics.mean(seconds for _, _, seconds, _ in counts.values())
    start_s = statistics.mean(seconds for (_, mode, _), (*_, seconds) in counts.items() if mode == "server")
    sizes = {case: (found, found * round_s + kills * start_s) for case, (found, kills, _, _) in counts.items()}
    progress = Progress(row, processes, sizes)
    counted = sum(found for found, _ in sizes.values())
    print(f"  {counted:,} faults in {processes} processes, some {minutes(progress.left_s())} if the machine stays as "
          "busy as it is", flush=True)
    _try(row, processes, tools, sorted(sizes, key=lambda case: -sizes[case][1]), progress, limit=None)


def sampled(row, processes, tools, cases, limit):
    """Try `limit` faults of each case in a pass, and other faults in the next pass, until the row's end."""
    progress = Progress(row, processes, {})

    def passes():
        number = 0
        while row.running:
            yield from ((*case, number) for case in cases)
            number += 1
    _try(row, processes, tools, passes(), progress, limit)


def _try(row, processes, tools, todo, progress, limit):
    def trying(unit, send, stopped):
        case, seed = unit[:3], f"{row.seed} {unit[3:]}"
        possible = run_case(tools, *case, lambda text: send(("failed", text)), limit=limit, seed=seed,
                            running=lambda: row.running and not stopped(),
                            tried=lambda *what: send(("tried", case, *what)))
        send(("possible", case, 0, possible))

    try:
        Pool(row, processes, trying).run(todo, progress.on_message, lambda: print(progress.line(), flush=True))
    finally:
        print(progress.line(), flush=True)
        row.note(f"of {progress.possible:,} possible")
        if progress.missed:
            row.note(f"{progress.missed:,} requests did not reach their call")
