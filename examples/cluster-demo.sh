#!/bin/sh
# Cluster-wide addresses on a real etcd: two nodes with 50 pods each, a node that dies, and its addresses' way back.
#   cluster-demo.sh [PODS]      pods on each node, 1 to 50
# A node is a network namespace with its own server. Another namespace has the bridge between the nodes, and etcd.
set -eu

pods=${1:-50}
fastcni=${FASTCNI:-fastcni}
etcd_url=http://10.98.0.1:2379
id=fcc$$ processes='' work=''

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

# start_node NAME NUMBER: a bridge for pods with an uplink to the other nodes, a configuration, and a server
start_node() {
    ip netns add "$id-$1"
    ip -n "$id-$1" link set lo up
    ip -n "$id-$1" link add cni0 type bridge
    ip -n "$id-lan" link add "to-$1" type veth peer name uplink netns "$id-$1"
    ip -n "$id-lan" link set "to-$1" master lan up
    ip -n "$id-$1" link set uplink master cni0 up
    ip -n "$id-$1" link set cni0 up
    ip -n "$id-$1" addr add "10.98.0.$2/24" dev cni0
    mkdir "$work/$1"
    cat > "$work/$1/demo.conf" << CONF
{"cniVersion": "1.0.0", "name": "demo", "type": "bridge", "bridge": "cni0",
 "ipam": {"type": "cluster", "range": "10.99.0.0/22", "block_size": 26,
          "node_name": "$1", "dataDir": "$work/$1/addresses",
          "store": {"type": "etcd", "endpoints": ["$etcd_url"], "node_ttl": 3, "dead_after": 2}}}
CONF
    ip netns exec "$id-$1" "$fastcni" serve --socket "$work/$1/socket" --cache-dir "$work/$1" --log-level warning \
        2> "$work/$1/log" &
    server=$!
    processes="$processes $server"
    wait_for "the server of $1 listens; its log is $work/$1/log" 30 test -S "$work/$1/socket"
}

# call COMMAND NODE POD [ADDRESS]: call the plugin as a runtime does, and ask for an address
call() {
    wanted=${4:+;IP=$4}
    ip netns exec "$id-$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$3" CNI_NETNS="/run/netns/$id-$3" CNI_IFNAME=eth0 \
        CNI_PATH="$work/bin" CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME=$3$wanted" \
        FASTCNI_SOCKET="$work/$2/socket" "$work/bin/bridge" < "$work/$2/demo.conf"
}

# add_pods NODE: make the pods, and note the address of each in the file NODE/pods
add_pods() {
    for number in $(seq "$pods"); do
        ip netns add "$id-$1-$number"
        call ADD "$1" "$1-$number" > "$work/result" || fail "ADD of $1-$number: $(cat "$work/result")"
        echo "$1-$number $(sed -n 's|.*"address": *"\([0-9.]*\)/.*|\1|p' "$work/result")" >> "$work/$1/pods"
    done
    echo "$1 has $pods pods: $(head -n 1 "$work/$1/pods" | cut -d' ' -f2) to $(tail -n 1 "$work/$1/pods" | cut -d' ' -f2)"
}

# show NODE COMMAND WORDS...: print what the command line says on a node
show() {
    node=$1
    shift
    ip netns exec "$id-$node" "$fastcni" "$@" --conf-dir "$work/$node" --cache-dir "$work/$node"
}

# state_is NODE STATE: whether a node has this state, as node-a's command line says
state_is() {
    ip netns exec "$id-node-a" "$fastcni" ipam nodes --json --conf-dir "$work/node-a" | tr -d ' \n' | grep -q "\"name\":\"$1\",\"state\":\"$2\""
}

needs ip ping etcd
case $pods in [1-9] | [1-4][0-9] | 50) ;; *) fail "expected 1 to 50 pods on each node, got $pods" ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/fastcni-cluster.XXXXXX")

say "1. Start etcd, and two nodes that share the range 10.99.0.0/22 in it"
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
start_node node-a 11
start_node node-b 12
server_b=$server
echo "etcd listens on $etcd_url. node-a and node-b run a server each."

say "2. Add $pods pods on each node"
add_pods node-a
add_pods node-b
twice=$(sort "$work"/node-*/pods | cut -d' ' -f2 | sort | uniq -d)
[ -z "$twice" ] || fail "given twice: $twice"
echo "No address was given twice. Each node has claimed a block of 64 addresses, and gives them without asking etcd:"
show node-a ipam list

say "3. Ping each pod of node-b from a pod of node-a"
paste -d' ' "$work/node-a/pods" "$work/node-b/pods" > "$work/pairs"
while read -r from _ _ to; do
    ip netns exec "$id-$from" ping -q -c 1 -W 5 "$to" > /dev/null || fail "$from does not reach $to"
done < "$work/pairs"
echo "All $pods pings were answered."

say "4. Who has an address?"
lost=$(head -n 1 "$work/node-b/pods" | cut -d' ' -f2)
show node-a ipam show "$lost"

say "5. Kill node-b: its server and its pods are gone at once"
kill -9 "$server_b"
for path in /run/netns/"$id"-node-b*; do ip netns del "${path##*/}"; done
echo "node-a's server sees that node-b's heartbeat has stopped. After a time of grace it declares node-b dead."
wait_for "node-b is declared dead" 60 state_is node-b dead
show node-a ipam nodes

say "6. The addresses of node-b are in quarantine: etcd cannot know that its pods have stopped"
start_node node-c 13
ip netns add "$id-node-c-1"
if call ADD node-c node-c-1 "$lost" > "$work/result"; then fail "node-c got $lost: $(cat "$work/result")"; fi
echo "A pod on a new node, node-c, asks for $lost, the address of a pod on node-b. It gets an error:"
sed -n 's/^ *"msg": "\(.*\)",*$/\1/p' "$work/result"

say "7. You know that node-b is off. Forget it, and its addresses are free"
show node-a ipam forget-node node-b --yes
call ADD node-c node-c-1 "$lost" > "$work/result" || fail "node-c did not get $lost: $(cat "$work/result")"
echo "Now the pod on node-c has $lost:"
show node-c ipam show "$lost"

say "8. Delete the pods"
for number in $(seq "$pods"); do call DEL node-a "node-a-$number"; done
call DEL node-c node-c-1
left=$(find "$work"/node-[ac]/addresses -name '10.99.*' | wc -l)
[ "$left" = 0 ] || fail "$left addresses are still held"
echo "Nothing is held any more: the demo worked."
