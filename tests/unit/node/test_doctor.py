"""Each check of `fastcni doctor` finds its fault, and a healthy node has no finding."""

import os
import socket

import pytest
from unit.node.conftest import LIST, Link, diagnosed, one

from fastcni.node.checks import conf as checks_conf
from fastcni.node.checks import kernel as checks_kernel
from fastcni.node.checks import state as checks_state
from fastcni.node.checks.doctor import CHECKS, diagnose
from fastcni.node.checks.findings import ERROR, WARNING
from fastcni.runtime.restore import restore
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import run

STATS = "entries  allocs table_fulls\n{:08x}  00000001 {:08x}\n{:08x}  00000001 00000000\n"


def texts(findings):
    return [(it.severity, it.what) for it in findings]


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_says_what_is_so_on_a_healthy_node(name):
    assert CHECKS[name].__doc__.strip().endswith(".")


# Kernel

def test_forwarding_that_another_program_has_switched_off(node):
    it = one(checks_kernel.forwarding(node({"net.ipv4.ip_forward": "0"})), ERROR, "net.ipv4.ip_forward is 0")
    assert it.do == "sysctl -w net.ipv4.ip_forward=1"
    assert texts(checks_kernel.forwarding(node({"net.ipv6.conf.all.forwarding": "0"})))[0][1].startswith("net.ipv6")
    assert not [*checks_kernel.forwarding(node({"net.ipv4.ip_forward": "0"}, pods=()))]


def test_a_module_that_the_kernel_lacks(node, tmp_path):
    where = tmp_path / "lib/modules/6.0"
    where.mkdir(parents=True)
    (where / "modules.dep").write_text("kernel/drivers/net/veth.ko.xz:\nkernel/net/netfilter/nf_tables.ko:\n"
                                       "kernel/net/nft-nat.ko:\n")
    (where / "modules.builtin").write_text("")
    one(checks_kernel.modules(node()), ERROR, "no module bridge", "plugin bridge of network net1", "modprobe bridge")
    (tmp_path / "sys/module/bridge").mkdir(parents=True)
    assert not [*checks_kernel.modules(node())]
    (where / "modules.dep").unlink()
    assert checks_kernel.has_module(node(), "ifb") is None


def test_a_kernel_without_vlan_filtering_of_bridges_is_found_if_a_network_has_vlans(node, directories, tmp_path):
    (tmp_path / "boot").mkdir()
    config = tmp_path / "boot" / "config-6.0"
    bridge = Link(1, "br0", "bridge")

    def found(filtering, text):
        bridge.vlan_filtering = filtering
        config.write_text(text)
        return [texts(checks_kernel.modules(node(links=links))) for links in ((), (bridge,))]

    lacks = "# CONFIG_BRIDGE_VLAN_FILTERING is not set\n"
    assert found(None, lacks) == [[], []], "no network has VLANs"
    directories.configure({**LIST, "plugins": [{**LIST["plugins"][0], "vlanTrunk": [{"id": 7}]}]})
    (without, with_bridge) = found(None, lacks)
    assert without == with_bridge == [(ERROR, "the kernel 6.0 has no VLAN filtering of bridges")]
    assert found(False, "CONFIG_BRIDGE_VLAN_FILTERING=y\n") == [[], []]


def test_services_on_the_same_bridge(node):
    saved = {"iptables-nft-save": ["*nat", ":KUBE-SERVICES - [0:0]", "COMMIT"]}
    one(checks_kernel.bridge_nf_call(node(saved=saved)), WARNING, "bridge-nf-call-iptables is missing", "modprobe")
    name = "net.bridge.bridge-nf-call-iptables"
    one(checks_kernel.bridge_nf_call(node({name: "0"}, saved=saved)), WARNING, "is 0")
    assert not [*checks_kernel.bridge_nf_call(node({name: "1"}, saved=saved)), *checks_kernel.bridge_nf_call(node())]


@pytest.mark.parametrize("name", ["call-iptables", "call-ip6tables", "filter-vlan-tagged"])
def test_network_policies_that_a_bridge_bypasses(node, directories, name):
    """`sysctl --system` sets this sysctl to 0. Once, doctor found nothing."""
    on = {f"net.bridge.bridge-nf-{each}": "1" for each in ("call-iptables", "call-ip6tables", "filter-vlan-tagged")}
    name = f"net.bridge.bridge-nf-{name}"
    directories.configure({**LIST, "plugins": [*LIST["plugins"], {"type": "policy"}]})
    found = one(checks_kernel.bridge_nf_call(node(on | {name: "0"})), ERROR, f"{name} is 0", "net1", "policies")
    assert found.do == f"modprobe br_netfilter && sysctl -w {name}=1"
    one(checks_kernel.bridge_nf_call(node(on | {name: ""})), ERROR, f"{name} is missing")
    assert not [*checks_kernel.bridge_nf_call(node(on))]
    directories.configure({**LIST, "plugins": [{"type": "ptp"}, {"type": "policy"}]})
    assert not [*checks_kernel.bridge_nf_call(node({}))]


