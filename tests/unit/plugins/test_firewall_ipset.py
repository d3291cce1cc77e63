"""firewall with the backend iptables: pods in an ipset, and kernels without ipset. Both run with iptables-nft and
iptables-legacy."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.node import cid_of, elements, members, run
from unit.plugins.test_portmap_iptables import Counted

from fastcni.handle import restore as restore_one
from fastcni.kernel import ipset, wire, xtables
from fastcni.kit.call.mode import Mode
from fastcni.kit.firewall import iptables, owners
from fastcni.kit.firewall.forward import iptables as forward_iptables
from fastcni.kit.firewall.owners import OwnerRecords
from fastcni.runtime import CNI, InProcess, RuntimeConf, parse_list
from fastcni.runtime.restore import restore
from fastcni.spec.errors import CniError

pytestmark = pytest.mark.skipif(not (shutil.which("iptables-save") and shutil.which("ipset")),
                                reason="needs iptables and ipset: pods are in their sets")
ADDRESSES = ["10.22.0.{}/16", "fd00:22::{}/64"]
SETS = "fastcni-forward4", "fastcni-forward6"


def of_pod(number, **keys):
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "iptables", **keys, "prevResult": {
        "cniVersion": "1.1.0", "ips": [{"address": text.format(number)} for text in ADDRESSES]}}


def forward(program="iptables"):
    return [line for line in run(program, "-S", "CNI-FORWARD").splitlines() if line.startswith("-A")]


def set_rules(family):
    look = f"-A CNI-FORWARD -m set --match-set {SETS[family]}"
    return [f"{look} dst -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", f"{look} src -j ACCEPT"]


def rules_of(*numbers):
    return [rule for n in numbers for rule in (
        f"-A CNI-FORWARD -d 10.22.0.{n}/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        f"-A CNI-FORWARD -s 10.22.0.{n}/32 -j ACCEPT")]


@pytest.fixture
def counted(node, tmp_path):
    return Counted(tmp_path)


@pytest.fixture
def legacy(counted):
    """Make `iptables` in PATH run iptables-legacy, and add a rule that filters. Count its runs."""
    for program in ("iptables", "ip6tables"):
        run(f"{program}-legacy", "-P", "FORWARD", "DROP")
        for kind in ("save", "restore"):
            path = counted.log.parent / f"{program}-{kind}"
            path.write_text(path.read_text().replace(shutil.which(path.name), shutil.which(f"{program}-legacy-{kind}")))
    return counted


@pytest.fixture
def without_ipset(monkeypatch):
    """Hide the kernel's match `set` from fastcni. Return a function that ends this."""
    monkeypatch.setattr(ipset, "NFNL_MSG_COMPAT_GET", 99 << 8)
    return monkeypatch.undo


def test_programs_run_for_the_first_pod_alone_and_rules_do_not_grow(node, counted):
    node.ok("ADD", of_pod(2), "pod", cid="c2", env=counted.env)
    assert sorted(counted.runs()) == ["ip6tables-restore", "ip6tables-save", "iptables-restore", "iptables-save"]
    rules = forward()
    assert rules[1:] == set_rules(0)
    assert forward("ip6tables")[1:] == set_rules(1)
    for number in range(3, 9):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}", env=counted.env)
    node.ok("CHECK", of_pod(5), "pod", cid="c5", env=counted.env)
    assert forward() == rules
    assert members(SETS[0]) == [f"10.22.0.{n}" for n in range(2, 9)]
    for number in range(2, 9):
        node.ok("DEL", of_pod(number), "pod", cid=f"c{number}", env=counted.env)
    assert counted.runs() == []
    assert forward() == rules
    assert members(SETS[0]) == members(SETS[1]) == elements("iptables-forward4") == []


def test_first_pods_at_once_install_the_rules_once(node):
    """After an upgrade from the reference plugins, the chain exists without the new rules. Once, each concurrent ADD
    added the rules."""
    run("iptables", "-N", "CNI-FORWARD")
    run("ip6tables", "-N", "CNI-FORWARD")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: node.ok("ADD", of_pod(n), "pod", cid=f"c{n}"), range(2, 8)))
    assert forward()[1:] == set_rules(0)
    assert forward("ip6tables")[1:] == set_rules(1)
    assert len(members(SETS[0])) == len(members(SETS[1])) == 6


