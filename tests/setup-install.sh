#!/bin/sh
# Build fastcni and install it into a virtual environment, in place, and print each step with the seconds since the start.
#   setup-install.sh PYTHON VENV
set -eu
python=$1 venv=$2
start=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf '%3d s  %s\n' $(($(date +%s) - start)) "$*"; }

# steps: read pip's lines, keep them in the log, print those that begin a step, and end with the status in the last line
steps() {
    fetched=''
    while IFS= read -r line; do
        printf '%s\n' "$line" >> "$log"
        case $line in
            *"Installing build dependencies: started"*) say "fetching the tools of the build: setuptools, Cython" ;;
            *"Preparing editable metadata"*": started"*) say "reading the project" ;;
            "Collecting "* | "Processing "*.whl*)
                [ -n "$fetched" ] || say "fetching the packages that fastcni needs"
                fetched=1 ;;
            *"Building editable for fastcni"*": started"*) say "compiling fastcni" ;;
            "Installing collected packages"*) say "installing" ;;
            "status "*) return "${line#status }" ;;
        esac
    done
    return 1
}

say "making a virtual environment in $venv"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# Packages are compiled at their first import; a demo does not import all of them.
{ "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile --progress-bar off -e . 2>&1 && echo "status 0" ||
    echo "status 1"; } | steps || {
    cat "$log" >&2
    exit 1
}
say "fastcni is installed in $venv"
