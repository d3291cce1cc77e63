"""portmap by iptables: the reference plugin's chains, one read and one change per address family, and mapped
traffic."""

import os
import shutil

import pytest
from lab.node import cid_of, elements, run, set_sysctl, sysctl
from lab.portmap_chain import BRIDGE, DUAL, EXTERNAL, NODE, Chain, mapping
from lab.traffic import ask, listen

pytestmark = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")
FAMILIES = pytest.mark.parametrize("family", [4, 6])
OWN = "CNI-DN-e8f6f419596f7f47b3468"            # the chain of network net1 and container cid1
COMMENT = '-m comment --comment "dnat name: \\"net1\\" id: \\"cid1\\""'
SHARED = ["-N CNI-HOSTPORT-DNAT", "-N CNI-HOSTPORT-MASQ", "-N CNI-HOSTPORT-SETMARK",
          "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
          "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
          '-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ',
          "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
          '-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK '
          "--set-xmark 0x2000/0x2000"]


@pytest.fixture
def chain(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, hairpinMode=True, name="net1"), backend="iptables")


def nat(program="iptables"):
    """Return the nat table's rules and user-defined chains, as `iptables -S` prints them."""
    return [line for line in run(program, "-t", "nat", "-S").splitlines() if not line.startswith("-P")]


def own(program="iptables"):
    """Return the rules that pods do not share."""
    return [line for line in nat(program) if line not in SHARED]


@FAMILIES
def test_all_clients_reach_the_pod(chain, pod, pod_netns, external, family):
    other = pod_netns()
    conf = chain.add(pod, mapping(), mapping(8080, 80, "udp"))
    chain.add(other)
    with listen(pod, 80), listen(pod, 80, "udp"):
        assert ask(external, NODE[family], 8080) == EXTERNAL[family]
        assert ask(external, NODE[family], 8080, "udp") == EXTERNAL[family]
        assert ask(None, NODE[family], 8080) == NODE[family]
        assert ask(pod, NODE[family], 8080) == ask(other, NODE[family], 8080) == BRIDGE[family]
        if family == 4:
            assert ask(None, "127.0.0.1", 8080) == BRIDGE[4]
        chain.node.delete(conf, pod)
        assert ask(external, NODE[family], 8080, wait=0.3) is None
    assert own() == own("ip6tables") == []
    assert elements("hostports4") == []


def test_chains_and_rules_are_those_of_the_reference(chain, node):
    ports = [mapping(), mapping(8081, 81, "udp", hostIP="10.0.0.1"), mapping(8082, 82, hostIP="::")]
    conf = chain.alone(2, *ports)
    node.add(conf, "pod", cid="cid1")
    assert sorted(nat()) == sorted([
        *SHARED, f"-N {OWN}",
        f"-A CNI-HOSTPORT-DNAT -p tcp {COMMENT} -m multiport --dports 8080,8082 -j {OWN}",
        f"-A CNI-HOSTPORT-DNAT -p udp {COMMENT} -m multiport --dports 8081 -j {OWN}",
        f"-A {OWN} -s 10.22.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80",
        f"-A {OWN} -s 10.22.0.0/16 -d 10.0.0.1/32 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -s 127.0.0.1/32 -d 10.0.0.1/32 -p udp -m udp --dport 8081 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -d 10.0.0.1/32 -p udp -m udp --dport 8081 -j DNAT --to-destination 10.22.0.2:81"])
    assert [line for line in nat("ip6tables") if line.startswith(f"-A {OWN}")] == [
        f"-A {OWN} -s fd00:22::/64 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -p tcp -m tcp --dport 8080 -j DNAT --to-destination [fd00:22::2]:80",
        f"-A {OWN} -s fd00:22::/64 -p tcp -m tcp --dport 8082 -j CNI-HOSTPORT-SETMARK",
        f"-A {OWN} -p tcp -m tcp --dport 8082 -j DNAT --to-destination [fd00:22::2]:82"]
    node.check(conf, "pod", conf["prevResult"], cid="cid1")
    for _ in range(2):
        node.delete(conf, "pod", cid="cid1")
        assert sorted(nat()) == sorted(nat("ip6tables")) == sorted(SHARED)


