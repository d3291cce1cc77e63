"""Policies with HTTP rules on the real kernel, with HAProxy. Needs root and haproxy."""

import contextlib
import shutil
import socket

import pytest
from unit.agent.policy.frames import link_local, mac_of
from unit.agent.policy.http_pods import (
    ADDRESSES,
    ATTACKS,
    CLIENTS,
    GATEWAYS,
    READ_ONLY,
    Server,
    begin,
    begin_tls,
    eventually_status,
    http,
    http_world,  # noqa: F401 - the fixture `world`
    policy,
    read,
    request,
    status,
)
from unit.agent.policy.pods import ADDRESSES as NODE_ADDRESSES
from unit.agent.policy.pods import TCP, mac_of_pod
from unit.agent.policy.test_service import node, running  # noqa: F401 - fixtures

from fastcni.agent.policy import marks
from fastcni.agent.policy.evaluate import Connection, evaluate
from fastcni.agent.policy.http import configuration, part, process, start_haproxy
from fastcni.agent.policy.in_kernel import decisions
from fastcni.flows.requests import Requests
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.witnesses import eventually

pytestmark = [pytest.mark.needs("root"),
              pytest.mark.skipif(not shutil.which("haproxy"), reason="needs haproxy (apt-get install haproxy)")]


@pytest.mark.parametrize("version", (0, 1))
def test_ingress_allows_the_requests_of_a_rule_and_keeps_the_source(world, version):
    world.agent.write(READ_ONLY)
    world.add("a", app="client")
    world.add("b", app="web")
    assert eventually_status(world, 200, "a", "b", "GET /public/x", version=version) == 200
    assert world.servers["b"].seen == [(ADDRESSES["a"][version], "GET /public/x HTTP/1.1")]
    assert world.ask("a", "b", "GET /secret", version) == 403
    with contextlib.closing(world.connect("a", "b", version)) as it:
        it.sendall(request("POST /public/x"))
        assert status(read(it)) == 403
        assert it.recv(1) == b"", "the connection ends"
    assert len(world.servers["b"].seen) == 1


def test_egress_rules_hold_for_pods_and_for_addresses_outside(world):
    begin(world, policy(selector={"app": "client"}, egress=[
        http({"path": "/in"}, toEndpoints=[{"matchLabels": {"app": "web"}}]),
        http({"path": "/out"}, toCIDR=[f"{ADDRESSES['c'][0]}/32"])]))
    assert [world.ask("a", "b", f"GET /{path}") for path in ("in", "out")] == [200, 403]
    assert [world.ask("a", "c", f"GET /{path}") for path in ("in", "out")] == [403, 200]
    assert world.ask("b", "a", "GET /any") == 200, "no policy restricts this direction"
    with pytest.raises(TimeoutError):
        world.connect("a", "c", version=1, seconds=0.5)


def test_the_rules_of_both_ends_have_to_allow_a_request(world):
    begin(world, READ_ONLY, policy("out", {"app": "client"}, egress=[http({"path": "/public/a"})]))
    found = [world.ask("a", "b", text) for text in ("GET /public/a", "GET /public/b", "POST /public/a")]
    assert found == [200, 403, 403]


def test_policies_on_addresses_and_ports_of_the_other_end_hold_for_proxied_connections(world):
    """Proxied connections do not pass the hook `forward`, whose chains enforce the other policies."""
    begin(world, policy(selector={"app": "client"}, egress=[http({})]), {
        "kind": "NetworkPolicy", "metadata": {"name": "closed"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}}})
    with pytest.raises(TimeoutError):
        world.connect("a", "b", seconds=0.5)
    assert world.ask("a", "c", "GET /") == 200
    assert not world.servers["b"].seen


@pytest.mark.parametrize("to_link", (False, True))
def test_link_local_addresses_lead_past_no_policy_to_the_proxy(world, to_link):
    """Link-local addresses are in no map. Once, a pod that may connect to no pod got the proxy's answer by its
    link-local address, and a pod with HTTP rules for egress reached the proxy by a link-local destination."""
    closed = {"kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": {
        "podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"]}}
    begin(world, policy(ingress=[http({"method": "GET"})]),
          policy("out", {"app": "client"}, egress=[http({"method": "GET"})]) if to_link else closed)
    assert world.ask("c", "b", "GET /", 1) == 200
    with Inside(world.pods["a"]):
        it, link = socket.socket(socket.AF_INET6), socket.if_nametoindex("eth0")
    run("ip", "-n", world.pods["a"], "neigh", "add", "fe80::b", "lladdr", mac_of(None, "port-a"), "dev", "eth0")
    with contextlib.closing(it):
        it.settimeout(0.5)
        it.bind((ADDRESSES["a"][1], 0) if to_link else (link_local(mac_of_pod("a")), 0, 0, link))
        with pytest.raises(TimeoutError):
            it.connect(("fe80::b", 80, 0, link) if to_link else (ADDRESSES["b"][1], 80))


