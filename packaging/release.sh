#!/bin/sh
# `make release`: write all files of a release to dist: the source archive, a wheel for each Python, the Debian packages,
# the list of components (CycloneDX) and the checksums. Two runs on one machine and one commit write the same bytes.
#   release.sh PYTHON [NAME...]     PYTHON runs the tools; NAME: python3.11, python3.12 ..., by default PYTHON
# SOURCE_DATE_EPOCH: the time of all files, in seconds since 1970; by default the time of the commit.
set -eu
cd "$(dirname "$0")/.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1
umask 022
rm -rf dist
sh wheels/build.sh "$@"
sh packaging/build-deb.sh
cp wheelhouse/fastcni-*.whl dist

# The components: what pip installs with the wheel and its extras for users.
venv=$PWD/build/components
rm -rf "$venv"
"$1" -m venv "$venv"
wheel=$(find dist -name "fastcni-*-$("$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*.whl")
"$venv/bin/python" -m pip install --quiet "$wheel[cluster,metrics,otel]"
"$venv/bin/python" -m pip uninstall --quiet --yes pip setuptools
"$1" -m venv "$venv.tools"
"$venv.tools/bin/python" -m pip install --quiet 'cyclonedx-bom>=7'
components=dist/fastcni-$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fastcni/__init__.py).cdx.json
"$venv.tools/bin/cyclonedx-py" environment --output-reproducible --pyproject pyproject.toml --mc-type application \
    "$venv/bin/python" > "$components"
"$venv.tools/bin/python" packaging/add_interpreter.py "$components" "$wheel"

(cd dist && sha256sum -- * > SHA256SUMS)
cat dist/SHA256SUMS
