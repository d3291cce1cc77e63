#!/bin/sh
# Two "nodes" on one machine with cluster-wide addresses, on a store that is a file: no server runs. cluster-demo.sh has
# the same on etcd, with a node that dies.
set -eu

fastcni=${FASTCNI:-fastcni}
work=$(mktemp -d "${TMPDIR:-/tmp}/fastcni-demo.XXXXXX")
id=fcni-two-$$

cleanup() {
    for path in /run/netns/"$id"-*; do
        if [ -e "$path" ]; then ip netns del "${path##*/}"; fi
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

. "$(dirname "$0")/common.sh"

needs ip ping awk

# on NODE COMMAND WORDS...: run the command line on a node
on() {
    node=$1
    shift
    ip netns exec "$id-$node" "$fastcni" "$@" --conf-dir "$work/$node" --cache-dir "$work/$node"
}

say "1. Make two nodes, joined by a link, with one range of addresses for both"
"$fastcni" install --bin-dir "$work/bin" > /dev/null
export CNI_PATH="$work/bin"
for node in node-a node-b; do
    ip netns add "$id-$node"
    ip -n "$id-$node" link set lo up
    ip -n "$id-$node" link add cni0 type bridge
    ip -n "$id-$node" link set cni0 up
    mkdir "$work/$node"
    cat > "$work/$node/10-shared.conflist" << CONF
{"cniVersion": "1.0.0", "name": "shared", "plugins": [
  {"type": "bridge", "bridge": "cni0",
   "ipam": {"type": "cluster", "range": "10.23.0.0/24", "node_name": "$node", "dataDir": "$work/$node/addresses",
            "store": {"type": "local", "path": "$work/store"}}}]}
CONF
done
ip -n "$id-node-a" link add uplink type veth peer name uplink netns "$id-node-b"
for node in node-a node-b; do ip -n "$id-$node" link set uplink master cni0 up; done
cat "$work/node-a/10-shared.conflist"

say "2. fastcni add shared, for two pods on each node"
for pod in node-a-pod1 node-a-pod2 node-b-pod1 node-b-pod2; do
    ip netns add "$id-$pod"
    args="IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME=$pod"
    on "${pod%-pod?}" add shared "/run/netns/$id-$pod" --args "$args" --json > "$work/result" || {
        cat "$work/result"
        exit 1
    }
    echo "$pod has $(ip -n "$id-$pod" -4 -o addr show eth0 | awk '{ print $4 }')"
done

say "3. Ping a pod on node-b from a pod on node-a"
other=$(ip -n "$id-node-b-pod1" -4 -o addr show eth0 | awk '{ sub("/.*", "", $4); print $4 }')
ip netns exec "$id-node-a-pod1" ping -c 1 -W 5 "$other"

say "4. Each node has claimed a block, so no address is given twice: fastcni ipam list, show"
on node-a ipam list
on node-b ipam show "$other"

say "5. fastcni del, for all pods, and count what is left"
for pod in node-a-pod1 node-a-pod2 node-b-pod1 node-b-pod2; do
    on "${pod%-pod?}" del shared "/run/netns/$id-$pod" > /dev/null
done
left=$(find "$work"/node-?/addresses -name '10.23.*' | wc -l)
echo "addresses still held: $left"
[ "$left" = 0 ] || exit 1
echo "Nothing: the demo worked."
