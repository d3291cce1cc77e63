#!/bin/sh
# `make deb`: build the Debian packages from a copy of the tree below build/deb, and move them to dist.
# As root, install the build's requirements. SOURCE_DATE_EPOCH: the time of all files [that of CHANGELOG.md].
set -eu
cd "$(dirname "$0")/.."
top=$PWD
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fastcni/__init__.py)
tree=$top/build/deb/fastcni-$version
rm -rf "$top/build/deb"
sh tests/copy-tree.sh "$tree"
mkdir -p dist
cp -a packaging/debian "$tree/debian"
cat > "$tree/debian/changelog" << END
fastcni ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -R -u -d "@${SOURCE_DATE_EPOCH:-$(stat -c %Y CHANGELOG.md)}")
END
cd "$tree"
if [ "$(id -u)" = 0 ] && ! dpkg-checkbuilddeps 2> /dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 build-dep -y -qq --no-install-recommends ./ > /dev/null
fi
dpkg-buildpackage -b -us -uc > ../build.log 2>&1 || { tail -40 ../build.log; exit 1; }
rm -f "$top"/dist/*.deb
mv ../*.deb "$top/dist"
mv ../*.changes ../*.buildinfo "$top/build"
echo "$top"/dist/*.deb
