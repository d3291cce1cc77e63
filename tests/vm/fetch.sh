#!/bin/sh
# Fetch the parts of `make test-vm` into .vm: Debian's kernel package, unpacked and not installed, and virtme-ng in a
# venv. Nothing is fetched twice. For another kernel remove .vm/kernel.
#   fetch.sh PYTHON
# KERNEL: the kernel's package, by default that of the distribution; Debian 12 also has linux-image-6.12-amd64
set -eu
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/sbin:/sbin

sorry() {
    echo "make test-vm: $*" >&2
    exit 1
}

[ "$(uname -m)" = x86_64 ] || sorry "supports only x86_64, this is $(uname -m)"

missing=
for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static depmod:kmod; do
    command -v "${pair%:*}" > /dev/null || missing="$missing ${pair#*:}"
done
if [ "$missing" ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || sorry "needs these Debian packages:$missing"
    echo "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing < /dev/null > /dev/null
fi

if [ ! -x .vm/venv/bin/virtme-run ]; then
    echo "virtme-ng into .vm/venv"
    "$1" -m venv .vm/venv
    .vm/venv/bin/python -m pip install --quiet --disable-pip-version-check 'virtme-ng>=1.42,<2'
fi

kernel_packages() {
    # Debian's kernel is one package; Ubuntu's modules are packages of their own.
    for meta in ${KERNEL:-linux-image-amd64 linux-image-generic}; do
        release=$(apt-cache depends "$meta" 2> /dev/null | sed -n 's/.*Depends: linux-image-\([0-9]\)/\1/p' | head -n 1)
        [ -z "$release" ] || break
    done
    for package in ${release:+"linux-image-$release" "linux-modules-$release" "linux-modules-extra-$release"}; do
        if apt-cache show "$package" > /dev/null 2>&1; then echo "$package"; fi
    done
}

if [ ! -d .vm/kernel ]; then
    command -v apt-get > /dev/null || sorry "needs apt-get (Debian, Ubuntu) to fetch a kernel package"
    packages=$(kernel_packages)
    [ "$packages" ] || { apt-get update -qq && packages=$(kernel_packages); }
    [ "$packages" ] || sorry "apt-cache knows no ${KERNEL:-linux-image-amd64 and no linux-image-generic}"
    rm -rf .vm/new
    mkdir -p .vm/new
    # shellcheck disable=SC2086
    echo $packages "into .vm/kernel"
    cd .vm/new
    # shellcheck disable=SC2086
    download() { apt-get download -qq -o APT::Sandbox::User=root $packages; }
    download || { apt-get update -qq && download; }
    for package in *.deb; do
        dpkg-deb -x "$package" .
    done
    rm ./*.deb
    [ -d lib ] || ln -s usr/lib lib         # a package for merged /usr
    depmod -b . "$(basename lib/modules/*)"
    cd ../..
    mv .vm/new .vm/kernel
fi
