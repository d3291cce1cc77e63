#!/bin/sh
# Copy the checkout's sources, without anything that was built, into a new directory.
#   copy-tree.sh DIRECTORY
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
tar -cf - --exclude='*.so' --exclude='*.elf' --exclude=__pycache__ --exclude='./fastcni/_*.c' --exclude='*.egg-info' \
    --exclude=./build --exclude=./dist --exclude=./wheelhouse ./.ci ./.editorconfig ./.github ./.pre-commit-config.yaml ./[!.]* | tar -xf - -C "$1"
