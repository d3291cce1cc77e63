"""DNS names in policies: a pod can connect only to the addresses in its own DNS answers. Needs root."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, sleep

import dns.flags
import dns.message
import dns.rrset
import pytest
from stopping import kill, stop
from unit.agent.policy import pods
from unit.agent.policy.names_world import ALL, ANSWER_S, NODE_OUTSIDE, RESOLVERS, World, host, named
from unit.agent.policy.test_cluster_policies import policy, rule
from unit.agent.policy.test_policy_command_kernel import command
from unit.agent.policy.test_service import Running, node  # noqa: F401 - fixture

from fastcni.agent.policy.names import addresses as answered
from fastcni.agent.policy.names import part as part_module
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.node import pod_policies
from fastcni.runtime import parse_list
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually


@pytest.fixture
def running(host_netns, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = Running(tmp_path, dns_servers=RESOLVERS)
    yield it
    it.stop()


@pytest.fixture
def world(node, pod_netns):  # noqa: F811
    found = World(node, pod_netns)
    yield found
    found.close()


@pytest.fixture
def named_pods(running, world):
    """Run the pods a (on the bridge), b and d (with a separate link). They may connect to a.test and to names below
    b.test."""
    running.write(named("a.test", "*.b.test"))
    for name in "abd":
        running.add(name, app=name)
    assert redirected(running), running.log
    return world


def pods_of(app):
    return {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}}


def redirected(running):
    """Wait until the kernel redirects the queries of the pods a, b and d to the forwarder. The agent writes the element
    of a new pod's queries shortly after the answer to the ADD, and renew() writes those of the resolvers."""
    part = running.it.parts[0]
    addresses = {socket.inet_pton(family, address) for name in "abd"
                 for family, address in zip((socket.AF_INET, socket.AF_INET6), pods.ADDRESSES[name], strict=True)}

    def works():
        asking = {query[0] for query in part.redirect.written or ()}
        return addresses <= asking and part.process and part.process.works and RESOLVERS[0] in run(
            "nft", "list", "set", "inet", "fastcni-names", "resolvers4", check=False)

    return eventually(works)


def test_a_pod_reaches_a_name_by_its_first_packet_once_it_was_told(named_pods, running):
    it = named_pods
    for number, (pod, family, stream) in enumerate([
            (pod, family, stream) for pod in "ad" for family in (4, 6) for stream in (False, True)]):
        address, kind, resolver = host(number, family), "A" if family == 4 else "AAAA", RESOLVERS[family == 6]
        it.records.clear()
        it.put("a.test", address)
        assert not it.connects(pod, address, 0.1)
        assert it.told(pod, "a.test", kind, resolver=resolver, stream=stream) == [address], (pod, family, stream)
        assert it.connects(pod, address, 0.9), (pod, family, stream)
        assert not it.connects("b", address, 0.1)


def test_names_match_as_the_api_says(named_pods):
    """The test repeats queries, as resolvers do. If the agent pauses for 1.5 s, as on a busy machine, the forwarder
    drops queries. After 2 s the kernel redirects no query."""
    it = named_pods
    for number, (name, reached) in enumerate((
            ("a.test", True), ("A.tEsT", True), ("x.a.test", False), ("b.test", False), ("x.b.test", True),
            ("y.x.b.test", True), ("xb.test", False), ("a.test.b.example", False), ("c.test", False))):
        it.records.clear()
        it.put(name.lower(), address := host(number))
        assert eventually(lambda asked=(name, address, reached): it.told("a", asked[0]) == [asked[1]] and (
            not asked[2] or it.connects("a", asked[1]))), name
        assert reached or not it.connects("a", address, 0.1), name


def test_a_chain_of_cnames_counts_by_the_name_that_was_asked_for(named_pods):
    it = named_pods
    it.put("a.test", "one.example")
    it.put("one.example", "two.example")
    it.put("two.example", host(1), host(2))
    assert it.told("a", "one.example") == [host(1), host(2)]
    assert not it.connects("a", host(1), 0.1)
    assert it.told("a", "a.test") == [host(1), host(2)]
    assert it.connects("a", host(1)) and it.connects("a", host(2))


