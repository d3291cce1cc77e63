"""Print the test files for the VM lane: files with tests that the host lane could not run, and with tests that both
lanes run. The list saves minutes, because an emulated processor collects all tests slowly.

    chosen.py .lanes/host.json      prints nothing if the record does not exist: the VM lane then collects all tests
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
