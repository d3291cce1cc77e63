"""The server replays pods' rules in iptables, in firewalld and in an administrator's chains. It reads these from the
runtime's cached results. It replays after a flush, and once when it starts. The tests use the real kernel."""

import shutil
import time

import pytest
from lab.node import Inside, cid_of, rules, run, set_sysctl
from lab.portmap_chain import DUAL, Chain, mapping
from lab.traffic import ask, listen
from unit.server.flushed import LONG_ENOUGH, add, delete, nft, ruleset

from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf
from fastcni.server.restoring import replay
from fastcni.spec import json
from fastcni.testing.witnesses import eventually

needs_iptables = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")


@pytest.fixture
def iptables_net(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, ipMasq=True, ipMasqBackend="iptables"),
                 backend="iptables", capabilities={"portMappings": True})


@pytest.fixture
def caching(start, tmp_path):
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=server_ready"))
    return server


def replayed(server):
    """Return whether a replay has run after a flush. On a busy machine, another replay can restore the rules: that of
    the server's start, or one that begins because the pod's ADD made the table filter."""
    return server.lines("event=rules_replayed", "failed=0") or any(
        server.lines(f"event={each}", "attachments=1", "failed=0") for each in
        ("start_replay_done", "pods_let_through"))


def remember(tmp_path, net, pod, conf):
    """Write the cached result of an attachment, as a runtime does. conf is the configuration of the last plugin."""
    last = {key: value for key, value in conf.items() if key not in ("prevResult", "runtimeConfig")}
    network = {"cniVersion": net.first["cniVersion"], "name": net.first["name"], "plugins": [net.first, last]}
    rt = RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0", capability_args=conf.get("runtimeConfig", {}))
    Cache(tmp_path / "cache").write(net.first["name"], json.write(network), rt, conf["prevResult"])


def iptables_rules():
    if not shutil.which("iptables-save"):
        return []
    return [sorted(line for line in run(f"{program}-save").splitlines() if line.startswith("-A"))
            for program in ("iptables", "ip6tables")]


@needs_iptables
@pytest.mark.parametrize("how", ["nft flush ruleset", "iptables -t nat -F", "iptables -t nat -F PREROUTING",
                                 "iptables -t nat -F POSTROUTING", "iptables-restore", "nft delete table ip6 nat"])
def test_the_iptables_rules_of_pods_are_restored(caching, iptables_net, pod, tmp_path, how):
    remember(tmp_path, iptables_net, pod, add(caching, iptables_net, pod, mapping()))
    before = iptables_rules()
    run(*how.split(), stdin="*nat\nCOMMIT\n" if how == "iptables-restore" else None)
    assert eventually(lambda: replayed(caching)), caching.log_text()
    assert eventually(lambda: iptables_rules() == before), caching.log_text()[-2000:]
    with listen(pod, 80):
        assert ask(None, "127.0.0.1", 8080)


@needs_iptables
@pytest.mark.parametrize("how", ["nft flush ruleset", "iptables -F", "iptables -F CNI-FORWARD",
                                 "nft delete table ip filter"])
def test_the_iptables_rules_of_firewall_are_restored(caching, iptables_net, pod, tmp_path, how):
    """Once, the server ignored a flush of only CNI-FORWARD, so the pods' rules and the jump to CNI-ADMIN remained
    lost."""
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "iptables",
            "prevResult": caching.ok("ADD", iptables_net.first, pod)}
    caching.ok("ADD", conf, pod)
    remember(tmp_path, iptables_net, pod, conf)
    before = iptables_rules()
    run(*how.split())
    assert eventually(lambda: replayed(caching)), caching.log_text()
    assert eventually(lambda: iptables_rules() == before), caching.log_text()[-2000:]
    caching.ok("CHECK", conf, pod)


@needs_iptables
def test_del_of_the_last_pod_with_iptables_causes_no_replay(caching, iptables_net, pod, pod_netns, tmp_path):
    other = pod_netns()
    conf = add(caching, iptables_net, pod, mapping())
    remember(tmp_path, iptables_net, pod, conf)
    delete(caching, iptables_net, pod, conf)
    conf = iptables_net.add(other, mapping())
    iptables_net.node.delete(conf, other)
    iptables_net.node.delete(iptables_net.first, other)
    time.sleep(replay.DELAY_AFTER_DEL_S + LONG_ENOUGH)
    assert not caching.lines("event=rules_replayed")


