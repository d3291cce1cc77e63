#!/bin/sh
# Three nodes joined by `fastcni agent` on a real etcd: pods on each, pings across, a network policy that cuts one off, a
# node that dies and comes back.
#   agent-demo.sh [BACKEND]     vxlan (the default) or host-gw
# A node is a network namespace with its own agent. Another namespace has the bridge between the nodes, and etcd.
set -eu

backend=${1:-vxlan}
fastcni=${FASTCNI:-fastcni}
etcd_url=http://10.98.0.1:2379
id=fca$$ processes='' work=''

cleanup() {
    trap - EXIT
    for pid in $processes; do kill "$pid" 2> /dev/null || true; done
    for pid in $processes; do wait "$pid" 2> /dev/null || true; done
    for path in /run/netns/"$id"-*; do
        if [ -e "$path" ]; then ip netns del "${path##*/}"; fi
    done
    if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

. "$(dirname "$0")/common.sh"

# start_agent NODE: start the agent, and wait until it has written the node's subnet
start_agent() {
    ip netns exec "$id-$1" "$fastcni" agent --etcd $etcd_url --iface uplink --subnet-file "$work/$1/subnet.env" \
        --conflist "" --folder "$work/$1/state" --policies "$work/policies" 2>> "$work/$1/log" &
    agent=$!
    processes="$processes $agent"
    wait_for "the agent of $1 has a subnet; its log is $work/$1/log" 30 test -s "$work/$1/subnet.env"
}

# start_node NODE NUMBER: a namespace with an uplink to the other nodes, a configuration for pods, and an agent
start_node() {
    ip netns add "$id-$1"
    ip -n "$id-$1" link set lo up
    ip -n "$id-lan" link add "to-$1" type veth peer name uplink netns "$id-$1"
    ip -n "$id-lan" link set "to-$1" master lan up
    ip -n "$id-$1" addr add "10.98.0.$2/24" dev uplink
    ip -n "$id-$1" link set uplink up
    mkdir "$work/$1"
    cat > "$work/$1/demo.conflist" << CONF
{"cniVersion": "1.0.0", "name": "demo", "plugins": [
 {"type": "flannel", "subnetFile": "$work/$1/subnet.env", "dataDir": "$work/$1/flannel",
  "ipam": {"type": "host-local", "dataDir": "$work/$1/addresses"}, "delegate": {"isDefaultGateway": true}},
 {"type": "policy", "agentSocketPath": "$work/$1/state/policy.sock"}]}
CONF
    start_agent "$1"
    echo "$1 has $(sed -n 's/FLANNEL_SUBNET=//p' "$work/$1/subnet.env")"
}

# call add|del NODE POD: call the plugins as a runtime does
call() {
    ip netns exec "$id-$2" env FASTCNI_SOCKET= "$fastcni" "$1" --conf-dir "$work/$2" --bin-dir "$work/bin" \
        --cache-dir "$work/$2/cache" --container-id "$3" --args "IgnoreUnknown=1;K8S_POD_NAME=$3;LABELS=app:$3" \
        --json demo "/run/netns/$id-$3"
}

# add_pod NODE POD: make a pod, and note its address in the file POD
add_pod() {
    ip netns add "$id-$2"
    call add "$1" "$2" > "$work/result" || fail "ADD of $2: $(cat "$work/result")"
    sed -n 's|.*"address": *"\([0-9.]*\)/.*|\1|p' "$work/result" | head -n 1 > "$work/$2"
    echo "$2 on $1 has $(cat "$work/$2")"
}

# reaches POD POD: one ping
reaches() {
    ip netns exec "$id-$1" ping -q -c 1 -W 1 "$(cat "$work/$2")" > /dev/null
}

needs ip ping nft etcd etcdctl
case $backend in vxlan | host-gw) ;; *) fail "expected vxlan or host-gw, got $backend" ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/fastcni-agent.XXXXXX")
mkdir "$work/policies"

say "1. Start etcd, and write the network's configuration there"
"$fastcni" install --bin-dir "$work/bin" > /dev/null
ip netns add "$id-lan"
ip -n "$id-lan" link set lo up
ip -n "$id-lan" link add lan type bridge
ip -n "$id-lan" link set lan up
ip -n "$id-lan" addr add 10.98.0.1/24 dev lan
ip netns exec "$id-lan" etcd --data-dir "$work/etcd" --listen-client-urls $etcd_url --advertise-client-urls $etcd_url \
    --listen-peer-urls http://127.0.0.1:2380 > "$work/etcd.log" 2>&1 &
