#!/bin/sh
# Run the tests of the store, of cluster IPAM, the agent, policies and the image's script (root) with a real API server:
# Kubernetes 1.20 of Debian 12's source package, and etcd. A kubelet of the same source runs a pod by containerd.
# No lane runs this script: the first build takes fifteen minutes of two processors, and 3 GB in DIRECTORY.
#   real-api-server.sh DIRECTORY [argument of pytest]...
# apt-get install golang-1.19-go etcd-server openssl containerd runc busybox-static
set -eu
tests=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
directory=$(cd "$1" && pwd)
shift
go=/usr/lib/go-1.19/bin/go
export GOPATH="$directory/gopath" GOCACHE="$directory/gocache" GO111MODULE=off CGO_ENABLED=0
source=$GOPATH/src/k8s.io/kubernetes
k8s=k8s.io/kubernetes

fetch() {
    mkdir -p "$directory/apt/lists/partial" "$directory/apt/cache/archives/partial" "$source"
    echo "deb-src http://deb.debian.org/debian bookworm main" > "$directory/apt/sources"
    printf '%s\n' "Dir::Etc::sourcelist \"$directory/apt/sources\";" 'Dir::Etc::sourceparts "-";' \
        "Dir::State::lists \"$directory/apt/lists\";" "Dir::Cache \"$directory/apt/cache\";" \
        'APT::Sandbox::User "root";' > "$directory/apt/conf"
    (cd "$directory/apt" && APT_CONFIG=$directory/apt/conf apt-get -qq update &&
        APT_CONFIG=$directory/apt/conf apt-get -qq source --download-only kubernetes)
    tar -xzf "$directory"/apt/kubernetes_*.orig.tar.gz -C "$source" --strip-components=1
    # Kubernetes' JSON library uses Go's map iterator of before 1.18: change it to that of Go 1.19.
    cd "$source/vendor/github.com/modern-go/reflect2"
    sed -i -e 's/^func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) \*hiter/func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)/' \
        -e 's/^\t\/\/ rest fields are ignored/\tt, h, buckets, bptr, overflow, oldoverflow unsafe.Pointer\n\tstartBucket uintptr\n\toffset uint8\n\twrapped bool\n\tb, i uint8\n\tbucket, checkBucket uintptr/' \
        unsafe_link.go
    sed -i -e 's/^\treturn &UnsafeMapIterator{/\tvar it hiter\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), \&it)\n&/' \
        -e 's/mapiterinit(type2.rtype, \*(\*unsafe.Pointer)(obj)),/\&it,/' unsafe_map.go
}

build() {
    cd "$source"
    $go build -o "$directory/openapi-gen" $k8s/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -Rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io/ |
        grep -v -e vendor/k8s.io/code-generator/ -e vendor/k8s.io/sample-apiserver/ |
        xargs -n1 dirname | sort -u | sed "s|^|$k8s/|" | paste -sd,)
    "$directory/openapi-gen" --logtostderr -h /dev/null -O zz_generated.openapi -p $k8s/pkg/generated/openapi \
        -r "$directory/violations" -i "$inputs" --output-base "$GOPATH/src"
    $go build -o "$directory/kube-apiserver.new" $k8s/cmd/kube-apiserver
    mv "$directory/kube-apiserver.new" "$directory/kube-apiserver"
}

if [ ! -x "$directory/kube-apiserver" ]; then
    [ -e "$source/vendor" ] || fetch
    build
fi
[ -x "$directory/kubelet" ] || (cd "$source" && $go build -o "$directory/kubelet" $k8s/cmd/kubelet)

run=$(mktemp -d "$directory/run.XXXXXX")
cd "$run"
children=
trap 'kill $children 2> /dev/null; wait; rm -rf "$run"' EXIT
trap 'exit 1' INT TERM
openssl genrsa -out key.pem 2048 2> /dev/null
echo 'token,admin,1,"system:masters"' > tokens.csv
etcd --data-dir etcd --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
    --listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 \
    --initial-cluster default=http://127.0.0.1:23800 > etcd.log 2>&1 &
children=$!
"$directory/kube-apiserver" --etcd-servers http://127.0.0.1:23790 --bind-address 127.0.0.1 --secure-port 26443 \
    --cert-dir certs --service-account-key-file key.pem --service-account-signing-key-file key.pem \
    --service-account-issuer https://issuer --token-auth-file tokens.csv --authorization-mode RBAC \
    --service-cluster-ip-range 10.255.0.0/24 --endpoint-reconciler-type none > api.log 2>&1 &
children="$children $!"
cat > kubeconfig <<EOF
{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:26443", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "u", "user": {"token": "token"}}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
EOF
root=$(cd "$tests/../../.." && pwd)
cd "$root"
PYTHONPATH=tests .venv/bin/python -m cluster.kubernetes.apply_crds "$run/kubeconfig" || { tail "$run/api.log"; exit 1; }
FASTCNI_TEST_KUBECONFIG=$run/kubeconfig FASTCNI_TEST_KUBE_APISERVER=$directory/kube-apiserver \
    FASTCNI_TEST_KUBELET=$directory/kubelet \
    .venv/bin/python -m pytest tests/cluster/kubernetes/test_store_kubernetes.py \
    tests/cluster/kubernetes/test_interleavings.py tests/cluster/kubernetes/test_real_cluster.py \
    tests/runtimes/test_kubelet.py "$@"
