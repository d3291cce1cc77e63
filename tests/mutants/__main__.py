"""`python -m mutants`: change fastcni's code line by line, and print the changes that no test notices.

    make test-mutants                                                               all mutants: many hours
    make test-mutants MUTANTS="--seconds 600 --seed 1 --only agent/policy"          a sample of one directory
    make test-mutants MUTANTS=--promises                                            docs/reliability-promises.md

For each mutant, the tests run that ran the mutated line when `.covering/` was recorded (mutants/covering.py). The
chosen tests take at most `--tests-seconds`: some of each test file, short tests first. The mutated copy of the checkout
is below `.covering/`. Exit status 1: a promise's test does not fail with the mutant of its promise.
"""

import argparse
import collections
import os
import random
import sys
import time

from mutants import covering, mutations, promises, tree

TARGETS = ("agent/policy", "kit/ipam/cluster", "server", "launcher")
OUTCOMES = ("killed", "survived", "timed out", "no test")


def sample(only, seed):
    """Yield (module, source, operator, occurrence) of all mutants below the paths `only`, in a random order that the
    seed determines."""
    found = []
    for module in covering.modules():
        if any(module.startswith(f"fastcni/{target}") for target in only):
            source = (covering.ROOT / module).read_text()
            found += [(module, source, *position) for position in mutations.positions(source)]
    random.Random(seed).shuffle(found)
    return found


def choose(names, recorded, seconds):
    """Return some of these tests, which together take at most `seconds`: the shortest test of each file, then the next
    test of each file, and so on. Tests of one file often check the same behaviour, and hundreds of tests run some
    lines."""
    ranks, seen = {}, collections.Counter()
    for name in sorted(names, key=recorded.seconds.get):
        ranks[name] = seen[file := name.split("::")[0]], recorded.seconds[name]
        seen[file] += 1
    chosen, total = [], 0.0
    for name in sorted(names, key=ranks.get):
        total += recorded.seconds[name]
        if chosen and total > seconds:
            break
        chosen.append(name)
    return chosen


def judged(mutant, recorded, checkout, options):
    """Return (the mutant's outcome, one of OUTCOMES; how many of its tests were run). If a test also fails in the copy
    without the mutant, judge the mutant without this test, and do not use the test again."""
    names = (recorded.tests_in(options.tests) if options.tests else
             recorded.tests_of(mutant.module, mutant.lines()))
    chosen = choose(names, recorded, options.tests_seconds)
    if not chosen:
        return "no test", ""
    limit = 20 + 5 * sum(map(recorded.seconds.get, chosen))
    status = checkout.run(mutant.module, mutant.text, chosen, limit)
    outcome = "timed out" if status is None else "survived" if status == 0 else "killed"
    if (failed := checkout.first_failed()) and failed not in recorded.passed:
        if checkout.run(mutant.module, mutant.source, [failed], limit) != 0:
            print(f"\nfails without a mutant: {failed}", flush=True)
            del recorded.seconds[failed]
            return judged(mutant, recorded, checkout, options)
        recorded.passed.add(failed)
    return outcome, f"{len(chosen)} of {len(names)} tests"


def campaign(options):
    """Judge mutants until the time is over. Print each survivor, then a table of the modules."""
    rows, until = collections.defaultdict(collections.Counter), time.monotonic() + options.seconds
    recorded, checkout = covering.Covering(), tree.Tree()
    for module, source, name, occurrence in sample(options.only or TARGETS, options.seed):
        if time.monotonic() > until:
            break
        if (mutant := mutations.make(module, source, name, occurrence)) is None:
            continue
        outcome, tests = judged(mutant, recorded, checkout, options)
        rows[module][outcome] += 1
        if outcome in ("survived", "timed out"):
            print(f"\n{outcome} ({tests}): {module}:{mutant.line} {name}\n{mutant.diff()}", flush=True)
    print(f"\n| module | mutants | {' | '.join(OUTCOMES)} |\n|---|{'--:|' * (1 + len(OUTCOMES))}")
    for module, row in [*sorted(rows.items()), ("all", sum(rows.values(), collections.Counter()))]:
        print(f"| {module} | {row.total()} | {' | '.join(str(row[outcome]) for outcome in OUTCOMES)} |")
    return 0


def main():
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeat the choices of another run")
    parser.add_argument("--only", action="append", help=f"modules below this path; by default {', '.join(TARGETS)}")
    parser.add_argument("--tests-seconds", type=float, default=20, help="for a mutant's tests, by recorded durations")
    parser.add_argument("--tests", action="append", help="a recorded test file: run the tests of this file, whatever "
                        "lines they run, because the record lacks the lines that only plugin files run")
    parser.add_argument("--promises", action="store_true", help="run each promise's test against the promise's mutant")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: each mutant runs in its own namespaces")
    if options.promises:
        return promises.campaign(options.only)
    if not covering.STATE.exists():
        sys.exit("no test is recorded yet: make tests-of FILE=fastcni/spec/version.py")
    if files := covering.outdated("tests"):
        print(f"{len(files)} test files are new or have changed since the tests were recorded: "
              f"`make tests-of` records them", flush=True)
    print(f"seed {options.seed}", flush=True)
    return campaign(options)


if __name__ == "__main__":
    sys.exit(main())
