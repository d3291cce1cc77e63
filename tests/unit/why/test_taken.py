"""`fastcni why` with packets that a queue of netfilter takes, or a filter of tc."""

import pytest
from unit.why.conftest import Case, cases, check

pytestmark = pytest.mark.needs("root")
OUT = "pod-a 192.0.2.2:{port_x}"
UNREAD = "queue 7", "no process reads this queue", "NFQUEUE"


@cases(
    Case("a queue of iptables-nft", OUT,
         ["iptables-nft -A FORWARD -d 192.0.2.2 -m comment --comment ids -j NFQUEUE --queue-num 7"], "forward chains",
         *UNREAD, 'comment "ids"', undo=["iptables-nft -F FORWARD"]),
    Case("a queue of legacy iptables", OUT, ["iptables-legacy -A FORWARD -d 192.0.2.2 -j NFQUEUE --queue-num 7"],
         "forward chains", *UNREAD, undo=["iptables-legacy -F FORWARD"]),
    Case("a queue that takes the answer", OUT, ["iptables-nft -A FORWARD -s 192.0.2.2 -j NFQUEUE --queue-num 7"],
         "forward chains", "the answer", *UNREAD, undo=["iptables-nft -F FORWARD"]),
    Case("a queue in the pod", OUT, ["A: iptables-nft -A OUTPUT -p tcp -j NFQUEUE --queue-num 7"], "pod firewall",
         *UNREAD, undo=["A: iptables-nft -F OUTPUT"]),
)
def test_a_queue_that_nobody_reads_is_named_and_mended(case, why, world, broken):
    """Once, the command reported "lost in the node's chains, and nothing that this command knows drops it"."""
    check(case, why, world, broken)


DROP = "protocol ip bpf direct-action bytecode '1,6 0 0 2'"         # this program returns TC_ACT_SHOT


@cases(
    Case("at the host's end", OUT, ["tc qdisc add dev {va} clsact", f"tc filter add dev {{va}} ingress {DROP}"],
         "tc", "{va}", "tc filter show dev {va} ingress", mends=False, undo=["tc qdisc del dev {va} clsact"]),
    Case("in the pod", OUT, ["A: tc qdisc add dev eth0 clsact", f"A: tc filter add dev eth0 egress {DROP}"],
         "tc", "eth0", "tc filter show dev eth0 egress", mends=False, undo=["A: tc qdisc del dev eth0 clsact"]),
)
def test_a_filter_of_tc_is_named(case, why, world, broken):
    check(case, why, world, broken)
