#!/bin/sh
# pytest in a virtual machine with the kernel of .vm and this machine's files; what it writes there is gone afterwards.
#   boot.sh [PYTEST ARGUMENT...]    by default the whole VM lane, counted with what the other lane wrote to .lanes
# VM_LIMIT is for how many seconds it may run. The status is that of pytest, 1 where pytest did not come to its end.
set -eu
cd "$(dirname "$0")/../.."
limit=${VM_LIMIT:-3600}
lane=
if [ $# = 0 ]; then
    lane="vm $(.venv/bin/python tests/features.py)"
    set -- tests benchmarks --durations=10
fi

mkdir -p .lanes
exec 9> .lanes/lock
flock --nonblock 9 || { echo "waiting for another make test-vm to end" && flock 9; }
rm -rf .lanes/vm.*
mkdir .lanes/vm.tmp
: > .lanes/vm.output
printf '%s\n' "$@" > .lanes/vm.args
tar -cf .lanes/vm.tree [!.]* || [ $? = 1 ]      # a copy: who edits need not wait for the end; 1: edited just now

share() {
    echo "-q=-fsdev -qlocal,id=$1,path=$2,security_model=none,multidevs=remap,readonly=$3" \
        "-q=-device -qvirtio-9p-pci,fsdev=$1,mount_tag=$1"
}
accelerate() {
    # A /dev/kvm without these is that of a machine which is virtual itself, where Debian's kernel may hang.
    [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo || echo --disable-kvm
}

# An emulated processor leaks nothing to guard; and each namespace that ends waits for RCU, many times.
quicker="--kopt mitigations=off --kopt init_on_alloc=0 --kopt no5lvl --kopt rcupdate.rcu_expedited=1"

mkfifo .lanes/vm.pipe               # QEMU opens its standard output by name once more, and would empty a file
cat < .lanes/vm.pipe > .lanes/vm.console 9>&- &
# shellcheck disable=SC2046,SC2086
TMPDIR=$PWD/.lanes/vm.tmp timeout -k 10 "$limit" .vm/venv/bin/virtme-run \
    --kimg .vm/kernel/boot/vmlinuz-* --mods auto --memory 2G --cpus 2 --force-9p --disable-microvm $(accelerate) \
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
        124 | 137) echo && echo "the VM had not come to the end of its tests after $limit s" ;;
        *) echo && echo "the VM ended before its tests did (status $ended)" ;;
    esac
fi
if [ "$status" != 0 ]; then
    echo "its console, .lanes/vm.console:"
    if grep -q 'the tests begin' .lanes/vm.console; then first='/the tests begin/'; else first=1; fi
    sed -n "$first,\$p" .lanes/vm.console
fi
[ -z "$lane" ] || .venv/bin/python tests/vm/count.py .lanes/host.json .lanes/toolchains.json .lanes/vm.json || status=1
exit "$status"