@pytest.mark.parametrize("keys, there, not_there", [
    ({"snat": False}, [f"-A {OWN} -p tcp"], ["SETMARK", "MASQ"]),
    ({"masqAll": True}, [f"-A {OWN} -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"], ["-s 10.22", "-s 127"]),
    ({"markMasqBit": 0}, ["--mark 0x1/0x1 -j MASQUERADE", "--set-xmark 0x1/0x1"], ["0x2000"]),
    ({"externalSetMarkChain": "KUBE-MARK-MASQ"}, ["--dport 8080 -j KUBE-MARK-MASQ"], ["SETMARK", "CNI-HOSTPORT-MASQ"]),
    ({"conditionsV4": ["!", "-s", "192.0.2.0/24", "-m", "comment", "--comment", 'a "b c'], "conditionsV6": []},
     ["! -s 192.0.2.0/24", r'--comment "a \"b c"'], [])], ids=lambda value: str(next(iter(value), "")))
def test_keys(chain, node, keys, there, not_there):
    if "externalSetMarkChain" in keys:
        run("iptables", "-t", "nat", "-N", "KUBE-MARK-MASQ")
        run("ip6tables", "-t", "nat", "-N", "KUBE-MARK-MASQ")
    node.add(chain.alone(2, mapping(), **keys), "pod", cid="cid1")
    text = "\n".join(nat())
    assert [rule for rule in there if rule not in text] == []
    assert [rule for rule in not_there if rule in text] == []


def test_backend_is_the_one_that_the_keys_are_written_for(chain, node):
    del chain.conf["backend"]
    node.add(chain.alone(2, mapping(), conditionsV4=["-s", "192.0.2.0/24"]), "pod", cid="cid1")
    assert elements("hostports4") == []
    assert "-s 192.0.2.0/24" in "\n".join(own())


def test_two_networks_can_have_different_marks(chain, node):
    node.add(chain.alone(2, mapping()), "pod", cid="cid1")
    node.add(chain.alone(3, mapping(81), markMasqBit=5), "two")
    assert sum("-j MASQUERADE" in line for line in nat()) == 2
    before = nat()
    node.add(chain.alone(4, mapping(82), markMasqBit=5), "three")
    assert [line for line in nat() if "HOSTPORT-MASQ" in line] == [line for line in before if "HOSTPORT-MASQ" in line]


def test_a_condition_cannot_add_a_command(chain, node):
    conf = chain.alone(2, mapping(), conditionsV4=["-s", "10.0.0.0/8\n-A PREROUTING -j DROP"])
    assert node.refused("ADD", conf, "pod")["code"] == 7
    assert own() == []


@pytest.mark.parametrize("chain_name", ["A\nB", "A B", "-A", 'A"', "x" * 29])
def test_an_invalid_chain_name_is_refused(chain, node, chain_name):
    error = node.refused("ADD", chain.alone(2, mapping(), externalSetMarkChain=chain_name), "pod")
    assert error["code"] == 7
    assert "externalSetMarkChain" in error["msg"]


def test_more_ports_than_one_rule_takes(chain, node):
    node.add(chain.alone(2, mapping(9000, 7000, range=40)), "pod", cid="cid1")
    entries = [line for line in nat() if "multiport" in line]
    assert [line.count(",") + 1 for line in entries] == [15, 15, 10]
    assert "9039" in entries[-1]


@pytest.mark.parametrize("held, wanted, refused", [
    ({}, {}, True), ({}, {"protocol": "udp"}, False), ({}, {"host_port": 8081}, False),
    ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1"}, True), ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, False),
    ({"hostIP": "10.0.0.1"}, {}, True), ({}, {"hostIP": "10.0.0.1"}, True),
    ({"hostIP": "0.0.0.0"}, {"hostIP": "::"}, False)])
