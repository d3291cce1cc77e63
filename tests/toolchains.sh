#!/bin/sh
# `make test-toolchains`: the tests that need another compiler, processor or library, and the fast tests on each other
# installed Python, in a copy of the tree below .toolchains.
#   toolchains.sh PYTHON
# PYTHONS: the interpreters, by default python3.12 to python3.14, from PATH or pyenv.
set -eu
cd "$(dirname "$0")/.."
quiet="--quiet --disable-pip-version-check"

# shellcheck disable=SC2086
"$1" -c 'import matplotlib' 2> /dev/null || "$1" -m pip install $quiet -e '.[test,plots]'
LANE=toolchains "$1" -m pytest -q -rs tests/project/test_launcher.py tests/project/test_bench.py \
    tests/unit/kit/datapath tests/unit/node/test_datapath.py tests/unit/node/test_datapath_flows.py \
    tests/unit/server/test_datapath_trace.py \
    benchmarks/bench_datapath.py -k "aarch64 or clang or plots or datapath"

# shellcheck disable=SC2086
for python in $(sh tests/pythons.sh ${PYTHONS:-python3.12 python3.13 python3.14}); do
    there=.toolchains/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    mkdir -p "$there"
    find "$there" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    tar -cf - --exclude='*.so' [!.]* | tar -xf - -C "$there"
    (
        cd "$there"
        test -x .venv/bin/python || "$python" -m venv .venv
        # shellcheck disable=SC2086
        .venv/bin/python -m pip install $quiet -e '.[test]'
        echo "$(.venv/bin/python -V):"
        PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -q -n 4 --dist worksteal -m "not needs" \
            tests/unit/kernel tests/unit/kit tests/unit/launcher tests/unit/plugins tests/unit/spec tests/unit/test_*.py \
            tests/project/test_launcher.py
    )
done