@pytest.fixture(params=["nftables", pytest.param("iptables", marks=needs_iptables)])
def remembered(request, node, pod, pod_netns, tmp_path):
    """Add two pods with a chain of plugins, and write their cached results. Return the Chain."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    first = node.conf(*DUAL, isDefaultGateway=True, ipMasq=True, ipMasqBackend=request.param)
    net = Chain(node, first, backend=request.param, capabilities={"portMappings": True})
    net.confs = {each: net.add(each, mapping(8080 + number)) for number, each in enumerate((pod, pod_netns()))}
    for each, conf in net.confs.items():
        remember(tmp_path, net, each, conf)
    return net


def everything():
    """Return the rules and elements in an order that does not depend on the kernel's."""
    found = [str(it) for it in rules() if next(iter(it.values())).get("table", "") == "fastcni"]
    return sorted(found + [line for lines in iptables_rules() for line in lines])


def test_a_server_that_starts_after_a_flush_restores_cached_attachments(remembered, start, tmp_path):
    """The server did not run when the flush was announced."""
    before = everything()
    nft("flush ruleset")
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: everything() == before), server.log_text()
    line, = eventually(lambda: server.lines("event=start_replay_done"))
    assert "level=info" in line
    assert "attachments=2 " in line
    assert "failed=0" in line


def test_a_starting_server_changes_no_present_state(remembered, start, tmp_path):
    def handles():
        return run("nft", "-s", "-a", "list", "ruleset")         # -s omits the counters

    before = handles()
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done", "attachments=2 "))
    assert handles() == before


def test_many_flushes_within_a_second_are_restored_without_failure(remembered, caching):
    """Once, a replay found elements that the server had just restored, and regarded them as another attachment's. A
    replay that a flush interrupts may fail; the last replay must not."""
    before = everything()
    for number in range(12):
        nft("flush ruleset")
        time.sleep(0.01 * number)
    assert eventually(lambda: everything() == before), caching.log_text()
    time.sleep(replay.DELAY_AFTER_DEL_S + LONG_ENOUGH)
    assert everything() == before
    lines = caching.lines("event=rules_replayed")
    assert not lines or "failed=0" in lines[-1]
    assert not [line for line in lines if "is already mapped" in line]


def test_a_replay_in_another_namespace_installs_nothing_there(remembered, start, pod_netns, tmp_path):
    """Once, a flush in one namespace installed the rules of another namespace's pods there."""
    server, other = start("--cache-dir", tmp_path / "cache"), pod_netns()
    with Inside(other):
        server.ok("STATUS", remembered.first)           # after a request from this namespace, the server watches it
        nft("add table inet firewalld")                 # this causes a replay
        assert eventually(lambda: server.lines("event=rules_replayed", "attachments=0 ", "failed=0"))
        assert "CNI" not in run("nft", "list", "ruleset") and "fastcni" not in run("nft", "list", "ruleset")


def test_a_new_table_of_firewalld_causes_a_replay(caching):
    nft("add table inet firewalld")
    assert eventually(lambda: caching.lines("event=rules_replayed", "gone=\"runtime configuration of firewalld\""))
    nft("add table inet other")
    time.sleep(replay.DELAY_AFTER_DEL_S + LONG_ENOUGH)
    assert len(caching.lines("event=rules_replayed")) == 1


LOAD = """flush ruleset
table inet filter {
    chain forward { type filter hook forward priority filter; policy drop; }
}"""


def test_a_reloaded_chain_of_an_administrator_accepts_pods_again(caching, net, pod, tmp_path):
    """`systemctl reload nftables` first flushes the ruleset, and then reads the administrator's file."""
    run("nft", "-f", "-", stdin=LOAD)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "prevResult": caching.ok("ADD", net.first, pod)}
    caching.ok("ADD", conf, pod)
    remember(tmp_path, net, pod, conf)
    before = ruleset()
    assert "fastcni: from pods" in str(before)
    run("nft", "-f", "-", stdin=LOAD)
    assert eventually(lambda: ruleset() == before), caching.log_text()
