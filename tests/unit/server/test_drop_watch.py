"""With the real kernel, the server logs once when a rule begins to drop packets of pods."""

import time
from math import inf

import pytest
from lab.node import cid_of, run
from lab.portmap_chain import DUAL
from unit.server.flushed import nft
from unit.server.foreign_firewalls import PROGRAMS
from unit.server.foreign_firewalls import needs as needs_programs
from unit.server.test_replaying import remember

from fastcni.node.attachments.inventory import Places
from fastcni.node.checks import doctor, kernel
from fastcni.server.restoring.drop_watch import PAUSE_S, SETTLE_S
from fastcni.testing.witnesses import eventually

ADMIN = """table inet admin {
    chain forward { type filter hook forward priority filter; policy accept; }
}"""
NFT_DROP = "nft add rule inet admin forward ip saddr 10.22.0.0/16 drop"


@pytest.fixture
def watched(node, pod, tmp_path, make_watch):
    """Return a function watched(seconds) that calls the watch with a clock so much later. It returns the watch's log
    lines. The namespace has one pod."""
    first = node.conf(*DUAL, isDefaultGateway=True, ipMasq=True)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "prevResult": node.ok("ADD", first, pod)}
    node.ok("ADD", conf, pod)
    remember(tmp_path, Network(first), pod, conf)
    places = Places(str(tmp_path / "none"), (str(tmp_path / "cache"),), enter_pods=False)
    watch = make_watch(drops=lambda: kernel.pods_dropped(doctor.node_of(places, (), "")))
    run("nft", "-f", "-", stdin=ADMIN)

    def at(seconds):
        del watch.log.lines[:]
        watch.attend(time.monotonic() + seconds)
        assert eventually(lambda: not watch.drops.running)
        return [values for event, values in watch.log.lines if event in ("pods_dropped", "server_fault")]

    assert at(0.0) == []
    return at


class Network:
    """The attribute of a Chain that remember() needs."""

    def __init__(self, first):
        self.first = first


@pytest.mark.parametrize("how, name", [
    pytest.param(NFT_DROP, "of nftables inet admin drops", id="nft-drop"),
    pytest.param("nft add rule inet admin forward iifname br0 reject", "of nftables inet admin drops", id="nft-reject"),
    pytest.param("nft chain inet admin forward { policy drop; }", "chain forward of nftables inet admin drops",
                 id="nft-policy"),
    *(pytest.param(f"{program} -A FORWARD {rule}", f"of iptables-{kind} drops", marks=needs_programs(program),
                   id=f"iptables-{kind}-{rule.split()[-1].lower()}")
      for kind, (program, _) in PROGRAMS.items() for rule in ("-s 10.22.0.0/16 -j DROP", "-i br0 -j REJECT"))])
def test_what_begins_to_drop_a_pods_packets_is_logged_once_with_the_pod_and_the_command(watched, pod, how, name):
    """Once, only `fastcni list` and `fastcni doctor` reported such a rule. The pod was cut off, and the server's log
    had no line."""
    run(*how.split())
    assert watched(1.5) == []  # the watch waits, because a replay may let the pod's packets pass again
    line, = watched(2 * SETTLE_S + 1.5)
    assert name in line["what"] and cid_of(pod)[:12] in line["what"] and line["do"]
    nft("add rule inet admin forward tcp dport 25 drop")    # this rule drops no packet of a pod
    assert watched(PAUSE_S + 2 * SETTLE_S) == watched(3 * PAUSE_S) == []


def test_a_rule_that_comes_again_is_logged_again_and_the_firewall_is_read_once_a_minute_at_most(watched):
    run(*NFT_DROP.split())
    assert len(watched(SETTLE_S + 1)) == 1
    nft("flush chain inet admin forward")
    nft("add rule inet admin forward tcp dport 25 drop")
    assert watched(PAUSE_S - 1) == watched(PAUSE_S + 2 * SETTLE_S) == []
    run(*NFT_DROP.split())
    assert watched(2 * PAUSE_S - 1) == []
    assert len(watched(3 * PAUSE_S)) == 1


def test_rules_that_accept_and_fastcnis_own_tables_cause_no_reading(watched, make_watch):
    watch = make_watch(drops=lambda: pytest.fail("read"))
    watch.attend(time.monotonic())
    nft("add rule inet admin forward ip saddr 10.22.0.2 accept")
    nft("add table inet fastcni-policy")
    nft("add chain inet fastcni-policy forward { type filter hook forward priority 0; policy drop; }")
    watch.attend(time.monotonic())
    assert watch.drops.due == inf
    run(*NFT_DROP.split())
    watch.attend(time.monotonic())
    assert watch.drops.due < inf


def test_a_server_logs_a_rule_that_drops_a_pod(start, node, pod, tmp_path):
    """The server here uses the function that `fastcni serve` gives to the watch. The test takes SETTLE_S seconds."""
    server = start("--cache-dir", tmp_path / "cache")
    first = node.conf(*DUAL, isDefaultGateway=True, ipMasq=True)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "prevResult": server.ok("ADD", first, pod)}
    server.ok("ADD", conf, pod)
    remember(tmp_path, Network(first), pod, conf)
    run("nft", "-f", "-", stdin=ADMIN)
    run(*NFT_DROP.split())
    assert eventually(lambda: server.lines("event=pods_dropped", "level=warning", "nft -a list chain")), (
        server.log_text())
