"""A node switches from the Go plugins to fastcni and back, while pods are added and deleted and TCP streams run."""

import contextlib
import json
import subprocess
import sys

import pytest
from conftest import needs_peer
from packages.switched import Churn, Stream, Switched, ruleset
from side_by_side.sides import run

from fastcni.testing.witnesses import eventually

pytestmark = [pytest.mark.needs("root"), needs_peer]


@pytest.fixture
def node(host_netns, pod_netns, tmp_path):
    return Switched(tmp_path, pod_netns)


def ids(report, key):
    """Return the container ids in one part of the report of `fastcni uninstall --json`."""
    return {it["containerID"] for it in report["state"][key]}


@contextlib.contextmanager
def serving(node):
    """Run a server on this node. Yield the path of its socket."""
    path = node.where / "run" / "fastcni.sock"
    with (node.where / "log").open("w") as log:
        server = subprocess.Popen([sys.executable, "-m", "fastcni", "serve", "--socket", path, "--cache-dir",
                                   node.cache], stderr=log)
    try:
        assert eventually(path.exists), "the server does not listen"
        yield server, path
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("mode", ["one-shot", "warm"])
def test_streams_through_host_ports_run_through_install_and_uninstall(node, mode, monkeypatch):
    with contextlib.ExitStack() as stack:
        server, path = stack.enter_context(serving(node)) if mode == "warm" else (None, "")
        monkeypatch.setenv("FASTCNI_SOCKET", str(path))                 # the plugins use this socket
        pods = {"go": node.new_pod("go", 18080)}
        streams = [stack.enter_context(contextlib.closing(Stream(node, pods["go"], 18080)))]
        churn = stack.enter_context(contextlib.closing(Churn(node)))
        node.install()
        assert churn.done() == []
        pods["ours"] = node.new_pod("ours", 18081)
        streams.append(stack.enter_context(contextlib.closing(Stream(node, pods["ours"], 18081))))
        churn = stack.enter_context(contextlib.closing(Churn(node)))
        report = json.loads(node.uninstall("--json", "--socket", path))
        assert churn.done() == []
        # A pod of Churn may exist, too. A server that replays also adds elements for Go's pod.
        assert {"ours"} <= ids(report, "needed") <= ({"ours", "churn", "go"} if server else {"ours", "churn"})
        for stream in streams:
            stream.check()
        assert "18081" in ruleset()
        streams[0].close()
        node.goes("go", pods["go"])
        streams[1].check()
        if server:
            assert server.wait(10) == 0
            log = (node.where / "log").read_text()
            assert log.count("event=request_done") > 4 and "level=error" not in log
    node.goes("ours", pods["ours"])
    assert "18081" in ruleset()                 # the Go plugins do not change fastcni's table
    report = json.loads(node.uninstall("--json"))
    assert ids(report, "released") >= {"ours"} and ids(report, "needed") == set()
    assert "fastcni" not in ruleset()


def test_uninstall_that_waits_removes_what_each_pod_had_when_go_deletes_it(node):
    node.install()
    pods = {name: node.new_pod(name, port) for name, port in (("one", 18080), ("two", 18081))}
    process = subprocess.Popen(**node.command(*node.uninstall_words("--wait", "--json")), stdout=subprocess.PIPE)
    try:
        assert eventually(lambda: not (node.bin / ".fastcni-replaced").exists()), "the Go plugins are not restored"
        node.goes("one", pods["one"])
        assert eventually(lambda: "18080" not in ruleset()), "the elements of a deleted pod stay"
        assert "18081" in ruleset()
        again = node.new_pod("three", 18080)            # fastcni accepts the port, which only Go's rules still map
        node.goes("two", pods["two"])
        report = json.loads(process.communicate(timeout=60)[0])
        assert process.returncode == 0
        assert (ids(report, "released"), ids(report, "needed")) == ({"one", "two"}, set())
        assert "fastcni" not in ruleset()
        node.goes("three", again)
    finally:
        process.kill()
        process.communicate()


def test_a_pod_that_go_added_with_the_address_of_a_dead_one_does_not_keep_its_elements(node):
    node.install()
    dead = node.new_pod("dead", 18080)
    node.uninstall()
    node.goes("dead", dead)
    for path in (node.data / "net1").glob("last_reserved_ip.*"):
        path.unlink()                                   # so that the next pod gets the address
    assert node.new_pod("next") and "10.123.77.2" in {path.name for path in (node.data / "net1").iterdir()}
    assert ids(json.loads(node.uninstall("--json")), "released") == {"dead"}
    assert "fastcni" not in ruleset()


