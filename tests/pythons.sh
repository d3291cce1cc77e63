#!/bin/sh
# Print the path of each interpreter that starts, from PATH or pyenv. Name the others on stderr.
#   pythons.sh NAME...             for instance python3.12
set -eu
absent=
for name in "$@"; do
    python=
    for found in "$(command -v "$name" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${name#python}".*/bin/python; do
        # a shim of pyenv in PATH may only print that its version is not selected
        if "$found" -c '' 2> /dev/null; then python=$found; break; fi
    done
    if [ "$python" ]; then echo "$python"; else absent="$absent $name"; fi
done
[ -z "$absent" ] || echo "not installed, so not tested:$absent" >&2
