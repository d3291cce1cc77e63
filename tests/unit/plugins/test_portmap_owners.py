"""portmap by nftables: the owner of a port, DEL, CHECK and GC, the cost of a pod, and rejected configurations."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.node import cid_of, elements, rules, run
from lab.portmap_chain import Chain, mapping
from modes import show_wire

from fastcni.spec import version

MAPS = [f"{name}{family}" for name in ("hostports", "hostip-hostports", "hairpins") for family in (4, 6)]


@pytest.fixture
def chain(node):
    return Chain(node, node.conf())


def mapped():
    """Return all elements of pods."""
    ruleset = rules()
    return [element for name in (*MAPS, "hostport-pods") for element in elements(name, ruleset=ruleset)]


def fixed():
    """Return the ruleset as JSON texts, without elements."""
    found = rules()
    for item in found:
        for kind in ("map", "set"):
            item.get(kind, {}).pop("elem", None)
    return [json.dumps(item, sort_keys=True) for item in found]


# -- the owner of a port -----------------------------------------------------------------------------------

@pytest.mark.parametrize("held, wanted, refused", [
    ({}, {}, True),
    ({}, {"protocol": "udp"}, False),
    ({}, {"protocol": "TCP"}, True),
    ({}, {"host_port": 8081}, False),
    ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1"}, True),
    ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, False),
    ({"hostIP": "10.0.0.1"}, {}, True),
    ({}, {"hostIP": "10.0.0.1"}, True),
    ({"hostIP": "10.0.0.1"}, {"hostIP": "0.0.0.0"}, True),
    ({"hostIP": "10.0.0.1"}, {"hostIP": "::"}, False),
    ({"hostIP": "0.0.0.0"}, {"hostIP": "::"}, False),
    ({"hostIP": "::1"}, {"hostIP": "::"}, True),
    ({"hostIP": "fd00::1"}, {"hostIP": "127.0.0.1"}, False),
    ({"hostIP": "::ffff:10.0.0.1"}, {"hostIP": "10.0.0.1"}, True)])
def test_a_port_has_one_owner_for_each_protocol_and_address(chain, node, held, wanted, refused):
    node.add(chain.alone(2, mapping(**held)), "one")
    before = mapped()
    conf = chain.alone(3, mapping(9999), mapping(**wanted))
    if not refused:
        node.add(conf, "two")
        node.delete(conf, "two")
        assert mapped() == before
        return
    error = node.refused("ADD", conf, "two")
    assert error["code"] == 11
    assert "8080/tcp" in error["msg"]
    assert f"is already mapped (net: net-a, if: eth0, id: {cid_of('one')})" in error["msg"]
    assert mapped() == before
    node.delete(conf, "two")
    assert mapped() == before


def test_one_of_many_concurrent_adds_gets_the_port(chain, node):
    """Some ADDs map the port on all addresses, some on one address. Of two ADDs, the second must see the first."""
    for turn in range(10):
        confs = [chain.alone(2 + n, mapping(9000 + n), mapping(hostIP="10.0.0.1" if n % 2 else "")) for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda n: node.call("ADD", confs[n], f"{turn}-{n}"), range(8)))     # noqa: B023
        added = [n for n, reply in enumerate(replies) if reply.status == 0]
        assert len(added) <= 1
        assert all(json.loads(replies[n].stdout)["code"] == 11 for n in {*range(8)} - {*added})
        owned = [name for name in ("hostports4", "hostip-hostports4") for key, _ in elements(name) if key[-1] == 8080]
        assert len(owned) == len(added)
        for n in added:
            node.delete(confs[n], f"{turn}-{n}")
        assert mapped() == []


def test_the_port_of_a_pod_that_another_plugin_deleted_is_free(node, pod_netns):
    """DEL of the reference plugins deletes the link and leaves fastcni's elements. Once, the port stayed with the
    deleted pod."""
    one, two, three = (pod_netns() for _ in range(3))
    chain = Chain(node, node.conf())
    chain.add(one, mapping(), mapping(81), mapping(82, hostIP="10.0.0.1"))
    conf = chain.of(two, mapping(), mapping(82))
    assert cid_of(one) in node.refused("ADD", conf, two)["msg"]         # the owner still has its link
    run("ip", "link", "del", "eth0", netns=one)
    reply = node.call("ADD", conf, two)
    assert reply.status == 0
    assert f"taken over from a pod whose link no longer exists (net: net-a, if: eth0, id: {cid_of(one)})" \
        in reply.stderr.decode()
    assert {key for key, _ in elements("hostports4")} == {("tcp", 8080), ("tcp", 82)}
    assert not elements("hostip-hostports4")
    assert len(elements("hostport-pods")) == 1
    error = node.refused("ADD", chain.of(three, mapping(82, hostIP="10.0.0.2")), three)
    assert cid_of(two) in error["msg"]                                  # the new owner has its link
    node.delete(conf, two)
    assert mapped() == []


@pytest.mark.parametrize("why", ["no link in the result", "a bridge alone", "two links"])
def test_a_pod_that_may_be_alive_keeps_its_port(chain, node, why):
    """The earlier pod's mark does not name its only link. So ADD fails, and the error shows the command that deletes
    the element."""
    run("ip", "link", "add", "br7", "type", "bridge")
    run("ip", "link", "add", "v0", "type", "veth", "peer", "v1")
    named = {"a bridge alone": ["br7"], "two links": ["v0", "v1"]}.get(why, [])
    conf = chain.alone(2, mapping(hostIP="10.0.0.1"))
    conf["prevResult"]["interfaces"] = [{"name": name} for name in named]
    node.add(conf, "one")
    run("ip", "link", "del", "br7")
    run("ip", "link", "del", "v0")
    two = chain.alone(3, mapping())
    error = node.refused("ADD", two, "two")
    command = "nft delete element inet fastcni hostip-hostports4 '{ 10.0.0.1 . tcp . 8080 }'"
    assert error["code"] == 11
    assert error["details"].endswith(command)
    run("sh", "-c", command)
    node.add(two, "two")


def test_port_is_free_again_after_del(chain, node):
    one = chain.alone(2, mapping(), mapping(hostIP="10.0.0.1", host_port=90))
    two = chain.alone(3, mapping(), mapping(90))
    node.add(one, "one")
    node.delete(one, "one")
    node.add(two, "two")
    assert set(elements("hostports4")) == {(("tcp", 8080), ("10.22.0.3", 80)), (("tcp", 90), ("10.22.0.3", 80))}


def test_add_of_the_same_pod_once_more_takes_its_ports_over(chain, node):
    node.add(chain.alone(2, mapping(), mapping(81, 81)), "one")
    node.add(chain.alone(9, mapping(), mapping(82, 82)), "one")
    assert set(elements("hostports4")) == {(("tcp", 8080), ("10.22.0.9", 80)), (("tcp", 82), ("10.22.0.9", 82))}
    node.delete(chain.alone(9, mapping(), mapping(82, 82)), "one")
    assert mapped() == []


@pytest.mark.parametrize("mappings", [
    [{}, {}], [{}, {"hostIP": "10.0.0.1"}], [{"hostIP": "::"}, {}], [{"range": 10}, {"host_port": 8089}],
    [{"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1", "container_port": 81}]])
def test_one_port_twice_in_a_request_is_refused(chain, node, mappings):
    error = node.refused("ADD", chain.alone(2, *(mapping(**keys) for keys in mappings)), "one")
    assert error["code"] == 7
    assert "is mapped twice" in error["msg"]
    assert "/tcp" in error["msg"]
    assert run("nft", "list", "tables") == ""


# -- DEL, CHECK, GC ----------------------------------------------------------------------------------------

FOUR = [mapping(8080 + n, 80 + n, hostIP=host_ip, protocol=protocol)
        for n, (host_ip, protocol) in enumerate([("", "tcp"), ("", "udp"), ("10.0.0.1", "tcp"), ("fd00::1", "sctp")])]


@pytest.mark.parametrize("known", ["all", "no mappings", "no prevResult", "neither", "another snat", "fewer",
                                   "what is refused"])
def test_del_deletes_only_the_pods_elements(chain, node, known):
    conf, other = chain.alone(2, *FOUR), chain.alone(3, mapping(90), mapping(91, hostIP="10.0.0.1"))
    node.add(other, "other")
    before = mapped()
    node.add(conf, "pod")
    assert len(mapped()) == len(before) + 2 + 2 + 1 + 1 + 6 + 1
    lacks = {"no mappings": ["runtimeConfig"], "no prevResult": ["prevResult"],
             "neither": ["runtimeConfig", "prevResult"]}.get(known, [])
    conf = {key: value for key, value in conf.items() if key not in lacks}
    if known == "another snat":
        conf["snat"] = False
    elif known == "fewer":
        conf["runtimeConfig"] = {"portMappings": FOUR[1:]}
    elif known == "what is refused":
        conf["runtimeConfig"] = {"portMappings": [mapping(0)]}
    node.delete(conf, "pod")
    assert mapped() == before
    node.delete(conf, "pod")
    assert mapped() == before


def test_each_attachment_has_separate_elements(chain, node):
    """One container has attachments on two networks, and two attachments on one network."""
    confs = [(chain.alone(2, mapping(81)), "eth0"), (chain.alone(3, mapping(82)), "eth1"),
             ({**chain.alone(4, mapping(83)), "name": "net-b"}, "eth0")]
    for conf, ifname in confs:
        node.add(conf, "pod", ifname=ifname)
    for at, (conf, ifname) in enumerate(confs):
        assert [key for key, _ in elements("hostports4")] == [("tcp", 81 + n) for n in range(at, 3)]
        node.delete({**conf, "runtimeConfig": {}}, "pod", ifname=ifname)
    assert mapped() == []


def test_gc_deletes_elements_of_its_network_without_a_valid_attachment(chain, node):
    for number in (2, 3):
        node.add(chain.alone(number, mapping(8000 + number)), f"pod-{number}")
    node.add({**chain.alone(0x104, mapping(8004)), "name": "net-b"}, "pod-4")
    valid = [{"containerID": cid_of("pod-3"), "ifname": "eth0"}]
    node.ok("GC", {**chain.conf, "cni.dev/valid-attachments": valid})
    assert [key for key, _ in elements("hostports4")] == [("tcp", 8003), ("tcp", 8004)]
    node.ok("GC", {**chain.conf, "cni.dev/valid-attachments": []})
    node.ok("GC", {**chain.conf, "name": "net-b", "cni.dev/valid-attachments": []})
    assert mapped() == []
    assert "hostport-from" not in run("nft", "list", "ruleset")


def test_check_names_the_missing_rule(chain, node):
    conf = chain.alone(2, *FOUR)
    node.add(conf, "pod")
    result = conf["prevResult"]
    node.check(conf, "pod", result)
    assert node.check_refused(conf, "other", result) != ""
    run("nft", "delete", "element", "inet", "fastcni", "hostip-hostports4", "{ 10.0.0.1 . tcp . 8082 }")
    assert node.check_refused(conf, "pod", result) == "host port 10.0.0.1:8082/tcp is not mapped"
    node.add(conf, "pod")
    run("nft", "flush", "set", "inet", "fastcni", "hairpins6")
    assert node.check_refused(conf, "pod", result) == "hairpins6 lacks the pod"
    node.add(conf, "pod")
    run("nft", "flush", "chain", "inet", "fastcni", "hostports")
    assert node.check_refused(conf, "pod", result) == "hostports has no rules, or its table is dormant"
    node.add(conf, "pod")
    node.check(conf, "pod", result)
    assert node.refused("CHECK", chain.portmap(mapping()), "pod")["msg"] == "Required prevResult missing"


@pytest.mark.parametrize("how", [("flush", "ruleset"), ("delete", "table", "inet", "fastcni"),
                                 ("flush", "table", "inet", "fastcni"),
                                 ("flush", "chain", "inet", "fastcni", "hostports"),
                                 ("flush", "chain", "inet", "fastcni", "hostport-postrouting"),
                                 ("flush", "chain", "inet", "fastcni", "hostport-output"),
                                 ("flush", "map", "inet", "fastcni", "hostports4")], ids=" ".join)
def test_the_next_pod_adds_flushed_rules_again(chain, node, how):
    node.add(chain.alone(2, mapping(81)), "one")
    before = fixed()
    run("nft", *how)
    node.add(chain.alone(3, mapping(82)), "two")
    assert sorted(fixed()) == sorted(before)
    assert (("tcp", 82), ("10.22.0.3", 80)) in elements("hostports4")
    for number, name in ((2, "one"), (3, "two")):
        node.delete(chain.alone(number, mapping(79 + number)), name)
    assert mapped() == []


def test_subnets_chain_that_was_flushed_is_filled_by_a_pod_of_another_subnet(chain, node):
    node.add(chain.alone(2, mapping(81)), "one")
    before = [rule for rule in fixed() if "hostport-from-10.22" in rule]
    run("nft", "flush", "table", "inet", "fastcni")
    other = chain.portmap(mapping(82), prevResult={"cniVersion": "1.1.0", "ips": [{"address": "10.99.0.2/24"}]})
    node.add(other, "two")
    assert [rule for rule in fixed() if "hostport-from-10.22" in rule] == before


REFERENCE = """
table ip cni_hostport {
    chain hostports {
        tcp dport 8080 dnat to 10.22.0.2:80 comment "%s"
        tcp dport 81 dnat to 10.22.0.3:80 comment "b"
    }
    chain hostip_hostports { ip daddr 10.0.0.1 tcp dport 82 dnat to 10.22.0.2:80 comment "%s"\n }
    chain masquerading { ip saddr 10.22.0.2 ip daddr 10.22.0.2 masquerade comment "%s"\n }
}
table ip6 cni_hostport { chain hostports { tcp dport 8080 dnat to [fd00::2]:80 comment "%s"\n }
}
"""


def test_del_removes_rules_of_the_references_nftables_backend(chain, node):
    cid = cid_of("pod")
    run("nft", "-f", "-", stdin=REFERENCE % (cid, cid, cid, cid))
    node.delete(chain.portmap(), "pod")
    assert [item["rule"]["comment"] for item in rules() if "rule" in item] == ["b"]


# -- cost --------------------------------------------------------------------------------------------------

class Wire:
    """A counter of netlink messages and bytes that are sent and received within its block."""

    def __init__(self, monkeypatch):
        self.monkeypatch, self.sent, self.received = monkeypatch, [], []

    def __enter__(self):
        show_wire(self.monkeypatch, lambda way, data: (self.sent if way == ">" else self.received).append(
            len(data)))
        return self

    def __exit__(self, *_):
        show_wire(self.monkeypatch, None)

    @property
    def cost(self):
        return len(self.sent), sum(self.sent), len(self.received), sum(self.received)


@pytest.mark.parametrize("host_ip", ["", "10.0.0.1"], ids=["every address", "one address"])
def test_cost_of_a_pod_does_not_depend_on_a_thousand_others(chain, node, monkeypatch, host_ip):
    def cost(number):
        """Return the costs of a pod's ADD, of its DEL, and of a DEL without mappings."""
        found = []
        for command, conf in (("ADD", chain.alone(number, *ports)), ("DEL", chain.alone(number, *ports)),
                              ("DEL", chain.alone(number))):
            with Wire(monkeypatch) as counted:
                node.ok(command, conf, f"pod-{number}", cid=f"cid-{number:04}")
            found.append(counted.cost)
        return found

    ports = [mapping(1 + n, 80 + n, hostIP=host_ip) for n in range(4)]
    node.add(chain.alone(2, mapping(60000, hostIP=host_ip)), "first", cid="cid-0002")      # this ADD creates the table
    alone, before = cost(5000), fixed()
    for pod in range(1000):
        more = [mapping(10 + 4 * pod + n, 80 + n, hostIP=host_ip) for n in range(4)]
        node.add(chain.alone(100 + pod, *more), f"pod-{pod}", cid=f"cid-{pod + 100:04}")
    assert cost(5000) == alone
    assert fixed() == before
    assert len(elements("hostports4" if not host_ip else "hostip-hostports4")) == 4001
    print(f"(sends, bytes, answers, bytes) of ADD, DEL, DEL without mappings: {alone}")


