#!/bin/sh
# Two pods on one bridge: add, ping, check and delete them, check that nothing is left, and run the self-test.
set -eu

fastcni=${FASTCNI:-fastcni}
work=$(mktemp -d /tmp/fastcni-demo.XXXXXX)
host=fcni-demo-host-$$ pod1=fcni-demo-1-$$ pod2=fcni-demo-2-$$

cleanup() {
    for name in $pod1 $pod2 $host; do
        if [ -e "/run/netns/$name" ]; then ip netns del "$name"; fi
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
on_host() { ip netns exec $host "$@"; }

if [ "$(id -u)" != 0 ]; then
    echo "the demo makes network namespaces: run it as root" >&2
    exit 1
fi

say "1. Install the plugins and a network configuration"
$fastcni install --bin-dir "$work/bin"
mkdir "$work/net.d"
sed "s|/var/lib/cni/networks|$work/networks|" "$(dirname "$0")/net.d/10-mynet.conflist" | tee "$work/net.d/10-mynet.conflist"

say "2. Make a namespace for the host, and two for pods"
for name in $host $pod1 $pod2; do ip netns add $name; done
on_host ip link set lo up
export NETCONFPATH="$work/net.d" CNI_PATH="$work/bin"
cni() { on_host $fastcni "$@" --cache-dir "$work/cache"; }

say "3. fastcni add mynet, for both pods"
cni add mynet /run/netns/$pod1 --json
echo
cni add mynet /run/netns/$pod2 --json
echo

say "4. Ping the gateway and the other pod from pod 1"
other=$(ip -n $pod2 -4 -o addr show eth0 | awk '{ sub("/.*", "", $4); print $4 }')
ip netns exec $pod1 ping -c 1 -W 2 10.22.0.1
ip netns exec $pod1 ping -c 1 -W 2 "$other"

say "5. The host has an address file and an nftables element for each pod"
ls "$work/networks/mynet"
if command -v nft > /dev/null; then on_host nft list map inet fastcni pods4; fi

say "6. fastcni check and del, for both pods"
for pod in $pod1 $pod2; do
    cni check mynet /run/netns/$pod && echo "check of $pod: ok"
    cni del mynet /run/netns/$pod && echo "del of $pod: ok"
done

say "7. Count what is left"
links=$(on_host ip -o link show type veth | wc -l)
files=$(find "$work/networks/mynet" -name '10.*' | wc -l)
elements="not counted, no nft"
if command -v nft > /dev/null; then elements=$(on_host nft list map inet fastcni pods4 | grep -c 10.22 || true); fi
echo "veth links: $links, address files: $files, nftables elements: $elements"
case $links,$files,$elements in
    0,0,0 | 0,0,not*) echo "Nothing is left." ;;
    *) exit 1 ;;
esac

say "8. fastcni selftest: two pods of its own, and packets between them, the node and an outside host"
cni selftest mynet
echo "The demo worked."