def test_a_rule_without_http_allows_each_request(world):
    begin(world, READ_ONLY, policy("more", ingress=[{"fromEndpoints": CLIENTS}]))
    assert world.ask("a", "b", "POST /secret") == 200
    assert world.ask("a", "b", b"HELO there\r\n\r\n") == 200, "the proxy has no part in it"


def test_a_pod_and_its_own_node_reach_each_other_past_the_rules(world):
    """For example, a kubelet's probes are connections from the node to the pod."""
    begin(world, READ_ONLY, policy("out", {"app": "client"}, egress=[http({"method": "GET"})]))
    assert world.ask(None, "b", "POST /secret") == 200
    with contextlib.closing(Server(None)) as own:
        assert world.ask("a", GATEWAYS[0], "POST /any") == 200
        assert own.seen == [(ADDRESSES["a"][0], "POST /any HTTP/1.1")]


@pytest.mark.parametrize(("version", "service"), ((0, "10.96.0.80"), (0, GATEWAYS[0]), (1, "fd00:96::80")))
def test_requests_to_a_service_and_to_a_host_port_are_judged_by_the_pods_address(world, version, service):
    """The test's chain translates addresses as the chains of kube-proxy and portmap do: at priority dstnat, and to
    another port."""
    begin(world, READ_ONLY)
    family, server = ("ip", "ip6")[version], (ADDRESSES["b"][0], f"[{ADDRESSES['b'][1]}]")[version]
    run("nft", "-f", "-", stdin=f"table {family} services {{\nchain c {{\ntype nat hook prerouting priority dstnat\n"
                                f"{family} daddr {service} tcp dport 8080 dnat to {server}:80\n}}\n}}")
    for _ in range(2):
        assert world.ask("a", service, "GET /public/x", port=8080) == 200
        assert world.ask("a", service, "GET /secret", port=8080) == 403
    assert world.servers["b"].seen == 2 * [(ADDRESSES["a"][version], "GET /public/x HTTP/1.1")]
    with pytest.raises(TimeoutError):
        world.connect("c", service, seconds=0.5, port=8080)


def test_a_connection_to_a_service_is_closed_over_ipv4_on_machines_without_the_filter(world, monkeypatch):
    """Without the seccomp filter, HAProxy would judge the requests by the address of the Service."""
    monkeypatch.setattr(start_haproxy, "SYSTEM_CALLS", {})
    begin(world, READ_ONLY)
    run("nft", "-f", "-", stdin="table ip services {\nchain c {\ntype nat hook prerouting priority dstnat\n"
                                f"ip daddr 10.96.0.80 dnat to {ADDRESSES['b'][0]}\n}}\n}}")
    assert world.ask("a", "b", "GET /public/x") == 200
    seen = len(world.servers["b"].seen)
    with pytest.raises(TimeoutError):
        world.connect("a", "10.96.0.80", seconds=0.5)
    assert len(world.servers["b"].seen) == seen


def test_a_client_cannot_take_all_connections_of_the_proxy(world, monkeypatch):
    monkeypatch.setattr(configuration, "MAX_CONNECTIONS", 5)
    begin(world, READ_ONLY)
    with contextlib.ExitStack() as opened:
        answers = []
        for _ in range(12):
            with contextlib.suppress(ConnectionError):
                it = opened.enter_context(world.connect("a", "b"))
                it.sendall(request("GET /public/x"))
                answers.append(status(read(it)))
        assert answers.count(200) == 5
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200


SMUGGLED = b"POST /secret HTTP/1.1\r\nHost: web\r\n\r\n"


def test_what_could_be_read_in_two_ways_does_not_reach_the_server(world):
    begin(world, READ_ONLY)
    assert world.ask("a", "b", "GET /public/x?next=/../%2e") == 200, "a query is no path"
    for name, data in ATTACKS.items():
        assert world.ask("a", "b", data) in (0, 400, 403, 405, 501), name
    assert [line for _, line in world.servers["b"].seen] == ["GET /public/x?next=/../%2e HTTP/1.1"]