def test_one_transaction_adds_or_deletes_all_ports_of_a_pod(chain, node, monkeypatch):
    conf = chain.alone(2, *(mapping(1000 + n) for n in range(32)))
    node.add(chain.alone(3, mapping(81)), "other")
    begins = []
    show_wire(monkeypatch, lambda way, data: begins.append(data[4:6]) if way == ">" else None)
    node.add(conf, "pod")
    assert begins.count(b"\x10\0") == 1
    begins.clear()
    node.delete(conf, "pod")
    assert begins.count(b"\x10\0") == 1


def test_thousands_of_ports_take_several_transactions(chain, node):
    conf = chain.alone(2, mapping(10000, 10000, range=2000))
    node.add(conf, "pod")
    assert len(elements("hostports4")) == len(elements("hostports6")) == 2000
    node.delete(conf, "pod")
    assert mapped() == []


def test_nft_reads_its_output_of_the_ruleset(chain, node):
    node.add(chain.alone(2, *FOUR), "pod")
    run("nft", "-c", "-f", "-", stdin=run("nft", "list", "ruleset"))


# -- configuration -----------------------------------------------------------------------------------------

BAD = {
    "port 0": ({"hostPort": 0}, 7, "failed to parse config: Invalid host port number: 0"),
    "no containerPort": ({"containerPort": None}, 7, "failed to parse config: Invalid container port number: 0"),
    "port too high": ({"hostPort": 65536}, 7, "Invalid host port number: 65536"),
    "negative port": ({"containerPort": -1}, 7, "Invalid container port number: -1"),
    "port as text": ({"hostPort": "80"}, 7,
                     'runtimeConfig.portMappings[0].hostPort: expected an integer, got string "80"'),
    "unknown protocol": ({"protocol": "icmp"}, 7, 'protocol: unknown protocol "icmp"; there are tcp, udp, sctp'),
    "no protocol": ({"protocol": None}, 7, 'unknown protocol ""; there are tcp, udp, sctp'),
    "hostIP": ({"hostIP": "localhost"}, 7, "hostIP: invalid IP address: localhost"),
    "range past the end": ({"hostPort": 65530, "range": 7}, 7, "range: expected an integer from 1 up to 6"),
    "range of nothing": ({"range": 0}, 7, "range: expected an integer from 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_mapping_is_refused_with_key_and_value(chain, node, what):
    keys, code, msg = BAD[what]
    error = node.refused("ADD", chain.alone(2, {**mapping(), **keys}), "pod")
    assert error["code"] == code, error
    assert msg in error["msg"], error
    assert node.refused("CHECK", chain.alone(2, {**mapping(), **keys}), "pod")["msg"].startswith("failed") is \
        ("load netconf" in error["msg"])
    assert run("nft", "list", "tables") == ""
    node.delete(chain.alone(2, {**mapping(), **keys}), "pod")


BAD_KEYS = {
    "backend": ({"backend": "pf"}, 7, 'unrecognized backend "pf"'),
    "mark bit": ({"markMasqBit": 32}, 7, "MasqMarkBit must be between 0 and 31"),
    "both marks": ({"markMasqBit": 3, "externalSetMarkChain": "X"}, 7,
                   "Cannot specify externalSetMarkChain and markMasqBit"),
    "chain with nftables": ({"backend": "nftables", "externalSetMarkChain": "X", "conditionsV6": ["-s", "fd00::/8"]}, 7,
                            "nftables backend was requested but configuration contains iptables-specific options "
                            "[externalSetMarkChain conditionsV6]"),
    "conditions of the other": ({"backend": "iptables", "conditionsV4": ["ip", "saddr", "10.0.0.0/8"]}, 7,
                                "iptables backend was requested but configuration contains nftables-specific options "
                                "[conditionsV4]"),
    "conditions of nft": ({"conditionsV4": ["ip", "saddr", "10.0.0.0/8"]}, 2,
                          'conditionsV4 list ["ip","saddr","10.0.0.0/8"] cannot be used with the nftables backend'),
    "conditions, no list": ({"conditionsV4": "-s"}, 7, "conditionsV4: expected a list"),
    "snat": ({"snat": "yes"}, 7, "snat: expected true or false"),
    "mappings, no list": ({"runtimeConfig": {"portMappings": {}}}, 7, "portMappings: expected a list"),
}


@pytest.mark.parametrize("what", BAD_KEYS)
def test_bad_key_is_refused(chain, node, what):
    keys, code, msg = BAD_KEYS[what]
    error = node.refused("ADD", {**chain.alone(2, mapping()), **keys}, "pod")
    assert error["code"] == code
    assert error["msg"].startswith("failed to parse config: ")
    assert msg in error["msg"]
    assert run("nft", "list", "tables") == ""


def test_portmap_must_be_chained(chain, node):
    for mappings in ([], [mapping()]):
        error = node.refused("ADD", chain.portmap(*mappings), "pod")
        assert (error["code"], error["msg"]) == (7, "must be called as chained plugin")


@pytest.mark.parametrize("number", version.ALL)
def test_add_check_and_del_at_every_version(chain, node, number):
    old = number in ("0.1.0", "0.2.0")
    result = ({"ip4": {"ip": "10.22.0.2/24"}, "ip6": {"ip": "fd00:22::2/64"}, "dns": {}} if old else {"ips": [
        {"address": "10.22.0.2/24", **({} if number >= "1" else {"version": "4"})},
        {"address": "fd00:22::2/64", **({} if number >= "1" else {"version": "6"})}]})
    conf = {**chain.portmap(mapping()), "cniVersion": number, "prevResult": {"cniVersion": number, **result}}
    answer = node.add(conf, "pod")
    assert {key: answer[key] for key in result} == result
    assert answer["cniVersion"] == number
    assert len(elements("hostports4")) == len(elements("hostports6")) == 1
    if number >= "0.4.0":
        node.ok("CHECK", conf, "pod")
    node.delete(conf, "pod")
    assert mapped() == []


def test_status_changes_nothing(chain, node):
    node.ok("STATUS", chain.conf)
    assert run("nft", "list", "tables") == ""