def test_a_port_has_one_owner_for_each_protocol_and_address(chain, node, held, wanted, refused):
    node.add(chain.alone(2, mapping(**held)), "one")
    before = nat(), nat("ip6tables")
    conf = chain.alone(3, mapping(9999), mapping(**wanted))
    if refused:
        error = node.refused("ADD", conf, "two")
        assert error["code"] == 11
        assert "8080/tcp is already mapped" in error["msg"]
        assert f'(name: "net1" id: "{cid_of("one")}")' in error["msg"]
    else:
        node.add(conf, "two")
        node.delete(conf, "two")
    assert (nat(), nat("ip6tables")) == before


def test_a_repeated_add_replaces_the_rules(chain, node):
    node.add(chain.alone(2, mapping(), mapping(81)), "pod", cid="cid1")
    node.add(chain.alone(9, mapping()), "pod", cid="cid1")
    assert [line.split()[-1] for line in nat() if "-j DNAT" in line] == ["10.22.0.9:80"]
    assert sum("multiport" in line for line in nat()) == 1


@pytest.mark.parametrize("lacks", ["runtimeConfig", "prevResult", "backend"])
def test_del_succeeds_without_any_one_key(chain, node, lacks):
    conf = chain.alone(2, mapping())
    node.add(conf, "pod")
    node.delete({key: conf[key] for key in conf if key != lacks}, "pod")
    assert own() == own("ip6tables") == []


def test_check_and_del_find_pods_of_both_backends_whatever_the_configuration(chain, node):
    one, two = chain.alone(2, mapping(81)), chain.alone(3, mapping(82), backend="nftables")
    node.add(one, "one")
    node.add(two, "two")
    node.check({**one, "backend": "nftables"}, "one", one["prevResult"])
    node.delete({**one, "backend": "nftables"}, "one")
    node.delete({**two, "backend": "iptables"}, "two")
    assert own() == own("ip6tables") == []
    assert elements("hostports4") == []


