#!/bin/sh
# `make test-arm64`: boot Debian 12 with its arm64 kernel in QEMU, run README's install block, `make check` and the
# real-kernel tests of bridge and portmap there. QEMU emulates the processor, so it takes hours on two busy cores; root.
#   arm64.sh [PYTEST ARGUMENT...]   by default the tests above
# The disk of the machine is its memory: the kernel unpacks a Debian system, and then this checkout, into it.
# .arm64 keeps the fetched files; .arm64/console has all output. ARM64_LIMIT: the time limit in seconds.
set -eu

say() { printf '%4d s  %s\n' "$(($(date +%s) - start))" "$*"; }

# Run all steps of the lane, as the first process of the machine. The output goes to the console.
inside() {
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
    export PATH HOME LANG DEBIAN_FRONTEND=noninteractive PIP_ROOT_USER_ACTION=ignore
    mount -t devtmpfs dev /dev
    exec < /dev/console > /dev/console 2>&1
    start=$(date +%s) status=1
    trap 'say "status $status"; sync; echo o > /proc/sysrq-trigger; sleep 60' EXIT
    cd /src
    # shellcheck disable=SC1091
    . ./.arm64-pip

    say "the system: debootstrap's second stage"
    /debootstrap/debootstrap --second-stage > /var/log/second-stage || { cat /var/log/second-stage; exit 1; }
    mountpoint -q /proc || mount -t proc proc /proc
    mountpoint -q /sys || mount -t sysfs sys /sys
    cp .arm64-certificates /etc/ssl/certs/ca-certificates.crt
    modprobe -a virtio_pci virtio_net tun br_netfilter
    device=$(basename "$(ls -d /sys/class/net/e*)")
    ip link set lo up && ip link set "$device" up
    ip address add 10.0.2.15/24 dev "$device" && ip route add default via 10.0.2.2
    echo nameserver 10.0.2.3 > /etc/resolv.conf
    apt-get update -qq

    say "README's install block on $(uname -srm), pages of $(getconf PAGESIZE) bytes"
    sed -n '/^## Install/,/^This writes/s/^    //p' README.md > /tmp/install
    sh -ex /tmp/install
    size=$(stat -c %s /opt/cni/bin/bridge)
    say "the plugin file has $size bytes"
    [ "$size" -lt 3000000 ]
    CNI_COMMAND=VERSION /opt/cni/bin/bridge < /dev/null

    say "make check"
    checked=0
    make check || checked=$?
    say "tests of the real kernel: $*"
    .venv/bin/python -m pytest -q -rs -n 2 --dist worksteal "$@"
    status=$checked
}

if [ "${1:-}" = inside ]; then
    shift
    inside "$@"
    exit
fi

cd "$(dirname "$0")/.."
start=$(date +%s) system=.arm64/system kernel=.arm64/kernel
mkdir -p .arm64
[ $# != 0 ] || set -- tests/unit/plugins/test_bridge_*.py tests/unit/plugins/test_portmap*.py

if [ ! -d $system ]; then
    say "fetching Debian 12 for arm64 into $system"
    rm -rf $system.new
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=ca-certificates,kmod,make,iproute2,nftables,iptables,iputils-ping,conntrack,containernetworking-plugins \
        bookworm $system.new http://deb.debian.org/debian > .arm64/debootstrap.log
    rm -rf $system.new/proc             # a link, if this machine is a container
    mkdir $system.new/proc
    mv $system.new $system
fi
if [ ! -d $kernel ]; then
    say "fetching its kernel into $kernel"
    rm -rf .arm64/apt $kernel.new
    mkdir -p .arm64/apt/lists/partial .arm64/apt/archives/partial $kernel.new
    : > .arm64/apt/status
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
        > .arm64/apt/sources.list
    cat > .arm64/apt/conf << END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$PWD/.arm64/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$PWD/.arm64/apt";
Dir::State::status "$PWD/.arm64/apt/status";
Dir::Cache "$PWD/.arm64/apt";
END
    export APT_CONFIG="$PWD/.arm64/apt/conf"
    apt-get update -qq
    package=$(apt-cache depends linux-image-arm64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
    (cd $kernel.new && apt-get download -qq "$package" && dpkg-deb -x ./*.deb . && rm ./*.deb)
    depmod -b $kernel.new "$(basename $kernel.new/lib/modules/*)"
    mv $kernel.new $kernel
fi

say "packing the machine's files"
tree=.arm64/tree
rm -rf $tree
mkdir -p $tree/usr/lib
cp -al $kernel/lib/modules $tree/usr/lib/
sh tests/copy-tree.sh $tree/src
cp -L /etc/ssl/certs/ca-certificates.crt $tree/src/.arm64-certificates
env | sed -n "s/^\(PIP_[A-Z_]*\)=\(.*\)/export \1='\2'/p" > $tree/src/.arm64-pip
pack() { (cd "$1" && find . | cpio --quiet -o -H newc) }
{ pack $system && pack $tree; } > .arm64/initrd

say "booting"
status=1
timeout -k 10 "${ARM64_LIMIT:-14400}" qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on -smp 2 -m 5G \
    -nographic -no-reboot -nic user,model=virtio-net-pci -kernel $kernel/boot/vmlinuz-* -initrd .arm64/initrd \
    -append "console=ttyAMA0 quiet mitigations=off rcupdate.rcu_expedited=1 rdinit=/src/tests/arm64.sh -- inside $*" \
    < /dev/null | tee .arm64/console || true
grep -q '^ *[0-9]* s  status 0' .arm64/console && status=0
rm -f .arm64/initrd
say "ended with status $status"
exit $status
