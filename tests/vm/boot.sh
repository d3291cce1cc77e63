#!/bin/sh
# Run pytest in a virtual machine with the kernel of .vm and this machine's files. Its changes to files are lost.
#   boot.sh [PYTEST ARGUMENT...]    by default the complete VM lane, counted together with the other lanes' .lanes
# VM_LIMIT: the time limit in seconds. The exit status is pytest's, or 1 if pytest did not end.
set -eu
cd "$(dirname "$0")/../.."
limit=${VM_LIMIT:-3600}
lane=
if [ $# = 0 ]; then
    lane="vm $(.venv/bin/python tests/features.py)"
    chosen=$(.venv/bin/python tests/vm/chosen.py .lanes/host.json)
    # shellcheck disable=SC2086
    set -- ${chosen:-tests benchmarks} ${RERUNS:-} -n 2 --dist worksteal --durations=10
fi

mkdir -p .lanes
exec 9> .lanes/lock
flock --nonblock 9 || { echo "waiting for another make test-vm to end" && flock 9; }
rm -rf .lanes/vm.*
mkdir .lanes/vm.tmp
: > .lanes/vm.output
printf '%s\n' "$@" > .lanes/vm.args
tar -cf .lanes/vm.tree [!.]* || [ $? = 1 ]      # a copy, because files may change later; 1: a file changed during tar

share() {
    echo "-q=-fsdev -qlocal,id=$1,path=$2,security_model=none,multidevs=remap,readonly=$3" \
        "-q=-device -qvirtio-9p-pci,fsdev=$1,mount_tag=$1"
}
accelerate() {
    # Without these flags this machine is virtual itself, and Debian's kernel may hang with its /dev/kvm.
    [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo || echo --disable-kvm
}

# An emulated processor needs no mitigations. Each namespace that ends waits for RCU many times.
quicker="--kopt mitigations=off --kopt init_on_alloc=0 --kopt no5lvl --kopt rcupdate.rcu_expedited=1"

mkfifo .lanes/vm.pipe               # QEMU opens its stdout again by name, which would truncate a file
cat < .lanes/vm.pipe > .lanes/vm.console 9>&- &
# shellcheck disable=SC2046,SC2086
TMPDIR=$PWD/.lanes/vm.tmp timeout -k 10 "$limit" .vm/venv/bin/virtme-run \
    --kimg .vm/kernel/boot/vmlinuz-* --mods auto --memory 3G --cpus 2 --force-9p --disable-microvm $(accelerate) \
    $(share files / on) $(share lanes "$PWD/.lanes" off) --no-virtme-ng-init --show-boot-console \
    --kopt oops=panic --kopt loglevel=5 $quicker --script-sh "sh '$PWD/tests/vm/inside.sh' $lane" \
    < /dev/null > .lanes/vm.pipe 2>&1 9>&- &
vm=$!
trap 'kill $vm 2> /dev/null' EXIT
trap 'exit 130' INT TERM HUP
tail -n +1 -f --pid=$vm .lanes/vm.output 9>&- &
ended=0
wait $vm || ended=$?
wait
trap - EXIT

status=1
if [ -f .lanes/vm.status ]; then
    status=$(cat .lanes/vm.status)
else
    case $ended in
        124 | 137) echo && echo "the tests in the VM did not end within $limit s" ;;
        *) echo && echo "the VM ended before its tests did (status $ended)" ;;
    esac
fi
if [ "$status" != 0 ]; then
    echo "console of the VM, .lanes/vm.console:"
    if grep -q 'the tests begin' .lanes/vm.console; then first='/the tests begin/'; else first=1; fi
    sed -n "$first,\$p" .lanes/vm.console
fi
[ -z "$lane" ] || .venv/bin/python tests/vm/count.py .lanes/host.json .lanes/toolchains.json .lanes/vm.json || status=1
exit "$status"
