#!/bin/sh
# In the guest: mount a writable overlay of the host's files as root, then run pytest with the arguments of
# .lanes/vm.args.
#   inside.sh [LANE FEATURE...]     run the complete lane: tests that need one of these, and features.BASE
set -eu
cd "$(dirname "$0")/../.."
project=$PWD
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH HOME=/root LANG=C.UTF-8
if [ $# != 0 ]; then
    export LANE="$1"
    shift
    export OTHER_LANE_LACKS="$*"
fi

modprobe -d .vm/kernel overlay
p9=trans=virtio,version=9p2000.L,msize=524288
mkdir /run/files /run/written /run/root
# Without cache=loose the guest asks the host for each file again and again, which takes most of the time.
mount -t 9p -o "ro,cache=loose,$p9" files /run/files
mount -t tmpfs tmpfs /run/written
mkdir /run/written/upper /run/written/work
mount -t overlay -o lowerdir=/run/files,upperdir=/run/written/upper,workdir=/run/written/work root /run/root
cd /run/root
for name in proc sys dev; do
    mount --rbind "/$name" "$name"
done
mount -t tmpfs tmpfs run
mkdir -p run/host lib/modules
ln -s "$project"/.vm/kernel/lib/modules/* lib/modules/
# Now modprobe finds the modules, too, if the kernel calls it.
pivot_root . run/host

cd "$project"
mount -t 9p -o "$p9" lanes .lanes
mkdir /run/tree
tar -C /run/tree -xf .lanes/vm.tree
for name in [!.]*; do
    mount --bind "/run/tree/$name" "$name"
done
modprobe -a tun br_netfilter
# Without this sysctl each new namespace gets a link tunl0, as soon as a test has loaded the module ipip.
echo 1 > /proc/sys/net/core/fb_tunnels_only_for_init_net
# The first packet that conntrack sees makes the kernel change its own code. The machine hung when two emulated
# processors did this at the same time, so send one packet first.
ip link set lo up
nft 'add table ip first; add chain ip first c { type filter hook output priority 0; }; add rule ip first c ct state new accept'
ping -c 1 -q 127.0.0.1 > /dev/null
nft delete table ip first
echo '<4>the tests begin' > /dev/kmsg
status=0
.venv/bin/python -B -m pytest -p no:cacheprovider @.lanes/vm.args > .lanes/vm.output 2>&1 || status=$?
echo $status > .lanes/vm.status