DROP = ["*filter", ":FORWARD DROP [0:0]", ":CNI-FORWARD - [0:0]"]


def saved_rules(*rules, program="iptables-nft-save"):
    return {program: [*DROP, *(f"-A {rule}" for rule in rules), "COMMIT"]}


def with_firewall(plugins=LIST["plugins"]):
    return {**LIST, "plugins": [*plugins, {"type": "firewall"}]}


def test_a_chain_that_drops_names_the_pods_without_plugin_firewall(node):
    """Once, doctor named the network although another rule accepts some pods."""
    pods = "c1", "c2"
    it = one(checks_kernel.forward_policy(node(saved=saved_rules(), pods=pods)), WARNING,
             "chain FORWARD of iptables-nft", "pods c1/eth0 (10.88.0.2 fd00::2), c2/eth0 (10.88.0.3 fd00::3)",
             "network net1 has no plugin firewall")
    assert '"firewall"' in it.do
    found = one(checks_kernel.forward_policy(node(saved=saved_rules("FORWARD -s 10.88.0.3/32 -j ACCEPT"), pods=pods)),
                WARNING, "pod c1/eth0")
    assert "c2" not in found.what
    one(checks_kernel.forward_policy(node(saved=saved_rules(), pods=())), WARNING, "network net1 has no plugin")


@pytest.mark.parametrize("rule, drops", [
    ("FORWARD -s 10.88.0.0/16 -j ACCEPT", False),
    ("FORWARD -s 10.88.0.2/32 -m comment --comment \"a b\" -j ACCEPT", False),
    ("CNI-FORWARD -i veth00000001 -j ACCEPT", False), ("FORWARD -i br0 -j ACCEPT", False),
    ("FORWARD -i veth+ -j ACCEPT", False), ("FORWARD -s 10.89.0.0/16 -j ACCEPT", True),
    ("FORWARD ! -s 10.89.0.0/16 -j ACCEPT", True), ("FORWARD -s 10.88.0.0/16 -p tcp -j ACCEPT", True),
    ("FORWARD -i br1 -j ACCEPT", True), ("FORWARD -s 10.88.0.2/32 -j DROP", True),
    ("FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", True), ("FORWARD -j ACCEPT", True),
])
def test_rules_that_accept_the_pod_by_address_or_link_let_it_through(node, rule, drops):
    links = Link(1, "br0", "bridge"), Link(2, "veth00000001", "veth", master=1)
    found = [*checks_kernel.forward_policy(node(saved=saved_rules(rule), links=links))]
    assert bool(found) is drops


def test_a_pod_with_plugin_firewall_is_an_error_whose_command_mends_it(node, directories):
    directories.configure(with_firewall())
    saved = saved_rules(program="ip6tables-legacy-save")
    it = one(checks_kernel.forward_policy(node(saved=saved, conf=with_firewall())), ERROR,
             "chain FORWARD of ip6tables-legacy drops packets that pod c1/eth0")
    assert it.do == "fastcni restore"
    policy = {"iptables-nft-save": ["*filter", ":FORWARD ACCEPT [0:0]", "COMMIT"]}
    assert not [*checks_kernel.forward_policy(node(saved=policy))]


def test_strict_reverse_path_filtering_and_pods_with_two_networks(node):
    strict = {"net.ipv4.conf.all.rp_filter": "1"}
    one(checks_kernel.rp_filter(node(strict, pods=("c1", "c1"))), WARNING, "1 pod with several networks", "rp_filter=2")
    assert not [*checks_kernel.rp_filter(node(strict)), *checks_kernel.rp_filter(node({}, pods=("c1", "c1")))]


def test_neighbour_tables_that_fill_up(node, tmp_path):
    where = tmp_path / "proc/net/stat"
    where.mkdir(parents=True)
    for held, full, expected in ((1000, 0, ERROR), (10, 3, WARNING)):
        (where / "arp_cache").write_text(STATS.format(held, full, held))
        one(checks_kernel.neighbours(node()), expected, "IPv4", "gc_thresh3=4096", "gc_thresh1=512")
    (where / "arp_cache").write_text(STATS.format(10, 0, 10))
    assert not [*checks_kernel.neighbours(node())]