def test_records_that_do_not_answer_the_question_open_nothing(named_pods):
    """Otherwise the owner of one name could open any address."""
    it = named_pods
    it.put("a.test", host(0))
    it.put("c.test", host(9))

    def more(message, stream):
        message.answer.insert(0, dns.rrset.from_text("c.test.", 300, "IN", "A", host(1)))
        message.authority.append(dns.rrset.from_text("a.test.", 300, "IN", "A", host(2)))
        message.additional.append(dns.rrset.from_text("a.test.", 300, "IN", "A", host(3)))
        return message

    it.change = more
    assert it.ask("a", "a.test")

    def other(message, stream):
        found = dns.message.make_response(dns.message.make_query("a.test", "A", id=message.id))
        found.answer.append(dns.rrset.from_text("a.test.", 300, "IN", "A", host(9)))
        return found

    it.change = other                       # the answer's question is another name
    assert it.ask("a", "c.test")
    it.change = lambda message, stream: message.to_wire()[:2] + b"\0" + message.to_wire()[3:]  # a query, not an answer
    assert it.ask("a", "a.test", seconds=0.3) is None
    assert it.connects("a", host(0))
    assert [number for number in (1, 2, 3, 9) if it.connects("a", host(number), 0.1)] == []


def test_an_answer_with_another_number_or_from_another_port_counts_for_nothing(named_pods):
    it = named_pods
    it.put("a.test", host(1))
    it.change = lambda message, stream: bytes(each ^ 1 for each in message.to_wire()[:2]) + message.to_wire()[2:]
    assert it.ask("a", "a.test", seconds=0.3) is None
    with Inside(it.netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((RESOLVERS[0], 5353))
        it.change, it.answers_from = None, other
        assert it.ask("a", "a.test", seconds=0.3) is None
    assert not it.connects("a", host(1), 0.1)


def test_answers_pass_as_they_are_even_large_and_truncated_ones(named_pods):
    it, sent = named_pods, []
    it.put("x.b.test", *map(host, range(240)))

    def kept(message, stream):
        sent.append(message.to_wire(max_size=65535))
        return sent[-1]

    it.change = kept
    edns = dns.message.make_query("x.b.test", "A", use_edns=0, payload=4096, want_dnssec=True)
    for stream in (False, True):
        data = it.ask("a", "", query=edns, stream=stream)
        assert len(data) > 3000
        assert data[2:] == sent[-1][2:]
        assert data[:2] == edns.to_wire()[:2]
    order = [record.address for each in dns.message.from_wire(data).answer for record in each]
    assert it.connects("a", order[99]) and not it.connects("a", order[100], 0.1)

    def truncated(message, stream):
        del message.answer[0][1:]
        message.flags |= dns.flags.TC
        return kept(message, stream)

    it.change = truncated
    data = it.ask("a", "x.b.test")
    assert data[2:] == sent[-1][2:]
    it.change = lambda message, stream: message.to_wire()[:40]          # the message ends within a record
    assert len(it.ask("a", "x.b.test")) == 40


def test_a_pod_whose_egress_is_closed_gets_no_answer(named_pods, running):
    it = named_pods
    it.put("a.test", host(1))
    running.write(named("a.test", "*.b.test"), policy("d", priority=1, subject=pods_of("b"), egress=[
        rule("Deny", ALL, key="to")]))
    assert eventually(lambda: it.ask("b", "a.test", seconds=0.2) is None)
    for stream in (False, True):
        assert it.ask("b", "a.test", seconds=0.3, stream=stream) is None
    assert it.told("a", "a.test") == [host(1)]


def test_the_forwarders_ports_answer_only_redirected_queries(named_pods, running):
    """Otherwise a pod whose policies forbid DNS could ask, and any host could ask."""
    it = named_pods
    it.put("a.test", host(1))
    for listener, own in zip(running.it.parts[0].listeners, (pods.NODE[0], pods.NODE[1]), strict=True):
        data = dns.message.make_query("a.test", "A").to_wire()
        for netns in (it.node.names["a"], it.netns):
            family = socket.AF_INET6 if ":" in own else socket.AF_INET
            with Inside(netns), socket.socket(family, socket.SOCK_DGRAM) as asks:
                asks.settimeout(0.2)
                asks.sendto(data, (own, listener.ports[17]))
                with pytest.raises(TimeoutError):
                    asks.recv(512)
    assert "a.test" not in [name for name, _ in it.asked]


def test_programs_of_the_node_use_the_forwarders_ports_of_another_protocol_and_family(named_pods, running):
    """The kernel may choose the forwarder's port numbers as source ports. Once, the answers to these ports were
    dropped."""
    it = named_pods
    it.put("a.test", host(1))
    assert it.told("a", "a.test") == [host(1)]
    four, six = running.it.parts[0].listeners
    for family, kind, port in ((socket.AF_INET, socket.SOCK_STREAM, four.ports[17]),
                               (socket.AF_INET, socket.SOCK_STREAM, six.ports[6]),
                               (socket.AF_INET6, socket.SOCK_STREAM, four.ports[6]),
                               (socket.AF_INET6, socket.SOCK_STREAM, six.ports[17])):
        with socket.socket(family, kind) as asks:
            asks.settimeout(ANSWER_S)
            asks.bind((NODE_OUTSIDE[family == socket.AF_INET6], port))
            asks.connect((host(1, 4 if family == socket.AF_INET else 6), 80))


def test_a_forwarder_that_ends_or_hangs_is_started_again(named_pods, running):
    it, part = named_pods, running.it.parts[0]
    it.put("a.test", host(1))
    for number, end in enumerate((kill, stop), 1):
        former = part.process._process.pid
        end(former)
        # while there is no forwarder, the query goes directly to the resolver
        assert eventually(lambda: it.told("a", "a.test", seconds=0.5)) == [host(number)]
        assert eventually(lambda former=former: part.process._process and part.process._process.pid != former)
        assert redirected(running)
        it.records.clear()
        it.put("a.test", host(number + 1))
        assert it.told("a", "a.test") == [host(number + 1)]
        assert it.connects("a", host(number + 1))


def test_a_ttls_end_stops_new_connections_only_and_a_new_answer_prolongs_it(named_pods, running, monkeypatch):
    it = named_pods
    monkeypatch.setattr(answered, "MIN_TTL_S", 2.0)
    monkeypatch.setattr(answered, "SLACK_S", 0.5)
    it.put("a.test", host(1), ttl=0)
    assert it.told("a", "a.test") == [host(1)]
    with it.connection("a", host(1)) as client, it.web.accept()[0] as server:
        began, asked = monotonic(), 0
        while monotonic() < began + 4:              # longer than the time that one answer stays valid
            if monotonic() > began + asked:
                assert it.told("a", "a.test") == [host(1)]
                asked += 1
            assert it.connects("a", host(1))
            sleep(0.1)
        assert eventually(lambda: not it.connects("a", host(1), 0.1))
        running.write(named("a.test", "*.b.test"), policy("d", priority=1, subject=pods_of("a"), egress=[
            rule("Deny", {"networks": ["192.0.2.0/24"]}, key="to")]))
        assert eventually(lambda: not running.it.engine.suspects and not running.it.engine.flows.begun)
        client.send(b"x")
        server.settimeout(10)
        assert server.recv(1) == b"x"


def test_a_policy_that_no_longer_names_a_domain_closes_it_and_one_that_names_more_keeps_it(named_pods, running):
    it = named_pods
    it.put("a.test", host(1))
    assert it.learns("a", "a.test", host(1))
    running.write(named("c.test", "a.test"))
    assert it.connects("a", host(1))
    running.write(named("c.test"))
    assert eventually(lambda: not it.connects("a", host(1), 0.1))
    running.write(named())
    assert eventually(lambda: running.it.parts[0].process is None)
    assert "fastcni-names" not in run("nft", "list", "tables")
    assert it.told("a", "a.test") == [host(1)]          # the policy allows the query; there is no forwarder now


def test_queries_from_a_port_that_was_redirected_go_directly_when_the_forwarder_has_ended(named_pods, running):
    it, data = named_pods, dns.message.make_query("a.test", "A").to_wire()
    it.put("a.test", host(1))
    with Inside(it.node.names["a"]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        asks.settimeout(5)
        asks.connect((RESOLVERS[0], 53))
        asks.send(data)
        assert asks.recv(512)
        running.write(named())
        assert eventually(lambda: running.it.parts[0].process is None)
        asks.send(data)
        assert asks.recv(512)


def test_another_pod_with_the_address_of_a_former_one_was_told_nothing(named_pods, running):
    it = named_pods
    it.put("a.test", host(1))
    assert it.learns("a", "a.test", host(1))
    running.call("DEL", "a")
    running.call("ADD", "a", "K8S_POD_NAME=other", runtimeConfig={"labels": {"app": "a"}})
    assert eventually(lambda: not it.connects("a", host(1), 0.1))


def test_a_pod_that_may_no_longer_ask_loses_its_connection_to_the_forwarder(named_pods, running):
    it = named_pods
    it.put("a.test", host(1))
    data = dns.message.make_query("a.test", "A").to_wire()
    with Inside(it.node.names["a"]), socket.socket() as client:
        client.settimeout(5)
        client.connect((RESOLVERS[0], 53))
        client.sendall(len(data).to_bytes(2, "big") + data)
        assert client.recv(512)
        running.write(named("a.test"), policy("d", priority=1, subject=pods_of("a"), egress=[
            rule("Deny", ALL, key="to")]))
        assert eventually(lambda: running.it.cut)
        asked = len(it.asked)
        client.settimeout(0.3)
        client.sendall(len(data).to_bytes(2, "big") + data)
        with pytest.raises(TimeoutError):
            client.recv(512)
        assert len(it.asked) == asked


def test_without_dnspython_or_a_resolver_names_are_closed_and_the_log_says_so(named_pods, running, monkeypatch):
    monkeypatch.setattr(part_module, "find_spec", lambda name: None)
    running.write(named())
    assert eventually(lambda: running.it.parts[0].process is None)
    running.write(named("a.test"))
    assert eventually(lambda: "domain_names_closed" in running.events())
    assert "dnspython" in running.log[-1]["error"]
    named_pods.put("a.test", host(1))
    assert named_pods.told("a", "a.test") == [host(1)]
    assert not named_pods.connects("a", host(1), 0.1)


def test_two_thousand_first_packets_pass_and_none_of_another_pod(named_pods):
    """Eight clients send a packet after each answer. The pod b sends packets to the same hosts without an answer."""
    it = named_pods
    for number in range(2000):
        it.put(f"n{number}.b.test", host(number + 256))

    def client(first):
        for number in range(first, 2000, 8):
            pod = "ad"[number & 1]
            assert eventually(lambda: it.told(pod, f"n{number}.b.test")) == [host(number + 256)]      # noqa: B023
            it.send(pod, host(number + 256), f"{number}")
            it.send("b", host(number + 256), "b")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    assert eventually(lambda: len(it.packets) == 2000), sorted(set(map(str, range(2000))) - it.packets)[:9]
    assert "b" not in it.packets


def test_explain_lists_the_names_of_a_pod_and_the_addresses_that_are_open(named_pods, running, monkeypatch):
    it, pod, pod6 = named_pods, *pods.ADDRESSES["a"]
    it.put("x.b.test", *map(host, range(7)))
    it.put("x.b.test", host(1, 6), ttl=1)
    addresses = it.told("a", "x.b.test")
    monkeypatch.setattr(answered, "MIN_TTL_S", 0.0)
    monkeypatch.setattr(answered, "SLACK_S", 0.0)
    assert it.told("a", "x.b.test", "AAAA") == [host(1, 6)]
    networks = [parse_list(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())]
    closed = "but no DNS answer to {} has an address that is open now"
    _, one, two = pod_policies.texts_on(networks, pod)
    assert one.startswith(f"{pod} may reach *.b.test at ") and one.endswith(" and 2 more")
    assert set(one.partition(" at ")[2].removesuffix(" and 2 more").split(", ")) < set(addresses)
    assert two == f"{pod} may reach a.test, {closed.format(pod)}"
    assert eventually(lambda: [*pod_policies.texts_on(networks, pod6)][1:] == [
        f"{pod6} may reach {name}, {closed.format(pod6)}" for name in ("*.b.test", "a.test")])


def test_policy_test_takes_a_name_and_says_by_which_rule_it_is_open(named_pods, running, capfd):
    it = named_pods

    def asked(*words):
        capfd.readouterr()
        status = command(["policy", "test", *words, "--folder", str(running.directory),
                          "--agent-folder", str(running.directory.parent)])
        out, err = capfd.readouterr()
        return status, out or err

    it.put("x.b.test", host(1), host(2))
    status, text = asked("a", "x.b.test", "80")
    assert status == 2 and "no DNS answer gave the pod an address of x.b.test" in text
    assert it.told("a", "x.b.test") == [host(1), host(2)]
    opened = [f"allowed: 10.0.0.1 to {host(number)}\n    egress: allowed by c egress[1] (names)\n" for number in (1, 2)]
    assert asked("a", "X.b.test.", "80") == (0, "".join(opened))
    assert asked("a", host(2), "80") == (0, opened[1])
    assert asked("b", host(2), "80") == (1, f"denied: 10.0.0.2 to {host(2)}\n"
                                            "    egress: denied by c egress[2] (rest)\n")
    assert asked("a", RESOLVERS[0], "53/udp")[0] == 0
    status, text = asked("a", "y.example", "80")
    assert status == 2 and "y.example is no address" in text