@pytest.mark.parametrize("flush", ["iptables -F", "iptables -F CNI-FORWARD", "iptables -F FORWARD",
                                   "nft delete table ip filter", "nft flush ruleset"])
def test_an_add_after_a_flush_installs_the_rules_anew(node, warm, flush):
    """A server reads the rules from the kernel once. After that, the kernel notifies the server of each change."""
    for number in (2, 3):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}", mode=warm)
    before = forward()
    run(*flush.split())
    node.ok("ADD", of_pod(4), "pod", cid="c4", mode=warm)
    assert forward() == before
    assert members(SETS[0]) == ["10.22.0.2", "10.22.0.3", "10.22.0.4"]
    assert "-j CNI-FORWARD" in run("iptables", "-S", "FORWARD")


def test_a_server_that_knows_the_rules_does_not_read_them(node, warm, monkeypatch):
    """ADD sends one message for the owner record and one for the sets. DEL sends three: a request for the owner record,
    the deletion from the sets, and the deletion of the record."""
    for number in (2, 3, 4):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}", mode=warm)
    node.ok("DEL", of_pod(4), "pod", cid="c4", mode=warm)
    sent, send = [], wire.send
    monkeypatch.setattr(wire, "send", lambda sock, data: (sent.append(data), send(sock, data)))
    for command, messages in (("ADD", 2), ("DEL", 3)):
        node.ok(command, of_pod(5), "pod", cid="c5", mode=warm)
        assert len(sent) == messages
        sent.clear()


def test_without_ipset_each_pod_has_the_rules_of_the_reference(node, counted, without_ipset):
    for number in (2, 3):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}", env=counted.env)
    assert forward()[1:] == rules_of(2, 3)
    assert members(SETS[0]) == []
    node.ok("CHECK", of_pod(2), "pod", cid="c2")
    run(*f"iptables {rules_of(2)[0].replace('-A', '-D')}".split())
    assert "--ctstate RELATED,ESTABLISHED" in node.refused("CHECK", of_pod(2), "pod", cid="c2")["msg"]
    node.ok("DEL", of_pod(2), "pod", cid="c2")
    assert forward()[1:] == rules_of(3)
    without_ipset()
    node.ok("ADD", of_pod(4), "pod", cid="c4")
    counted.runs()
    node.ok("DEL", of_pod(4), "pod", cid="c4", env=counted.env)
    assert counted.runs() == []
    assert forward()[1:] == rules_of(3) + set_rules(0)
    node.ok("DEL", of_pod(3), "pod", cid="c3", env=counted.env)
    assert forward()[1:] == set_rules(0)
    assert counted.runs() == ["iptables-restore", "ip6tables-restore"]


def test_an_iptables_without_the_match_set_adds_rules_of_the_pod(node, counted):
    """For example, Alpine's packages lack libxt_set.so."""
    for family in ("iptables", "ip6tables"):
        program = counted.log.parent / f"{family}-restore"
        text, stdin = program.read_text(), f"{counted.log.parent}/in"
        text = text.replace("exec", f"cat > {stdin}; grep -q match-set {stdin} && exit 2\nexec")
        program.write_text(text.replace('"$@"', f'"$@" < {stdin}'))
    node.ok("ADD", of_pod(2), "pod", cid="c2", env=counted.env)
    assert forward()[1:] == rules_of(2)
    node.ok("DEL", of_pod(2), "pod", cid="c2", env=counted.env)
    assert forward()[1:] == []


def test_a_foreign_set_of_that_name_is_left_alone(node):
    """Because of the other set, ADD adds rules for each pod, and DEL only reads existing rules."""
    run("ipset", "create", SETS[0], "bitmap:port", "range", "1-2")
    node.ok("ADD", of_pod(2), "pod", cid="c2")
    assert forward()[1:] == rules_of(2)
    assert members(SETS[1]) == ["fd00:22::2"]
    node.ok("CHECK", of_pod(2), "pod", cid="c2")
    node.ok("DEL", of_pod(2), "pod", cid="c2")
    assert forward()[1:] == elements("iptables-forward4") == members(SETS[1]) == []
    assert "bitmap:port" in run("ipset", "list", SETS[0])


