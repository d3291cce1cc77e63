#!/bin/sh
# Start the server; add two pods to one bridge, ping, check and delete them, and count what is left. Then the times of the
# Go plugins, one-shot and warm side by side, and the self-test.
set -eu

fastcni=${FASTCNI:-fastcni}
work=$(mktemp -d "${TMPDIR:-/tmp}/fastcni-demo.XXXXXX")
peer=${PEER:-/usr/lib/cni}
server='' host=fcni-demo-host-$$ pod1=fcni-demo-1-$$ pod2=fcni-demo-2-$$

cleanup() {
    trap - EXIT
    if [ -n "$server" ]; then
        kill "$server" 2> /dev/null || true
        wait "$server" 2> /dev/null || true
    fi
    for name in $pod1 $pod2 $host; do
        if [ -e "/run/netns/$name" ]; then ip netns del "$name"; fi
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

. "$(dirname "$0")/common.sh"
on_host() { ip netns exec $host "$@"; }

# measure SIDE...: print how long one ADD and one DEL of a bridge network take
measure() {
    for side in "$@"; do set -- "$@" --side "$side"; shift; done
    "$fastcni" bench --force --only bridge --part latency --rounds 3 --rest 0 --peer "$peer" "$@" > "$work/bench" 2>&1 || return
    sed -n '/^One at a time/,/^ *$/p; /^ *case/,/^ *$/p' "$work/bench"
}

needs ip ping awk
say "1. Install the plugins and a network configuration"
"$fastcni" install --bin-dir "$work/bin"
mkdir "$work/net.d"
sed "s|/var/lib/cni/networks|$work/networks|" "$(dirname "$0")/net.d/10-mynet.conflist" | tee "$work/net.d/10-mynet.conflist"

say "2. Make a namespace for the host, start the server there, and make two namespaces for pods"
for name in $host $pod1 $pod2; do ip netns add "$name"; done
on_host ip link set lo up
export NETCONFPATH="$work/net.d" CNI_PATH="$work/bin"
export FASTCNI_SOCKET="$work/socket"
cni() { on_host "$fastcni" "$@" --cache-dir "$work/cache"; }
ip netns exec $host "$fastcni" serve --cache-dir "$work/cache" --log-level warning 2> "$work/log" &
server=$!
wait_for "the server listens; its log is $work/log" 30 test -S "$FASTCNI_SOCKET"
echo "The server listens at $FASTCNI_SOCKET."

say "3. fastcni add mynet, for both pods"
cni add mynet /run/netns/$pod1
echo
cni add mynet /run/netns/$pod2
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
    cni check mynet "/run/netns/$pod" > /dev/null
    echo "check of $pod: ok"
    cni del mynet "/run/netns/$pod" > /dev/null
    echo "del of $pod: ok"
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

say "8. The time of an ADD and a DEL in milliseconds: fastcni without and with its server, and the Go plugins"
if ! { [ -x "$peer/bridge" ] && measure Go one-shot warm; }; then
    echo "There are no Go plugins in $peer (Debian: containernetworking-plugins), so these are fastcni's times alone."
    measure one-shot warm || { cat "$work/bench"; exit 1; }
fi

say "9. fastcni selftest: two pods of its own, and packets between them, the node and an outside host"
cni selftest mynet
echo "The demo worked."
