"""List the tests that no lane ran, each with the reasons for its skips. Exit status 1: tests/features.py does not allow
a reason.

    count.py OTHER... LAST  the records of the lanes (tests/features.py); only the last record must exist
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from features import ALLOWED, LEFT

ABSENT = "not among its tests"


def main(*paths):
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        print(f"the lanes cannot be counted: no {' and no '.join(missing)}")
        return 1 if paths[-1] in missing else 0
    lanes = {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in paths}
    for name, lane in lanes.items():
        print(f"{name}, Linux {lane['kernel']}: ran {len(lane['ran'])} tests")
    known = set[str]().union(*(lane["not run"] for lane in lanes.values()))
    left = sorted(known.difference(*(lane["ran"] for lane in lanes.values())))
    unexpected = 0
    for test in left:
        whys = {name: lane["not run"].get(test, ABSENT) for name, lane in lanes.items()}
        allowed = {ALLOWED.get(prefix_of(why), "") for why in whys.values() if why not in (LEFT, ABSENT)}
        unexpected += not allowed or "" in allowed
        print(test)
        for name, why in whys.items():
            print(f"    {name}: {why}")
        for sentence in filter(None, allowed):
            print(f"    allowed: {sentence}")
    print(f"{len(left)} tests were run by no lane, {unexpected} of them unexpectedly")
    return 1 if unexpected else 0


def prefix_of(why):
    """Return the key of ALLOWED with which the reason `why` begins, or ""."""
    return next((prefix for prefix in ALLOWED if why.startswith(prefix)), "")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