def test_a_table_of_connections_that_fills_up(node):
    name = "net.netfilter.nf_conntrack_"
    one(checks_kernel.conntrack(node({f"{name}count": "950", f"{name}max": "1000"})), ERROR, "950 of 1000", "max=2000")
    assert not [*checks_kernel.conntrack(node({f"{name}count": "5", f"{name}max": "1000"}))]


@pytest.mark.parametrize("ports, severity", [(1023, ERROR), (930, WARNING)])
def test_a_bridge_with_as_many_ports_as_the_kernel_allows(node, ports, severity):
    links = [Link(1, "br0", "bridge"), *(Link(index, f"v{index}", "veth", 1) for index in range(2, ports + 2))]
    one(checks_kernel.bridge_ports(node(links=links)), severity, f"br0 has {ports} of 1024 ports")
    assert not [*checks_kernel.bridge_ports(node(links=links[:900]))]


def test_both_kinds_of_iptables(node):
    saved = {"iptables-legacy-save": ["*nat", "-A A -j B"], "iptables-nft-save": ["*nat", "-A A -j B"]}
    one(checks_kernel.iptables_kinds(node(saved=saved)), WARNING, "legacy and nft, have rules")
    assert not [*checks_kernel.iptables_kinds(node(saved={**saved, "iptables-nft-save": ["*nat"]}))]


def test_a_kernel_without_netlink_families(node, monkeypatch):
    def refuse(*_):
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(checks_kernel.wire, "open_socket", refuse)
    assert [severity for severity, _ in texts(checks_kernel.netlink(node()))] == [ERROR, ERROR]
    one(checks_kernel.nf_tables(node()), ERROR, "nftables cannot be used", "modprobe nf_tables")


# Configurations and plugin files

def test_a_kernel_without_the_family_inet(node, host_netns, monkeypatch):
    assert texts(checks_kernel.nf_tables(node())) == []
    monkeypatch.setattr(checks_kernel, "FAMILY", 99)            # no kernel has this family
    one(checks_kernel.nf_tables(node()), WARNING, "no nftables family inet", '"backend": "iptables"')
    assert run("nft", "list", "ruleset") == ""


def test_no_configuration(node, directories):
    (directories.conf / "10-net1.conflist").unlink()
    one(checks_conf.conf_files(node()), ERROR, "has no network configuration")


def test_a_broken_file_and_a_second_one_of_a_name(node, directories):
    (directories.conf / "05.conflist").write_text("{")
    directories.configure(name="20.conflist")
    one(checks_conf.conf_files(node()), ERROR, "05.conflist is broken")
    one(checks_conf.one_file_a_name(node()), WARNING, "20.conflist has network net1, as")