@pytest.mark.parametrize("more", ((), (f"Content-Length: {len(SMUGGLED) + 5}", "Transfer-Encoding: chunked"),
                                  ("Transfer-Encoding: chunked", f"Content-Length: {len(SMUGGLED) + 5}"),
                                  ("Transfer-Encoding: xchunked", "Content-Length: 5")))
def test_each_request_of_a_connection_is_judged(world, more):
    """A forbidden request follows an allowed request, or a body whose end a server may see elsewhere."""
    begin(world, policy(ingress=[http({"path": "/public/.*"})]))
    body = b"0\r\n\r\n" if more else b""
    world.ask("a", "b", request("GET /public/1" if not more else "POST /public/1", more=more) + body + SMUGGLED)
    assert world.ask("a", "b", "GET /public/2") == 200
    assert not [line for _, line in world.servers["b"].seen if "secret" in line]


def test_headers_and_hosts_are_compared_with_their_complete_values(world):
    begin(world, policy(ingress=[http({"host": r"api\.shop", "headers": ["X-Team: red", "X-Other"]})]))

    def ask(host, *more):
        return world.ask("a", "b", request("GET /", host, more))
    assert ask("api.shop", "x-team: red", "X-OTHER: any") == 200
    assert ask("API.shop", "X-Team: red", "X-Other: any") == 200, "a host's name has no case (RFC 9110, 4.2.3)"
    for host, *more in (("api.shop", "X-Team: red"), ("api.shop", "X-Team: red", "X-Other: 1", "X_Team: blue"),
                        ("api.shop", "X_Team: red", "X-Other: 1"), ("api.shop", "X-Team: Red", "X-Other: 1"),
                        ("api.shop", "X-Team: redder", "X-Other: 1"),
                        ("apixshop", "X-Team: red", "X-Other: 1"), ("api.shop.evil", "X-Team: red", "X-Other: 1"),
                        ("evil,api.shop", "X-Team: red", "X-Other: 1"),
                        ("api.shop", "X-Team: blue", "X-Team: red", "X-Other: 1")):
        assert ask(host, *more) == 403, (host, more)


def test_a_name_of_a_header_with_an_underscore_passes_if_the_rule_asks_for_it(world):
    """Many servers read an underscore as a hyphen. So a header X_Team could replace the header X-Team that a rule
    requires."""
    begin(world, policy(ingress=[http({"headers": ["X_Team: red", "X-Other"]}, {"path": "/open"})]))

    def ask(path, *more):
        return world.ask("a", "b", request(f"GET {path}", more=more))
    assert ask("/", "X_Team: red", "X-Other: 1", "Accept: any") == 200
    assert ask("/", "X_Team: red", "X-Other: 1", "X_Other: 2") == 403
    assert ask("/", "X_Team: red", "X-Other: 1", "X_Tea: 2") == 403
    assert ask("/open", "X_Other: 2") == 200, "this rule asks for no headers"


def test_a_pattern_may_have_each_printable_character(world):
    """When HAProxy starts, it reads the patterns from files. Later patterns go through its runtime API, which
    interprets ; # < \\ and spaces."""
    value = "".join(map(chr, range(0x21, 0x7f)))
    path, host = r"/[ ;<>\"'`|^{}!$&)(+*,.:=@~a\\#-]*\?q", r"[^x;]+;\\ #"
    asked = policy(ingress=[http({"path": path, "host": host, "headers": [f"X-A: {value} {value}"]})])
    later = policy("later", ingress=[http({"path": f"{path}2", "host": host, "headers": [f"X-A: {value}"]})])

    def ask(path, value, host=r"a.b;\ #"):
        return world.ask("a", "b", request(f"GET {path}", host, [f"X-A: {value}"]))
    proxy = begin(world, asked)
    pid = proxy.process.pid
    for _ in range(2):
        assert ask("/;!$&)(+*,.:=@~a-?q", f"{value} {value}") == 200
        assert ask("/;b?q", f"{value} {value}") == ask("/;?q", f"{value} {value}.") == 403
        assert ask("/;?q", f"{value} {value}", r"x;\ #") == 403
        world.agent.write(asked, later)
        assert eventually(lambda: ask("/;?q2", value) == 200)
        assert ask("/;?q2", f"{value};") == 403
    assert proxy.process.pid == pid


