"""`fastcni why` reports the rule that drops a packet, and the rule's owner. Its `do` lets the packet pass."""

import pytest
from unit.why.conftest import Case, cases, check

pytestmark = pytest.mark.needs("root")
POD = "pod-a {ip_b}:{port_b}"
OUT = "pod-a 192.0.2.2:{port_x}"
TO_NODE = "pod-a 192.0.2.1:{port_h}"
FROM_NODE = "192.0.2.1 pod-b:{port_b}"


def nft(family, hook, rule="", policy="accept", more="", pod=""):
    """Return commands that add a table "mine" with one chain at this hook, and with one rule."""
    chain = f"nft 'add table {family} mine; add chain {family} mine c {{ type filter hook {hook} {more} priority 0; " \
            f"policy {policy}; }}'"
    return [pod + chain, *([f"{pod}nft add rule {family} mine c {rule}"] if rule else [])]


def gone(family, pod=""):
    return [f"{pod}nft delete table {family} mine"]


def flushed(program):
    return [f"{program} -F FORWARD", f"{program} -P FORWARD ACCEPT", f"{program} -F INPUT", f"{program} -t nat -F",
            f"{program} -t raw -F"]


@cases(
    Case("the pod's own firewall drops", OUT, nft("inet", "output", "tcp dport {port_x} drop", pod="A: "),
         "pod firewall", "tcp dport {port_x} drop", "hand-written", "chain c", undo=gone("inet", "A: ")),
    Case("a netdev chain drops", OUT, nft("netdev", "ingress", "drop", more="device {va}"), "netdev chains",
         "netdev mine", undo=gone("netdev")),
    Case("a bridge chain drops", POD, nft("bridge", "forward", "ip daddr {ip_b} drop"), "bridge chains", "bridge mine",
         undo=gone("bridge")),
    Case("prerouting drops", OUT, nft("ip", "prerouting", "ip daddr 192.0.2.2 drop"), "prerouting chains",
         undo=gone("ip")),
    Case("a rule of forward drops", OUT, nft("inet", "forward", 'ip saddr {ip_a} drop comment \\"no web\\"'),
         "forward chains", "ip saddr {ip_a} drop", 'comment "no web"', "table inet mine, chain c", undo=gone("inet")),
    Case("a rule of forward rejects", OUT, nft("inet", "forward", "ip saddr {ip_a} reject with tcp reset"),
         "forward chains", "reject with tcp reset", undo=gone("inet")),
    Case("fastcni's own rule drops", OUT, [
        "nft 'add chain inet fastcni own { type filter hook forward priority 0; }'",
        "nft add rule inet fastcni own ip saddr {ip_a} drop"], "forward chains", "fastcni explain own", mends=False,
        undo=["nft 'flush chain inet fastcni own; delete chain inet fastcni own'"]),
    Case("no node holds the pod's egress address", OUT, [
        "nft add table inet fastcni-egress",
        "nft 'add chain inet fastcni-egress check { type filter hook postrouting priority 0; }'",
        "nft add rule inet fastcni-egress check ip saddr {ip_a} drop"], "postrouting chains",
        "fastcni explain {ip_a}", mends=False, undo=["nft delete table inet fastcni-egress"]),
    Case("the policy of forward drops", OUT, nft("inet", "forward", policy="drop"), "forward chains", "policy drop",
         undo=gone("inet")),
    Case("the policy of forward drops IPv6", "pod-a [fd00:2::2]:{port_x}", nft("inet", "forward", policy="drop"),
         "forward chains", undo=gone("inet")),
    Case("a chain that is jumped to drops", OUT, ["nft 'add table inet mine; add chain inet mine deep; add rule inet "
         "mine deep tcp dport {port_x} drop'", *nft("inet", "forward", "jump deep")], "forward chains", "chain deep",
         undo=gone("inet")),
    Case("the answer is dropped", OUT, nft("inet", "forward", "ip saddr 192.0.2.2 drop"), "forward chains",
         "the answer", "ip saddr 192.0.2.2 drop", undo=gone("inet")),
    Case("input drops", TO_NODE, nft("inet", "input", "tcp dport {port_h} drop"), "input chains", "port", "drop",
         undo=gone("inet")),
    Case("the policy of input drops", TO_NODE, nft("inet", "input", policy="drop"), "input chains", undo=gone("inet")),
    Case("output drops", FROM_NODE, nft("inet", "output", "ip daddr {ip_b} drop"), "output chains", undo=gone("inet")),
    Case("postrouting drops", OUT, nft("ip", "postrouting", "ip daddr 192.0.2.2 drop"), "postrouting chains",
         undo=gone("ip")),
    Case("the target's own firewall drops", POD, nft("inet", "input", "tcp dport {port_b} drop", pod="B: "),
         "target firewall", undo=gone("inet", "B: ")),
    Case("the target's answer is dropped in the pod", POD, nft("inet", "output", "tcp sport {port_b} drop", pod="B: "),
         "target firewall", "the answer", undo=gone("inet", "B: ")),
    Case("a rule of iptables-nft drops", OUT,
         ["iptables-nft -A FORWARD -s {ip_a} -m comment --comment 'no web' -j DROP"],
         "forward chains", "-A FORWARD -s {ip_a}/32", 'comment "no web"', "iptables-nft, table filter, chain FORWARD",
         undo=flushed("iptables-nft")),
    Case("the policy of iptables-nft drops", OUT, ["iptables-nft -P FORWARD DROP"], "forward chains",
         "-P FORWARD DROP", undo=flushed("iptables-nft")),
    Case("iptables-nft drops IPv6", "pod-a [fd00:2::2]:{port_x}", ["ip6tables-nft -A FORWARD -s {ip6_a} -j DROP"],
         "forward chains", "ip6tables-nft", undo=flushed("ip6tables-nft")),
    Case("a rule of legacy iptables drops", OUT,
         ["iptables-legacy -A FORWARD -s {ip_a} -m comment --comment 'old rule' -j DROP"], "forward chains",
         'comment "old rule"', "iptables-legacy, table filter, chain FORWARD", undo=flushed("iptables-legacy")),
    Case("a rule of legacy iptables rejects", OUT, ["iptables-legacy -A FORWARD -d 192.0.2.2 -j REJECT"],
         "forward chains", "-A FORWARD -d 192.0.2.2/32", undo=flushed("iptables-legacy")),
    Case("the policy of legacy iptables drops", OUT, ["iptables-legacy -P FORWARD DROP"], "forward chains",
         "-P FORWARD DROP", undo=flushed("iptables-legacy")),
    Case("the table raw of legacy iptables drops", OUT, ["iptables-legacy -t raw -A PREROUTING -s {ip_a} -j DROP"],
         "prerouting chains", "table raw", undo=flushed("iptables-legacy")),
    Case("legacy iptables drops the answer", OUT, ["iptables-legacy -A FORWARD -s 192.0.2.2 -j DROP"], "forward chains",
         "the answer", undo=flushed("iptables-legacy")),
    Case("legacy iptables drops what comes in", TO_NODE, ["iptables-legacy -A INPUT -p tcp --dport {port_h} -j DROP"],
         "input chains", undo=flushed("iptables-legacy")),
    Case("a chain of ufw drops", OUT, ["iptables-nft -N ufw-user-forward",
         "iptables-nft -A FORWARD -j ufw-user-forward",
         "iptables-nft -A ufw-user-forward -s {ip_a} -j DROP"], "forward chains", "ufw (iptables-nft",
         "ufw route allow from {ip_a}", mends=False, undo=[*flushed("iptables-nft"), "iptables-nft -F ufw-user-forward",
                                                          "iptables-nft -X ufw-user-forward"]),
    Case("Docker's policy drops", OUT, ["iptables-nft -N DOCKER-USER", "iptables-nft -N DOCKER",
         "iptables-nft -A FORWARD -j DOCKER-USER", "iptables-nft -P FORWARD DROP"], "forward chains",
         "docker (iptables-nft", undo=[*flushed("iptables-nft"), "iptables-nft -F DOCKER-USER",
                                       "iptables-nft -X DOCKER-USER", "iptables-nft -X DOCKER"]),
    Case("firewalld's table rejects", OUT, ["nft 'add table inet firewalld; add chain inet firewalld filter_FORWARD "
         "{ type filter hook forward priority 10; }; add rule inet firewalld filter_FORWARD reject'"], "forward chains",
         "firewalld (table inet firewalld, chain filter_FORWARD", "firewall-cmd", mends=False,
         undo=["nft delete table inet firewalld"]),
    Case("a packet from outside is dropped", "192.0.2.2 pod-b:{port_b}", nft("inet", "forward",
         'iifname "up0" ip daddr {ip_b} drop'), "forward chains", 'iifname "up0"', undo=gone("inet")),
    Case("a packet from outside to a host port is dropped", "192.0.2.2 192.0.2.1:8080", nft("inet", "forward",
         "tcp dport {port_b} drop"), "forward chains", "{port_b}", undo=gone("inet")),
    Case("UDP is dropped", "--udp pod-a {ip_c}:{port_c}", nft("inet", "forward", "udp dport {port_c} drop"),
         "forward chains", "udp dport {port_c} drop", undo=gone("inet")),
)
def test_a_rule_that_drops_is_named_and_mended(case, why, world, broken):
    check(case, why, world, broken)