def test_a_misspelt_key(node, directories, tmp_path):
    plugin = {"type": "bridge", "isGatway": True, "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}
    directories.configure({**LIST, "plugins": [plugin]})
    found = [it for it in checks_conf.keys(node(plugin_dirs=[str(tmp_path)])) if "isGatway" in it.what]
    assert one(found, WARNING, "10-net1.conflist").do == 'did you mean "isGateway"?'
    missing = [it for it in checks_conf.keys(node(plugin_dirs=[str(tmp_path)])) if it.severity == ERROR]
    assert {"failed to find plugin" in it.what for it in missing} == {True}


# The server

def test_a_socket_without_a_server(node, tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(path)
    one(checks_state.server(node(at=path)), WARNING, "no server listens", "systemctl restart")
    units = tmp_path / "units"
    units.mkdir()
    assert not [*checks_state.server(node(at=str(tmp_path / "no"), unit_dir=str(units)))]
    (units / "fastcni.socket").write_text("")
    found = checks_state.server(node(at=str(tmp_path / "no"), unit_dir=str(units)))
    one(found, WARNING, "there is no socket", "systemctl enable --now")


@pytest.mark.parametrize("answer, severity, part", [
    ({"version": "0.0.1"}, WARNING, "the server is of 0.0.1"),
    ({"waiting": 1000}, ERROR, "1000 of 1024 requests wait"), ({"watching": 0}, WARNING, "watches no network"),
    (TimeoutError(), ERROR, "does not answer"), ({}, None, "")])
def test_states_of_a_server(node, tmp_path, monkeypatch, answer, severity, part):
    full = {"version": checks_state.fastcni.__version__, "waiting": 0, "queueSize": 1024, "watching": 1}

    def ask(path):
        if isinstance(answer, Exception):
            raise answer
        return answer if answer is None else {**full, **answer}

    (tmp_path / "s").write_text("")
    monkeypatch.setattr(checks_state.status, "ask", ask)
    found = [*checks_state.server(node(at=str(tmp_path / "s")))]
    if severity:
        one(found, severity, part)
    else:
        assert found == []


def test_a_server_that_declines_to_answer_is_not_called_old(node, tmp_path, monkeypatch):
    """The server could not read the request. Once, doctor said that such a server is older than the command."""
    (tmp_path / "s").write_text("")
    monkeypatch.setattr(checks_state.status, "ask", lambda path: None)
    it = node(at=str(tmp_path / "s"))
    assert list(checks_state.server(it)) == []
    assert it.unseen == [f"server {tmp_path}/s: the server declines the request for its state; its log says why "
                         "(event request_declined)"]


# State that pods left

def test_a_healthy_node_has_no_finding(host, pod_netns, fastcni, bin_dir):
    pod = pod_netns()
    host.add("c1", pod, ports=[(8080, 80)])
    status, found = diagnosed(fastcni, "--bin-dir", bin_dir)
    assert (status, found) == (0, {})
    host.delete("c1", pod)


def test_directories_in_which_namespaces_cannot_be_seen(node):
    it = node()
    assert list(checks_state.namespaces(it)) == []
    it.seen.facts.blind.append(("/run/netns", "has 2 plain files, where namespaces may be mounted"))
    one(checks_state.namespaces(it), WARNING, "/run/netns has 2 plain files", "HostToContainer")


def test_faults_of_a_real_node_are_found(host, pod_netns, fastcni, bin_dir):
    pods = [pod_netns() for _ in range(3)]
    for number, pod in enumerate(pods):
        host.add(f"c{number}", pod, ports=[(8080 + number, 80)])
    run("ip", "netns", "del", pods[1])
    os.unlink(host.cache / "results/net1-c2-eth0")
    run("nft", "flush", "ruleset")
    run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    run("ip", "link", "add", "veth0badc0de", "type", "veth", "peer", "name", "other")
    host.hold("10.88.0.99", "")
    status, found = diagnosed(fastcni, "--bin-dir", bin_dir)
    assert status == 2 and set(found) >= {"forwarding", "stale", "unowned", "address-files", "lost-rules"}
    assert "c1" in found["stale"]["what"] and "veth0badc0de" in found["unowned"]["what"]
    # Without --valid, GC would release the address of the running pod that is not in the cache.
    assert f"fastcni gc --valid c2/eth0 --conf-dir {host.conf}" in found["stale"]["do"]
    assert found["lost-rules"]["do"] == "fastcni restore" and "c0" in found["lost-rules"]["what"]
    for number in (0, 2):
        host.delete(f"c{number}", pods[number])


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_rules_of_one_address_family_that_are_lost_are_found(directories, host_netns, pod_netns, fastcni, bin_dir,
                                                             backend):
    """Once, doctor did not report a flush of the IPv4 rules, because the IPv6 rules existed."""
    bridge, portmap = LIST["plugins"]
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    directories.configure({**LIST, "plugins": [{**bridge, "ipMasqBackend": backend, "ipam": ipam},
                                           {**portmap, "backend": backend}]})
    pod = pod_netns()
    directories.add("c1", pod, ports=[(8080, 80)])
    assert "lost-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1]
    for command in {"nftables": ["nft flush map inet fastcni pods4", "nft flush map inet fastcni hostports4"],
                    "iptables": ["iptables -t nat -F", "iptables -t nat -X"]}[backend]:
        run(*command.split())
    status, found = diagnosed(fastcni, "--bin-dir", bin_dir)
    assert status == 2
    assert "lacks IPv4 masquerade: c1; 1 running pod lacks IPv4 port mappings: c1" in found["lost-rules"]["what"]
    assert restore(directories.cni.cache).failed == ()
    assert "lost-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1]
    directories.delete("c1", pod)


def test_guards_and_isolation_that_were_flushed_alone_are_found(directories, host_netns, pod_netns, fastcni, bin_dir):
    """A flush of a table keeps its sets. Once, the pod's masquerade element was enough to count all its rules as
    existing."""
    bridge, _ = LIST["plugins"]
    directories.configure({**LIST, "plugins": [{**bridge, "ipspoofchk": True}, {
        "type": "firewall", "backend": "nftables", "ingressPolicy": "isolated"}]})
    pod = pod_netns()
    directories.add("c1", pod)
    for command, part in {"delete table bridge fastcni": "lacks macspoofchk: c1; 1 running pod lacks ipspoofchk: c1; "
                                                         "1 running pod lacks ingressPolicy isolated: c1",
                          "flush set bridge fastcni guarded": "macspoofchk",
                          "flush set bridge fastcni bound": "ipspoofchk",
                          "flush set bridge fastcni isolated": "isolated",
                          "flush chain bridge fastcni addresses": "bridge fastcni addresses",
                          "flush table inet fastcni": "inet fastcni",
                          "add table inet fastcni { flags dormant; }": "have the flag dormant: inet fastcni"}.items():
        assert "lost-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1], command
        run("nft", *command.split())
        assert part in diagnosed(fastcni, "--bin-dir", bin_dir)[1]["lost-rules"]["what"]
        assert restore(directories.cni.cache).failed == ()
    directories.delete("c1", pod)


def test_rules_that_a_saved_ruleset_has_added_again_are_found_and_restore_replaces_them(
        directories, host_netns, pod_netns, fastcni, bin_dir):
    """`nft -f` adds each rule again if the file does not flush. Once, with such rules, GC kept the chain of a subnet
    for ever."""
    bridge, portmap = LIST["plugins"]
    # nft prints ipspoofchk's rules in a form that nft cannot read
    directories.configure({**LIST, "plugins": [bridge, portmap, {
        "type": "firewall", "backend": "nftables", "ingressPolicy": "isolated"}]})
    pod = pod_netns()
    directories.add("c1", pod, ports=[(8080, 80)])
    before = run("nft", "list", "ruleset")
    assert "doubled-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1]
    for _ in range(2):
        run("nft", "-f", "-", stdin=before)
    found = diagnosed(fastcni, "--bin-dir", bin_dir)[1]["doubled-rules"]
    assert "inet fastcni hostport-output" in found["what"] and found["do"] == "fastcni restore"
    assert restore(directories.cni.cache).failed == ()
    assert sorted(run("nft", "list", "ruleset").split("\n")) == sorted(before.split("\n"))
    assert "doubled-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1]
    directories.delete("c1", pod)


def test_a_chain_of_another_kind_with_a_name_of_fastcnis_is_an_error_with_a_remedy(directories, host_netns, pod_netns,
                                                                                    fastcni, bin_dir):
    """The kernel rejects fastcni's chain, so neither ADD nor restore can set up the table. Once, no finding named a
    remedy."""
    directories.configure()
    pods = pod_netns(), pod_netns()
    directories.add("c1", pods[0])
    run("nft", "flush chain inet fastcni postrouting; delete chain inet fastcni postrouting; "
               "add chain inet fastcni postrouting { type filter hook input priority 0; }")
    remedy = "`nft delete table inet fastcni`, then `fastcni restore`"
    found = diagnosed(fastcni, "--bin-dir", bin_dir)[1]["lost-rules"]
    assert "cannot be restored: add nftables chain fastcni postrouting: Operation not supported" in found["what"]
    assert remedy in found["do"]
    with pytest.raises(CniError, match="another program has changed the table") as refused:
        directories.add("c2", pods[1])
    assert remedy in refused.value.msg
    run("nft", "delete", "table", "inet", "fastcni")
    assert restore(directories.cni.cache).failed == ()
    assert "lost-rules" not in diagnosed(fastcni, "--bin-dir", bin_dir)[1]
    directories.add("c2", pods[1])
    for name, pod in zip(("c1", "c2"), pods, strict=True):
        directories.delete(name, pod)


def test_a_range_that_is_full(directories, fastcni):
    directories.configure({"cniVersion": "1.0.0", "name": "small", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.9.0.0/29"}}]})
    for number in range(2, 7):
        directories.hold(f"10.9.0.{number}", f"c{number}\r\neth0", "small")
    _, found = diagnosed(fastcni)
    assert "range 10.9.0.1-10.9.0.6 of network small is full: 5 of 5" in found["ranges"]["what"]
    assert found["ranges"]["severity"] == ERROR


def test_a_check_that_fails_does_not_end_the_others(node, monkeypatch):
    def fail(_):
        raise OSError(5, "Input/output error")
        yield

    monkeypatch.setitem(CHECKS, "netlink", fail)
    found = diagnose(node({"net.ipv4.ip_forward": "0"}))
    assert any("check netlink" in text for text in found.unseen) and "forwarding" in {it.check for it in found.findings}


def test_text_fits_80_columns(directories, fastcni):
    directories.configure()
    directories.hold("10.88.0.2", "")
    answer = fastcni("doctor", "--socket", "")
    assert answer.status
    assert "why: " in answer.out
    assert "do:  " in answer.out
    folded = [line for line in answer.out.splitlines() if "/" not in line and not line.startswith("  do: ")]
    assert max(map(len, folded)) <= 80, "only commands, which are there to be copied, and paths may be longer"
    assert f"{len(CHECKS)} checks: " in answer.out