def test_a_rule_for_all_ipv6_addresses_allows_nothing_over_ipv4(world):
    """HAProxy also searches the IPv6 entries for an IPv4 address that has no entry."""
    begin(world, policy(selector={"app": "client"}, egress=[http({"path": "/six"}, toCIDR=["::/0"]),
                                                            http({"path": "/any"})]))
    assert [world.ask("a", "b", f"GET {path}", version) for version in (0, 1) for path in ("/any", "/six")] == [
        200, 403, 200, 200]


def test_a_rule_for_a_named_port_holds_for_the_port_that_the_pod_calls_so(world):
    begin(world, {"kind": "Pod", "metadata": {"name": "b", "labels": {"app": "web"}},
                  "spec": {"containers": [{"ports": [{"name": "web", "containerPort": 80}]}]},
                  "status": {"podIP": ADDRESSES["b"][0], "podIPs": [{"ip": each} for each in ADDRESSES["b"]]}},
          policy(ingress=[http({"path": "/in.*"}, port="web", fromEndpoints=CLIENTS)]),
          policy("out", {"app": "client"}, egress=[http({"path": "/.*out"}, port="web")]))
    for version in (0, 1):
        assert [world.ask("a", "b", f"GET {path}", version) for path in ("/in-out", "/in", "/out")] == [200, 403, 403]


def test_a_request_that_is_as_long_as_the_proxys_buffer_is_compared_to_its_end(world):
    begin(world, policy(ingress=[http({"path": r"/a+\.jpg"}, {"path": "/h", "headers": ["X-A"]})]))
    statuses = {length: world.ask("a", "b", f"GET /{length * 'a'}.jpg") for length in (10, 8000, 15000, 16000, 20000)}
    assert statuses[10] == statuses[8000] == 200 and set(statuses.values()) <= {200, 400, 403, 414, 0}
    for length in (15000, 15200, 15300, 15350, 16000):
        assert world.ask("a", "b", f"GET /{length * 'a'}.jpg.cgi") in (0, 400, 403, 414), length
    more = "X-A: 1", *(f"X-{each}: {50 * 'b'}" for each in range(90))
    assert world.ask("a", "b", request("GET /h", more=more)) == 200
    assert not [line for _, line in world.servers["b"].seen if "cgi" in line]


def test_tls_passes_by_the_name_in_its_handshake_alone(world):
    begin(world, policy(ingress=[http({"host": r"api\.shop"}, {"host": r"other\.shop", "method": "GET"})]))
    assert begin_tls(world, "api.shop") and begin_tls(world, "API.Shop")
    assert not begin_tls(world, "other.shop"), "TLS hides the method"
    assert not begin_tls(world, "api.shop.evil")
    assert not begin_tls(world, "127.0.0.1"), "no name"


def test_a_direct_connection_is_cut_when_rules_by_requests_come(world):
    """An established connection does not pass through the proxy, so the proxy cannot judge its requests."""
    world.add("a", app="client")
    world.add("b", app="web")
    it = world.connect("a", "b", seconds=1)
    it.sendall(request("GET /before"))
    assert status(read(it)) == 200
    world.agent.write(READ_ONLY)
    assert eventually(lambda: "connections_cut" in world.agent.events())
    it.sendall(request("GET /public/after"))
    assert not read(it)
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200


def test_labels_change_who_may_ask_without_another_process(world):
    proxy = begin(world, READ_ONLY, {"kind": "Pod", "metadata": {"name": "c", "labels": {"app": "no"}},
                                     "status": {"podIP": ADDRESSES["c"][0]}})
    pid = proxy.process.pid
    with pytest.raises(TimeoutError):
        world.connect("c", "b", seconds=0.5)
    world.agent.write(READ_ONLY, {"kind": "Pod", "metadata": {"name": "c", "labels": {"app": "client"}},
                                  "status": {"podIP": ADDRESSES["c"][0]}})
    assert eventually_status(world, 200, "c", "b", "GET /public/x") == 200
    assert proxy.process.pid == pid


def test_a_pod_at_a_bridge_stays_closed_and_the_log_names_it(running, node):  # noqa: F811
    running.write(READ_ONLY)
    running.add("a", app="client")
    running.add("b", app="web")
    assert node.reached({("a", NODE_ADDRESSES["b"][0], TCP, 80)}, set()) == set()
    assert eventually(lambda: {"event": "http_rules_on_bridge", "pod": "default/b"}.items() <= next(
        (each for each in running.log if each["event"] == "http_rules_on_bridge"), {}).items())


