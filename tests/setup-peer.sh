#!/bin/sh
# Check the programs that the tests use: the Go plugins, iptables, ipset, nft, ip, conntrack, iperf3, strace, ping,
# systemd's tools, firewalld, ufw, dockerd, Open vSwitch, HAProxy, wrk.
# As root on Debian or Ubuntu, install missing programs. Otherwise print their names: tests that need them are skipped.
# firewalld, dockerd and Open vSwitch are not installed if systemd runs: systemd would start them, and they would change
# the machine's own firewall or links.
#   setup-peer.sh [COMMAND...]     by default all
set -eu
[ $# -gt 0 ] || set -- bridge iptables ipset nft ip conntrack ping iperf3 strace systemd-analyze firewalld ufw dockerd \
    ovs-vswitchd haproxy wrk

package_of() {
    case $1 in
        bridge) echo containernetworking-plugins ;;
        iptables) echo iptables ;;
        ipset) echo ipset ;;
        nft) echo nftables ;;
        ip) echo iproute2 ;;
        conntrack) echo conntrack ;;
        iperf3) echo iperf3 ;;
        ping) echo iputils-ping ;;
        strace) echo strace ;;
        firewalld) echo firewalld ;;
        ufw) echo ufw ;;
        dockerd) echo docker.io ;;
        ovs-vswitchd) echo openvswitch-switch ;;
        systemd-analyze) echo systemd ;;
        aarch64-linux-gnu-gcc) echo gcc-aarch64-linux-gnu ;;
        qemu-system-aarch64) echo qemu-system-arm ;;
        depmod) echo kmod ;;
        qemu-aarch64-static) echo qemu-user-static ;;
        clang) echo clang ;;
        debootstrap) echo debootstrap ;;
        dpkg-buildpackage) echo dpkg-dev ;;
        lintian) echo lintian ;;
        containerd | podman | runc | patchelf | cpio | shellcheck | tmux | chromium | faketime | haproxy | wrk) echo "$1" ;;
        busybox) echo busybox-static ;;
        etcd) echo etcd-server ;;
        bird) echo bird2 ;;
        vtysh) echo frr ;;
        dnsmasq) echo dnsmasq-base ;;
        kea-dhcp4) echo kea-dhcp4-server ;;
        etcdctl) echo etcd-client ;;
        prometheus | promtool) echo prometheus ;;
        openssl) echo openssl ;;
    esac
}

PATH=$PATH:/usr/sbin:/sbin
missing=
for name in "$@"; do
    if [ "$name" = bridge ]; then there=${PEER:-/usr/lib/cni}/bridge; else there=$name; fi  # iproute2 has one, too
    command -v "$there" > /dev/null && continue
    case $name in
        firewalld | dockerd | ovs-vswitchd)
            if [ -d /run/systemd/system ]; then
                echo "no $name: tests that need it are skipped; it is not installed because systemd would start it" >&2
                continue
            fi ;;
    esac
    missing="$missing $(package_of "$name")"
done
[ "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing$missing" >&2
    # Packages start their daemons unless policy-rc.d forbids it (invoke-rc.d(8)).
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' > $policy
        chmod +x $policy
    fi
    # if the mirror is down, only tests that need these programs are skipped
    apt-get update -qq < /dev/null >&2 || true
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends \
        $missing < /dev/null >&2 && exit 0
fi
echo "tests that need these are skipped; on Debian or Ubuntu: apt-get install$missing" >&2
