"""Counts the tests that need a kernel feature and were run by no lane; status 1 if there are any.

    count.py OTHER LAST     what the lanes wrote (tests/features.py); the last to run knows which tests there are
"""

import json
import sys
from pathlib import Path


def main(*paths):
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        print(f"not known which tests were run by no lane: no {' and no '.join(missing)}")
        return 1 if paths[-1] in missing else 0
    lanes = {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in paths}
    for name, lane in lanes.items():
        print(f"{name}, Linux {lane['kernel']}: ran {len(lane['ran'])} of the tests that need a kernel feature")
    *_, last = lanes.values()
    left = sorted(set(last["not run"]).difference(*(lane["ran"] for lane in lanes.values())))
    for test in left:
        print(test)
        for name, lane in lanes.items():
            print(f"    {name}: {lane['not run'].get(test, 'not among its tests')}")
    print(f"{len(left)} tests were run by no lane")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
