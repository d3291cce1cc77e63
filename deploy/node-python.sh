#!/bin/sh
# Make a Python that runs on any node, whatever its C library: Debian's, with the loader and the libraries it needs.
# The result is DIRECTORY/ID. It works as /opt/fastcni/python/ID only: the paths of loader and libraries are absolute.
#   node-python.sh DIRECTORY [PACKAGES]
# PACKAGES is a directory of Python packages that plugins import late: for stores of cluster-wide addresses.
set -eu
python=$(python3 -ISc 'import os, sys; print(os.path.realpath(sys._base_executable))')
version=${python##*/}
packages=${2:+$(cd "$2" && pwd)}
mkdir -p "$1"
directory=$(cd "$1" && pwd)
new=$directory/new
mkdir -p "$new/bin" "$new/lib/native"
cp "$python" "$new/bin/"
cp -R "/usr/lib/$version" "$new/lib/"
cd "$new/lib/$version"
# plugins run without site packages, and look for these when they need one: clients/site_packages.py
[ -z "${packages-}" ] || cp -R "$packages" dist-packages
rm -rf config-* test ensurepip idlelib lib2to3 pydoc_data tkinter turtledemo sitecustomize.py EXTERNALLY-MANAGED
find . -name __pycache__ -prune -exec rm -rf {} +

cd "$new"
loader=$(patchelf --print-interpreter "bin/$version")
cp -L "$loader" lib/native/
for binary in "bin/$version" "lib/$version"/lib-dynload/*.so; do
    ldd "$binary" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }'
done | sort -u | while read -r library; do
    cp -L "$library" lib/native/
done

# one directory for each content, so that a new image leaves the Python of running plugins alone
id=${version#python}-$(find . -type f | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum | cut -c1-12)
native=/opt/fastcni/python/$id/lib/native
# DT_RPATH, unlike DT_RUNPATH, also serves the libraries of libraries. It is no $ORIGIN: that needs /proc.
patchelf --set-interpreter "$native/${loader##*/}" --force-rpath --set-rpath "$native" "bin/$version"
mv "$new" "$directory/$id"
