"""portmap of both implementations: the same packets get through, with the same addresses. With iptables the rules are
the same, and each implementation deletes the other's iptables rules.

Go 1.1.1 lacks masqAll, and its CHECK searches the IPv6 chain for IPv4 rules.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.traffic import ask, listen
from side_by_side.sides import at_once, seen_at_each_delete
from side_by_side.stories import DEFAULT4, DEFAULT6, V4, V6, bridge, ptp
from side_by_side.test_across import Handover
from side_by_side.test_masquerade import NODE, add_external, saved

pytestmark = pytest.mark.skipif(not (shutil.which("iptables-save") and shutil.which("ip6tables-save")),
                                reason="needs iptables: the Go plugin of this version has no other backend")
WAIT = 2                        # seconds for an answer: time for one more SYN
LONG_ENOUGH = 0.5               # seconds to wait for an event that must not happen
FIRST = {"bridge": bridge(V4, V6, isDefaultGateway=True, hairpinMode=True),
         "ptp": ptp(V4, V6, routes=[DEFAULT4, DEFAULT6])}
PORTS = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
         {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
         {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": NODE[4]},
         {"hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": NODE[6]},
         {"hostPort": 8083, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"}]


def portmap(*ports, **keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "portmap", "runtimeConfig": {"portMappings": [*ports]},
            **keys}


def add(side, first, *confs):
    """Add a pod for each configuration of portmap. Return [(pod, configuration with prevResult)]."""
    found = []
    for i, conf in enumerate(confs):
        pod = side.pod(quick_dad=True)
        conf = {**conf, "prevResult": side.add(first, pod, cid=f"pod-{i}")}
        assert side.add(conf, pod, cid=f"pod-{i}") == conf["prevResult"]
        found.append((pod, conf))
    return found


def name_of(pod):
    return pod.rpartition("/")[2]


@pytest.mark.parametrize("keys", [{}, {"snat": False}], ids=["plain", "snat false"])
@pytest.mark.parametrize("backend", ["nftables", "iptables"])
@pytest.mark.parametrize("first", FIRST)
def test_the_same_packets_get_through(first, backend, keys, three_sides):
    def story(side):
        external = add_external(side)
        (pod, conf), (other, _) = add(side, FIRST[first], portmap(*PORTS, **keys, backend=backend), portmap())
        clients = {"outside": external, "the host": side.host, "the pod": name_of(pod), "another pod": name_of(other)}

        def seen(wait):
            asked = [(client, NODE[family], *port) for client in clients for family in (4, 6) for port in (
                (8080, "tcp"), (5353, "udp"), (8081, "tcp"), (8082, "tcp"), (8083, "tcp"))]
            asked += [("the host", "127.0.0.1", 8080, "tcp"), ("outside", NODE[4], 80, "tcp")]
            with ThreadPoolExecutor(len(asked)) as pool:     # in threads, because a client without an answer waits
                answers = pool.map(lambda it: ask(clients[it[0]], *it[1:], wait=wait), asked)
            return dict(zip(asked, answers, strict=True))

        ask(external, NODE[6], 8080, wait=2)             # so that neighbour discovery is complete
        with listen(name_of(pod), 80), listen(name_of(pod), 53, "udp"):
            before = seen(WAIT)
            if side.name != "go":
                side.check(conf, pod, conf["prevResult"], cid="pod-0")
            side.delete(conf, pod, cid="pod-0")
            return before, seen(LONG_ENOUGH)

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert go[0]["outside", NODE[4], 8080, "tcp"]
    assert go[0]["outside", NODE[6], 5353, "udp"]
    assert not any(go[1].values())


@pytest.mark.parametrize("keys", [
    {}, {"snat": False}, {"markMasqBit": 7}, {"externalSetMarkChain": "MINE"},
    {"conditionsV4": ["!", "-d", "192.0.2.0/24"], "conditionsV6": ["!", "-d", "2001:db8:9::/64"]}], ids=str)
def test_the_iptables_backend_adds_and_deletes_the_rules_of_go(keys, three_sides):
    many = [{"hostPort": 9000 + n, "containerPort": 80, "protocol": "tcp"} for n in range(20)]

    def story(side):
        for program in ("iptables", "ip6tables"):
            side.on_host(program, "-t", "nat", "-N", "MINE")
        pods = add(side, FIRST["bridge"], portmap(*PORTS, **keys, backend="iptables"),
                   portmap(*many, **keys, backend="iptables"))
        return seen_at_each_delete(side, pods, saved)

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go
    assert len(go[0]) > len(go[1]) > len(go[2]) > 8
    assert not any("CNI-DN" in line for line in go[2])


@pytest.mark.parametrize("later", ["iptables", None])
def test_fastcni_checks_and_deletes_mappings_of_go(later, sides):
    fastcni, go = sides
    (pod, conf), = add(go, FIRST["bridge"], portmap(*PORTS))
    handover = Handover(go, fastcni)
    now = {**conf, "backend": later} if later else {key: conf[key] for key in conf if key != "runtimeConfig"}
    for command, asked in (("CHECK", {**conf, **now}), ("DEL", now), ("DEL", now)):
        answer = handover.by_second(command, asked, pod, cid="pod-0")
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert not any("CNI-DN" in line for line in saved(go))


def test_go_deletes_iptables_mappings_of_fastcni(sides):
    fastcni, go = sides
    (pod, conf), = add(fastcni, FIRST["bridge"], portmap(*PORTS, backend="iptables"))
    handover = Handover(fastcni, go)
    for _ in range(2):
        answer = handover.by_second("DEL", conf, pod, cid="pod-0")
        assert (answer.status, answer.stdout) == (0, ""), str(answer)
    assert not any("CNI-DN" in line for line in saved(fastcni))


BAD = {
    "host port 0": [{**PORTS[0], "hostPort": 0}],
    "both ports 0": [{**PORTS[0], "hostPort": 0, "containerPort": 0}],
    "mark bit": {"markMasqBit": 32},
    "two marks": {"markMasqBit": 3, "externalSetMarkChain": "X"},
    "no prevResult": {"prevResult": None},
    "no prevResult and no mappings": {"prevResult": None, "runtimeConfig": None},
}


@pytest.mark.parametrize("first", FIRST)
def test_a_host_port_is_free_after_go_has_deleted_its_pod(first, sides):
    """Go deletes a pod that fastcni added, but not fastcni's nftables elements. No further DEL follows, so the port was
    never free again."""
    fastcni, go = sides
    handover, conf = Handover(fastcni, go), portmap(PORTS[0])
    (pod, gone), = add(fastcni, FIRST[first], conf)
    for each in (gone, {**FIRST[first], "prevResult": gone["prevResult"]}):
        answer = handover.by_second("DEL", each, pod, cid="pod-0")
        assert answer.status == 0, str(answer)
    other = fastcni.pod(quick_dad=True)
    conf = {**conf, "prevResult": fastcni.add(FIRST[first], other, cid="pod-1")}
    assert fastcni.add(conf, other, cid="pod-1") == conf["prevResult"]
    with listen(name_of(other), 80):
        assert ask(fastcni.host, "127.0.0.1", 8080)


@pytest.mark.parametrize("what", BAD)
def test_both_refuse_with_the_same_text(what, three_sides):
    bad = BAD[what]
    conf = {**portmap(*(bad if isinstance(bad, list) else PORTS)), "prevResult": {"cniVersion": "1.0.0"},
            **(bad if isinstance(bad, dict) else {})}
    answers = at_once(lambda side: side.call("ADD", conf, side.pod()), three_sides)
    assert [answer.status for answer in answers] == [1, 1, 1]
    assert len({answer.document["msg"] for answer in answers}) == 1, [*map(str, answers)]