def test_requests_are_told_to_those_who_listen(world):
    proxy = begin(world, READ_ONLY)
    with contextlib.closing(Requests([world.agent.settings.socket])) as it:
        assert eventually(lambda: proxy.process.maps["listeners"])
        assert [world.ask("a", "b", text) for text in ("GET /public/x", "GET /secret")] == [200, 403]
        found: list[dict] = []
        assert eventually(lambda: found.extend(it.read()) or len(found) == 2)
        paths = it.paths
    assert not any(path.exists() for path in paths) and world.ask("a", "b", "GET /public/x") == 200
    assert [(each["verdict"], each["policy"], each["method"], each["path"], each["reason"]) for each in found] == [
        ("allowed", "default/web (Cilium) ingress[0]", "GET", "/public/x", ""),
        ("dropped", "", "GET", "/secret", "no rule for ingress allows it")]
    assert {each["source"] for each in found} == {ADDRESSES["a"][0]}
    assert world.agent.it.figures()["http_requests_denied"] == 1


def test_the_command_policy_test_agrees_with_the_kernel(world):
    begin(world, READ_ONLY)
    wanted = Connection(*(read_ip(ADDRESSES[name][0]) for name in "ab"), TCP, 80)
    denied = Connection(wanted.source, wanted.destination, TCP, 81)
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200
    tables = decisions.read()
    found, refused = (decisions.decide(tables, each) for each in (wanted, denied))
    assert (found["Ingress"].allowed, found["Ingress"].text) == (True, "allowed by default/web (Cilium) ingress[0]")
    assert refused["Ingress"].allowed is False
    assert all(each.allowed is not None for each in found.values())
    assert evaluate(world.agent.it.compiler.cluster, wanted).ingress.by_request


def test_without_haproxy_connections_get_no_answer_and_the_log_says_so(world, monkeypatch):
    monkeypatch.setattr(process, "PROGRAMS", ("no-such-program",))
    monkeypatch.setattr(part, "MAX_RETRY_S", 0.2)
    world.agent.write(READ_ONLY)
    world.add("a", app="client")
    world.add("b", app="web")
    assert eventually(lambda: "http_proxy_missing" in world.agent.events())
    with contextlib.closing(world.connect("a", "b")) as it:
        it.settimeout(0.5)
        it.sendall(request("GET /public/x"))
        assert not read(it)
    monkeypatch.undo()
    assert eventually_status(world, 200, "a", "b", "GET /public/x") == 200


def test_a_process_that_does_not_take_a_change_ends(world, monkeypatch):
    """The old process would continue to allow requests that are now forbidden."""
    proxy = begin(world, READ_ONLY)
    former = proxy.process.pid

    def refuse(*_):
        monkeypatch.undo()
        raise process.HAProxyError("refused")
    monkeypatch.setattr(process.Process, "_change", refuse)
    world.add("c", app="client")
    assert eventually(lambda: proxy.process and proxy.process.pid != former)
    assert "http_proxy_refused" in world.agent.events()
    assert eventually_status(world, 200, "c", "b", "GET /public/x") == 200


def test_a_rule_without_http_that_comes_later_ends_a_proxied_connection_with_its_next_answer(world):
    """The proxy does not know the new rule, so it ends the connection. The client's next connection does not pass
    through the proxy."""
    begin(world, READ_ONLY)
    it = world.connect("a", "b")
    it.sendall(request("GET /public/1"))
    assert status(read(it)) == 200
    world.agent.write(READ_ONLY, policy("more", ingress=[{"fromEndpoints": CLIENTS}]))
    assert eventually_status(world, 200, "a", "b", "POST /secret") == 200
    it.sendall(request("GET /other"))
    assert status(read(it)) == 403
    assert not read(it)


def test_a_client_uses_a_port_again_of_which_conntrack_has_a_connection(world):
    """Once, conntrack took the first packet for a packet of the old connection. The packet did not reach the proxy, and
    the kernel dropped it."""
    begin(world, READ_ONLY)
    client, server = ADDRESSES["a"][0], ADDRESSES["b"][0]
    run("conntrack", "-I", "-p", "tcp", "-s", client, "-d", server, "--sport", 40000, "--dport", 80, "--state",
        "ESTABLISHED", "--timeout", 100, "-u", "ASSURED,SEEN_REPLY", "-m", marks.PROXIED)
    with Inside(world.pods["a"]), socket.socket() as it:
        it.bind((client, 40000))
        it.settimeout(10)
        it.connect((server, 80))
        it.sendall(request("GET /public/x"))
        assert status(read(it)) == 200