def test_the_legacy_iptables_is_run_once_and_again_when_its_table_has_changed(node, warm, legacy):
    def call(command, number):
        node.ok(command, of_pod(number), "pod", cid=f"c{number}", env=legacy.env, mode=warm)
        return legacy.runs()

    assert "iptables-restore" in call("ADD", 2)
    call("ADD", 3)
    for number in (4, 5, 6):
        assert call("ADD", number) == []
    assert forward("iptables-legacy")[1:] == set_rules(0)
    assert call("DEL", 4) == call("CHECK", 5) == []
    run("iptables-legacy", "-F")
    refused = node.refused("CHECK", of_pod(5), "pod", cid="c5", env=legacy.env, mode=warm)
    assert "expected FORWARD rule" in refused["msg"]
    assert "iptables-restore" in call("ADD", 7)
    assert forward("iptables-legacy")[1:] == set_rules(0)
    # the reference plugin adds such a rule
    run("iptables-legacy", "-A", "CNI-FORWARD", "-s", "10.22.0.5", "-j", "ACCEPT")
    assert "iptables-restore" in call("DEL", 5)
    assert forward("iptables-legacy")[1:] == set_rules(0)
    assert members(SETS[0]) == [f"10.22.0.{n}" for n in (2, 3, 6, 7)]


def test_an_add_reads_a_legacy_table_again_only_after_a_second_or_a_change_of_forward(node, warm, legacy, monkeypatch):
    """kube-proxy changes its own chains often. Once, each ADD copied the whole table and took 1.8 times as long."""
    read = []

    def add(number):
        del read[:]
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}", env=legacy.env, mode=warm)
        return read

    def read_table(length, table, real=xtables.read_table):
        read.append((length, table))
        return real(length, table)

    run("iptables-legacy", "-N", "KUBE-SERVICES")
    for number in (2, 3):                       # the second ADD reads the first ADD's rules
        add(number)
    monkeypatch.setattr(xtables, "read_table", read_table)
    monkeypatch.setattr(iptables, "RECENT_S", 3600.0)
    run("iptables-legacy", "-A", "KUBE-SERVICES", "-j", "RETURN")
    assert add(4) == []
    run("iptables-legacy", "-F", "FORWARD")
    assert (4, "filter") in add(5)
    assert forward("iptables-legacy")[1:] == set_rules(0)
    assert "-j CNI-FORWARD" in run("iptables-legacy", "-S", "FORWARD")
    add(6)
    monkeypatch.setattr(iptables, "RECENT_S", 0.0)
    run("iptables-legacy", "-A", "KUBE-SERVICES", "-j", "RETURN")
    assert add(7) == [(4, "filter")]


@pytest.mark.parametrize("how", ["ipset flush", "iptables -F; ipset destroy fastcni-forward4", "nft flush ruleset",
                                 "nft flush ruleset; ipset destroy"])
def test_restore_restores_members_and_rules(node, pod, tmp_path, how):
    """The kernel sends no notification of `ipset flush`, so the operator runs `fastcni restore`."""
    cni = CNI([], cache_dir=tmp_path / "cni", runner=InProcess())
    bridge = node.conf("10.22.0.0/24", isDefaultGateway=True)
    plugins = [bridge, {"type": "firewall", "backend": "iptables"}]
    net = parse_list(json.dumps({"cniVersion": "1.0.0", "name": "net-a", "plugins": plugins}).encode())
    rt = RuntimeConf("c2", f"/run/netns/{pod}", "eth0")
    cni.add(net, rt)
    before = forward(), members(SETS[0]), elements("iptables-forward4")
    for command in how.split("; "):
        run(*command.split())
    assert (members(SETS[0]), how) == ([], how) or "ipset" not in how
    with pytest.raises(CniError):
        cni.check(net, rt)
    for _ in range(2):
        assert restore(cni.cache).failed == ()
        assert (forward(), members(SETS[0]), elements("iptables-forward4")) == before
    cni.check(net, rt)
    cni.delete(net, rt)
    assert members(SETS[0]) == elements("iptables-forward4") == []


