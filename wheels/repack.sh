#!/bin/sh
# Write a source archive again: the same bytes for the same content. setuptools keeps the times, owners and modes of files.
#   repack.sh ARCHIVE DIRECTORY
# SOURCE_DATE_EPOCH: the time of all files, in seconds since 1970 [the time of PKG-INFO in the archive].
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf "$1" -C "$work"
name=$(basename "$1" .tar.gz)
mkdir -p "$2"
tar -C "$work" --sort=name --format=posix --pax-option=delete=atime,delete=ctime --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX --mtime="@${SOURCE_DATE_EPOCH:-$(stat -c %Y "$work/$name/PKG-INFO")}" -cf - "$name" |
    gzip -9n > "$2/$name.tar.gz"