def test_a_pod_that_only_its_elements_and_its_namespace_show_keeps_them(node):
    """While an ADD runs, the cache does not have the pod yet. With an IPAM plugin of another project the pod has no
    address file either."""
    node.install()
    node.new_pod("c1", 18080)
    for path in (*(node.cache / "results").iterdir(), *(node.data / "net1").glob("10.*")):
        path.unlink()
    before = ruleset()
    report = json.loads(node.uninstall("--json"))
    assert ids(report, "needed") == {"c1"}
    assert ruleset() == before


def test_rules_of_an_administrator_keep_the_table(node):
    node.install()
    node.goes("c1", node.new_pod("c1"))
    run("nft", "add", "table", "inet", "fastcni")
    run("nft", "add", "chain", "inet", "fastcni", "CNI-ADMIN", "{ type filter hook forward priority -1; }")
    run("nft", "add", "rule", "inet", "fastcni", "CNI-ADMIN", "ip", "daddr", "192.0.2.0/24", "drop")
    kept = json.loads(node.uninstall("--json"))["state"]["kept"]
    assert kept == ["nftables chain inet fastcni CNI-ADMIN has an administrator's rules"]
    assert "192.0.2.0/24" in ruleset()
    run("nft", "flush", "chain", "inet", "fastcni", "CNI-ADMIN")
    node.uninstall()
    assert "fastcni" not in ruleset()


@pytest.mark.parametrize("policy", ["iptables", "nftables"])
def test_sets_and_rules_in_tables_of_others_go_with_the_last_pod(node, policy):
    """For example, fastcni has an ipset that CNI-FORWARD uses, or a set in an administrator's table whose policy is
    drop."""
    if policy == "iptables":
        run("iptables", "-P", "FORWARD", "DROP")
    else:
        run("nft", "add", "table", "inet", "theirs")
        run("nft", "add", "chain inet theirs f { type filter hook forward priority 0; policy drop; }")
        path = node.conf / "10-net1.conflist"
        document = json.loads(path.read_text())
        document["plugins"][2]["backend"] = "nftables"
        path.write_text(json.dumps(document))
    node.install()
    pod = node.new_pod("c1")
    found = run("ipset", "list", "-n") if policy == "iptables" else ruleset()
    assert "fastcni-forward" in found
    node.uninstall()
    node.goes("c1", pod)
    node.uninstall()
    assert "fastcni" not in ruleset()
    assert "fastcni" not in run("iptables-save") + run("ipset", "list", "-n")


def test_uninstall_stops_a_server_and_removes_its_socket(node):
    node.install()
    with serving(node) as (server, path):
        node.goes("c1", node.new_pod("c1", 18080))
        report = json.loads(node.uninstall("--socket", path, "--json"))
        assert report["server"] == server.pid and server.wait(10) == 0
        assert not path.parent.exists()
        assert "fastcni" not in ruleset()


def test_another_directory_with_fastcnis_plugins_keeps_server_and_state(node, monkeypatch):
    bin_dir, other = node.bin, node.where / "other"
    node.install()
    node.fastcni("install", "--bin-dir", other, "--plugin", "ptp")
    node.goes("c1", node.new_pod("c1", 18080))
    monkeypatch.setattr(node, "bin", f"{other}:{bin_dir}")              # CNI_PATH
    report = json.loads(node.uninstall("--bin-dir", bin_dir, "--json"))
    assert report["elsewhere"] == [str(other)] and report["restored"]
    assert "table inet fastcni" in ruleset()
    assert json.loads(node.uninstall("--bin-dir", other, "--json"))["removed"] == ["ptp"]
    assert "fastcni" not in ruleset()


def test_pods_of_a_plugin_that_only_fastcni_has_are_named(node):
    (node.conf / "20-net2.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "net2", "plugins": [
        {"type": "tap", "ipam": {}}]}))
    node.install()
    pod = node.pod_netns()
    node.add("c2", pod, network="net2")
    stranded = [{"network": "net2", "containerID": "c2", "ifname": "eth0", "plugins": ["tap"]}]
    assert json.loads(node.uninstall("--dry-run", "--json"))["state"]["stranded"] == stranded
    node.delete("c2", pod, network="net2")
    assert json.loads(node.uninstall("--dry-run", "--json"))["state"]["stranded"] == []