def test_gc_deletes_more_members_than_fit_into_one_message(node):
    for number in range(2, 202):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}")
    node.ok("GC", {**of_pod(2), "cni.dev/valid-attachments": [{"containerID": "c7", "ifname": "eth0"}]})
    assert members(SETS[0]) == ["10.22.0.7"]
    assert members(SETS[1]) == ["fd00:22::7"]
    assert len(elements("iptables-forward4")) == 1


@pytest.mark.parametrize("sets", [True, False], ids=["ipset", "rules"])
def test_gc_reports_the_addresses_that_it_released(node, request, sets):
    """Once, `fastcni gc` did not report the rules that it removed from iptables."""
    if not sets:
        request.getfixturevalue("without_ipset")
    for number in (2, 3):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}")
    valid = [{"containerID": "c2", "ifname": "eth0"}]
    report = node.ok("GC", {**of_pod(2), "cni.dev/valid-attachments": valid, "fastcni/report": True})
    assert [(each["what"], "id: c3" in each["of"]) for each in report["released"]] == [
        ("address 10.22.0.3 in iptables", True), ("address fd00:22::3 in iptables", True)]


@pytest.mark.parametrize("sets", [True, False], ids=["ipset", "rules"])
@pytest.mark.parametrize("where, step", [
    (forward_iptables, "look"), (forward_iptables, "delete_rules"), (forward_iptables, "in_sets"),
    (OwnerRecords, "remove")])
@pytest.mark.parametrize("after", [False, True])
def test_next_del_completes_a_del_that_ended_at_any_step(node, monkeypatch, request, sets, where, step, after):
    """Once, after a DEL that was killed between its steps, the record remained: the next DEL found no rule and ended.
    The next DEL may have no addresses in its input."""
    if not sets:
        request.getfixturevalue("without_ipset")
    node.ok("ADD", of_pod(2), "pod", cid="c2")
    do = getattr(where, step)

    def end(*args, **keys):
        if after:
            do(*args)
        raise RuntimeError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(where, step, end)
        reply = node.call("DEL", of_pod(2), "pod", cid="c2")
    if step != "delete_rules" or not sets:          # a pod in the sets does not need this step
        assert b"the process ends here" in reply.stdout
    conf = of_pod(2)
    del conf["prevResult"]
    node.ok("DEL", conf, "pod", cid="c2")
    assert elements("iptables-forward4") == elements("iptables-forward6") == []
    assert rules_of(2)[0] not in forward()
    assert not sets or members(SETS[0]) == members(SETS[1]) == []


@pytest.mark.parametrize("sets", [True, False])
def test_without_the_family_inet_pods_have_rules_but_no_owner_records(node, request, monkeypatch, sets):
    """A kernel without CONFIG_NF_TABLES_INET rejects the table for the records. Once, ADD failed there."""
    monkeypatch.setattr(owners, "FAMILY", 99)                   # no kernel has this family
    if not sets:
        request.getfixturevalue("without_ipset")
    for number in (2, 3):
        node.ok("ADD", of_pod(number), "pod", cid=f"c{number}")
    assert forward()[1:] == (set_rules(0) if sets else rules_of(2, 3))
    assert members(SETS[0]) == (["10.22.0.2", "10.22.0.3"] if sets else [])
    assert elements("iptables-forward4") == []
    node.ok("CHECK", of_pod(2), "pod", cid="c2")
    env = {"CNI_CONTAINERID": cid_of("c2"), "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere", "CNI_PATH": "/nowhere"}
    assert restore_one("firewall", env, json.dumps(of_pod(2)).encode(), Mode()) == []
    node.ok("GC", {**of_pod(2), "cni.dev/valid-attachments": []})
    for _ in range(2):
        node.ok("DEL", of_pod(2), "pod", cid="c2")
    assert members(SETS[0]) == (["10.22.0.3"] if sets else [])
    assert forward()[1:] == (set_rules(0) if sets else rules_of(3))
