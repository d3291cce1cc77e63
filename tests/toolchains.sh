#!/bin/sh
# `make test-toolchains`: the tests that need another compiler, processor or library, and the fast tests on each other
# installed Python, in a copy of the tree below .toolchains.
#   toolchains.sh PYTHON
# PYTHONS: the interpreters, by default python3.12 to python3.14, from PATH or pyenv.
set -eu
cd "$(dirname "$0")/.."
quiet="--quiet --disable-pip-version-check"

# shellcheck disable=SC2086
"$1" -c 'import matplotlib' 2> /dev/null || "$1" -m pip install $quiet -e '.[test,bench]'
LANE=toolchains "$1" -m pytest -q -rs tests/project/test_launcher.py tests/project/test_bench.py \
    -k "aarch64 or clang or plots"

find_python() {     # one that starts: a shim of pyenv in PATH may only print that its version is not selected
    for found in "$(command -v "$1")" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}".*/bin/python; do
        "$found" -c '' 2> /dev/null && echo "$found" && return
    done
}

absent=
for name in ${PYTHONS:-python3.12 python3.13 python3.14}; do
    python=$(find_python "$name" || true)
    if [ -z "$python" ]; then
        absent="$absent $name"
        continue
    fi
    there=.toolchains/$name
    mkdir -p "$there"
    find "$there" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    tar -cf - --exclude='*.so' [!.]* | tar -xf - -C "$there"
    (
        cd "$there"
        test -x .venv/bin/python || "$python" -m venv .venv
        # shellcheck disable=SC2086
        .venv/bin/python -m pip install $quiet -e '.[test]'
        echo "$(.venv/bin/python -V):"
        .venv/bin/python -m pytest -q -n 2 tests/leaves tests/spec tests/fake_kernel tests/launcher tests/project/test_launcher.py
    )
done
[ -z "$absent" ] || echo "not installed, so not tested:$absent"
