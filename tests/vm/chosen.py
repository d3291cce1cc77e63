"""Print the files of the tests that the host lane could not run, and of those that both lanes run, for the VM lane. To
collect all tests takes an emulated processor minutes.

    chosen.py .lanes/host.json      prints nothing without that record: then all tests are collected
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from features import BASE


def main(path):
    if Path(path).exists():
        left = json.loads(Path(path).read_text(encoding="utf-8"))["not run"]
        print(*sorted({test.partition("::")[0] for test in left} | {f"tests/{name}" for name in BASE}))


if __name__ == "__main__":
    main(sys.argv[1])
