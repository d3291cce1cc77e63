#!/bin/sh
# Check the requirements of the build: Python 3.11 with venv and headers, and a C compiler.
# As root on Debian or Ubuntu, install missing packages; otherwise print their names.
#   setup-build.sh PYTHON
set -eu
python=$1

say() { printf '%s\n' "$*" >&2; }
has() { "$python" -c "$1" 2> /dev/null; }

command -v "$python" > /dev/null || { say "no $python: apt-get install python3, or make PYTHON=/path/to/python3.11"; exit 1; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
has 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "$python is Python $version, fastcni needs 3.11 or newer: make PYTHON=/path/to/a/newer/python3"
    exit 1
}

has_venv() { has 'import venv, ensurepip'; }
has_headers() { has 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; }
has_compiler() { command -v "${CC:-gcc}" > /dev/null || command -v cc > /dev/null; }

missing=
has_venv || missing="$missing python$version-venv"
has_headers || missing="$missing python$version-dev"
has_compiler || missing="$missing gcc libc6-dev"
[ "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    say "installing$missing"
    apt-get update -qq < /dev/null >&2
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing < /dev/null >&2 || true
fi
has_venv && has_headers && has_compiler && exit 0
say "the build needs more packages; on Debian or Ubuntu: apt-get install$missing"
exit 1