def test_check_names_the_missing_rule(chain, node):
    conf = chain.alone(2, mapping())
    node.add(conf, "pod", cid="cid1")
    run("iptables", "-t", "nat", "-D", OWN, "3")
    assert node.check_refused(conf, "pod", conf["prevResult"], cid="cid1") == \
        f"could not check ipv4 dnat: rule -A {OWN} -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80 " \
        f"in chain {OWN} not found in table nat"
    run("iptables", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT")
    run("iptables", "-t", "nat", "-X", OWN, check=False)
    node.add(conf, "pod", cid="cid1")
    run("ip6tables", "-t", "nat", "-F")
    run("ip6tables", "-t", "nat", "-X", OWN)
    assert node.check_refused(conf, "pod", conf["prevResult"], cid="cid1") == \
        f"could not check ipv6 dnat: chain {OWN} not found in iptables table nat"


def test_gc_deletes_chains_of_containers_that_are_gone(chain, node):
    for number in (2, 3):
        node.add(chain.alone(number, mapping(8000 + number)), f"pod-{number}")
    node.add({**chain.alone(4, mapping(8004)), "name": "net-b"}, "pod-4")
    valid = [{"containerID": cid_of("pod-3"), "ifname": "eth0"}]
    report = node.ok("GC", {**chain.conf, "cni.dev/valid-attachments": valid, "fastcni/report": True})
    assert [each["what"].partition("-DN-")[0] for each in report["released"]] == [
        "iptables chain CNI", "ip6tables chain CNI"]
    assert sorted(line.split()[-1] for line in nat() if "-j DNAT" in line) == ["10.22.0.3:80", "10.22.0.4:80"]


def test_del_removes_the_old_snat_chain(chain, node):
    conf = chain.alone(2, mapping())
    node.add(conf, "pod", cid="cid1")
    old = OWN.replace("DN", "SN")
    for command in ("-N CNI-HOSTPORT-SNAT", f"-N {old}", f"-A CNI-HOSTPORT-SNAT -j {old}", f"-A {old} -j ACCEPT"):
        run("iptables", "-t", "nat", *command.split())
    node.delete(conf, "pod", cid="cid1")
    assert own() == ["-N CNI-HOSTPORT-SNAT"]


def test_long_comment_is_cut_to_the_limit_of_iptables(chain, node):
    conf, cid = chain.alone(2, mapping()), "c" * 300
    node.add(conf, "pod", cid=cid)
    assert 'ccc..."' in "\n".join(nat())
    node.delete(conf, "pod", cid=cid)
    assert own() == []


class Counted:
    """Wrappers of the iptables programs, first in PATH, that record each run."""

    def __init__(self, directory):
        self.log, self.env = directory / "log", {"PATH": f"{directory}:{os.environ['PATH']}"}
        for family in ("iptables", "ip6tables"):
            for kind in ("save", "restore"):
                program = directory / f"{family}-{kind}"
                program.write_text(f"#!/bin/sh\necho {program.name} >> {self.log}\n"
                                   f'exec {shutil.which(program.name)} "$@"\n')
                program.chmod(0o755)

    def runs(self):
        found = self.log.read_text().split() if self.log.exists() else []
        self.log.write_text("")
        return found


def test_each_family_takes_one_read_and_one_change(chain, node, tmp_path):
    counted, conf = Counted(tmp_path), chain.alone(2, *(mapping(1 + n) for n in range(40)))
    each = ["iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"]
    for command in ("ADD", "DEL"):
        node.ok(command, conf, "pod", env=counted.env)
        assert counted.runs() == each
    node.ok("DEL", conf, "pod", env=counted.env)
    assert counted.runs() == []


@pytest.mark.skipif(not shutil.which("iptables-legacy"), reason="needs iptables-legacy (Debian: iptables)")
def test_del_runs_a_program_only_if_the_legacy_table_has_the_chain_of_the_pod(chain, node, tmp_path):
    """Once, if the legacy table nat existed, DEL of each pod with mappings ran iptables-save twice."""
    counted, conf = Counted(tmp_path), chain.portmap(mapping(), backend="nftables")
    run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", OWN, "-j", "MASQUERADE")
    node.ok("DEL", conf, "pod", cid="cid1", env=counted.env)
    assert counted.runs() == []
    run("iptables-legacy", "-t", "nat", "-N", OWN)
    node.ok("DEL", conf, "pod", cid="cid1", env=counted.env)
    assert counted.runs() == ["iptables-save", "ip6tables-save"]
    node.ok("DEL", chain.portmap(backend="nftables"), "pod", cid="cid1", env=counted.env)  # this DEL has no mappings
    assert counted.runs() == []


def test_a_change_is_tried_again_after_a_concurrent_change(chain, node, tmp_path):
    """Two first pods create the shared chains at the same time. The second pod's change fails, because the chains
    exist."""
    counted = Counted(tmp_path)
    restore = tmp_path / "iptables-restore"
    restore.write_text(restore.read_text().replace("exec", f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; "
                                                   "iptables -t nat -N CNI-HOSTPORT-DNAT; }\nexec"))
    node.add(chain.alone(2, mapping()), "pod", cid="cid1", env=counted.env)
    assert counted.runs().count("iptables-restore") == 2
    assert sum("-j DNAT" in line for line in nat()) == 1


def test_the_error_contains_the_output_of_iptables_and_nothing_is_left(chain, node, tmp_path):
    broken = tmp_path / "ip6tables-restore"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 4\n")
    broken.chmod(0o755)
    error = node.refused("ADD", chain.alone(2, mapping()), "pod", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert error["msg"] == "running ip6tables-restore: exit status 4: no such luck"
    assert own() == own("ip6tables") == []


def test_missing_program_is_an_error_and_status_warns_of_it(chain, node):
    error = node.refused("ADD", chain.alone(2, mapping()), "pod", env={"PATH": "/nowhere"})
    assert "failed to locate iptables" in error["msg"]
    assert "backend" in error["details"]
    reply = node.call("STATUS", chain.conf, env={"PATH": "/nowhere"})
    assert reply.status == 0
    assert b"neither iptables nor ip6tables is usable" in reply.stderr
    assert node.call("STATUS", chain.conf).stderr == b""


def test_route_localnet_has_its_guard_with_this_backend_too(chain, pod):
    chain.add(pod, mapping())
    assert sysctl("net/ipv4/conf/br0/route_localnet") == "1"
    assert 'iif != "lo" ip daddr 127.0.0.0/8 drop' in run("nft", "list", "chain", "inet", "fastcni", "loopback")