processes="$processes $!"
wait_for "etcd answers; its log is $work/etcd.log" 30 grep -q "ready to serve client requests" "$work/etcd.log"
conf="{\"Network\": \"10.244.0.0/16\", \"Backend\": {\"Type\": \"$backend\"}}"
ip netns exec "$id-lan" env ETCDCTL_API=3 etcdctl --endpoints $etcd_url put /coreos.com/network/config "$conf" > /dev/null
echo "/coreos.com/network/config: $conf"

say "2. Start the agent on three nodes"
start_node node-a 11
start_node node-b 12
agent_b=$agent
start_node node-c 13

say "3. Make a pod on each node"
add_pod node-a pod-a
add_pod node-b pod-b
add_pod node-c pod-c

say "4. Ping each pod from each pod on another node"
for from in pod-a pod-b pod-c; do
    for to in pod-a pod-b pod-c; do
        [ $from = $to ] || wait_for "$from reaches $to" 10 reaches $from $to
    done
done
echo "All 6 pings were answered. The routes of node-a to the other nodes:"
ip -n "$id-node-a" route | grep '^10\.244\.' | grep -v cni0

say "5. fastcni selftest on node-a: a pod of its own sends packets to node-b and to its pods' addresses"
ip netns exec "$id-node-a" "$fastcni" selftest demo --peer 10.98.0.12 --agent-folder "$work/node-a/state" --socket "" \
    --conf-dir "$work/node-a" --bin-dir "$work/bin" --cache-dir "$work/node-a/cache"

say "6. A network policy cuts pod-c off, and is lifted"
cat > "$work/new" << POLICY
{"kind": "NetworkPolicy", "metadata": {"name": "cut-off"}, "spec": {"podSelector": {"matchLabels": {"app": "pod-c"}}}}
POLICY
mv "$work/new" "$work/policies/cut-off.json"
wait_for "the policy cuts pod-c off" 10 sh -c "! ip netns exec $id-pod-a ping -q -c 1 -W 1 $(cat "$work/pod-c")"
reaches pod-a pod-b || fail "pod-a does not reach pod-b"
echo "pod-a reaches pod-b, and not pod-c. Where nftables on node-c looks before a packet goes to a pod:"
ip netns exec "$id-node-c" nft list map inet fastcni-policy in4 | grep elements
rm "$work/policies/cut-off.json"
wait_for "pod-a reaches pod-c again" 10 reaches pod-a pod-c
echo "Without the policy, pod-a reaches pod-c again."

say "7. Another program deletes node-a's routes"
for route in $(ip -n "$id-node-a" route | grep '^10\.244\.' | grep -v cni0 | cut -d' ' -f1); do
    ip -n "$id-node-a" route del "$route"
done
wait_for "pod-a reaches pod-b again" 10 reaches pod-a pod-b
grep -o 'event=network_repaired.*' "$work/node-a/log" | head -n 1

say "8. Kill node-b's agent: its pod is reached all the same"
kill -9 "$agent_b"
wait "$agent_b" 2> /dev/null || true
reaches pod-a pod-b || fail "pod-a does not reach pod-b"
echo "pod-a reaches pod-b."

say "9. node-b dies, and comes back as a new machine with the same address"
ip netns del "$id-pod-b"
ip netns del "$id-node-b"
before=$(sed -n 's/FLANNEL_SUBNET=//p' "$work/node-b/subnet.env")
rm -r "$work/node-b"
wait_for "the link of the dead node is gone" 10 sh -c "! ip -n $id-lan link show to-node-b"
start_node node-b 12
[ "$before" = "$(sed -n 's/FLANNEL_SUBNET=//p' "$work/node-b/subnet.env")" ] || fail "node-b has another subnet"
add_pod node-b pod-b
wait_for "pod-a reaches pod-b again" 10 reaches pod-a pod-b
wait_for "pod-b reaches pod-c" 10 reaches pod-b pod-c
echo "It has its subnet again, and the other nodes reach it."

say "10. Delete the pods"
for name in a b c; do call del node-$name pod-$name > "$work/result"; done
left=$(find "$work"/node-?/addresses -name '10.244.*' | wc -l)
[ "$left" = 0 ] || fail "$left addresses are still held"
echo "Nothing is held any more: the demo worked."
