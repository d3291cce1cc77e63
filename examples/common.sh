# shellcheck shell=sh
# What the demos share: headings, the check of their programs, waits. Read it with `.`, after fastcni=COMMAND.
# shellcheck disable=SC2154

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# package_of PROGRAM: the Debian package that has it
package_of() {
    case $1 in
        ip) echo iproute2 ;;
        nft) echo nftables ;;
        ping) echo iputils-ping ;;
        etcd) echo etcd-server ;;
        etcdctl) echo etcd-client ;;
        awk) echo mawk ;;
    esac
}

# needs PROGRAM...: end unless this is root, and the command fastcni and all programs exist
needs() {
    [ "$(id -u)" = 0 ] || fail "the demo makes network namespaces: run it as root"
    command -v "$fastcni" > /dev/null || fail "there is no command $fastcni: install fastcni, or set FASTCNI to its path"
    packages=
    for program in "$@"; do
        command -v "$program" > /dev/null || packages="$packages $(package_of "$program")"
    done
    [ -z "$packages" ] || fail "programs are missing; on Debian or Ubuntu: apt-get install$packages"
}

# wait_for TEXT SECONDS COMMAND...: repeat the command until it succeeds. TEXT completes "waiting until ..."
wait_for() {
    what=$1 tries=$(($2 * 10)) said=''
    limit=$2
    shift 2
    until "$@" > /dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "waited $limit s in vain until $what"
        if [ -z "$said" ] && [ $tries -lt $((limit * 10 - 10)) ]; then
            said=1
            echo "waiting until $what"
        fi
        sleep 0.1
    done
}
