"""After a change, the agent checks each connection that the change may forbid. Answers of connections that are allowed
again pass."""

from socket import IPPROTO_ICMP, IPPROTO_UDP
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from unit.agent.policy.clusters import connections, make_pod
from unit.agent.policy.test_compile import CHANGES, policy

from fastcni.agent.policy import cut, interpret
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.ports import DHCP4
from fastcni.agent.policy.rules import CUT, CUT_ANY
from fastcni.kernel.nft_elements import concat, protocol, service
from fastcni.spec.address import read_ip


@settings(max_examples=25)
@given(CHANGES, CHANGES)
def test_each_forbidden_connection_has_an_end_that_is_suspected(before, changes):
    it = Compiler("here")
    for name, arguments in before:
        getattr(it, name)(*arguments)
    allowed = [one for one in connections() if interpret.allows(it.state, one)]
    allowed_to_node = [one for one in connections() if interpret.allows_to_node(it.state, one)]
    it.take()
    suspects = set()
    for number, (name, arguments) in enumerate(changes):
        getattr(it, name)(*arguments)
        if number % 3 != 1:
            suspects |= cut.suspects(it.state, it.take())
    suspects |= cut.suspects(it.state, it.take())
    for one in allowed_to_node:
        assert interpret.allows_to_node(it.state, one) or suspects & {one.source, one.destination}, one
    for one in allowed:
        assert interpret.allows(it.state, one) or suspects & {one.source, one.destination}, one


@pytest.mark.parametrize("server, client", [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")])
def test_answers_are_let_by_the_port_of_their_connection(server, client):
    """If the agent ignored the connection's port, it would accept the answers of all ports or of none."""
    ends, version = (read_ip(server), read_ip(client)), "6" if ":" in server else "4"
    it = Compiler()
    it.put_pod(make_pod("server", server))
    it.put_policy(policy("p", ingress=[{"ports": [{"port": 80, "protocol": "UDP"}]}]))
    keys = [concat(*ends, protocol(IPPROTO_UDP), service(port), service(5000)) for port in (80, 81)]
    dropped = {f"{CUT}{version}": keys, f"{CUT_ANY}{version}": [concat(*ends, protocol(IPPROTO_ICMP))]}
    assert cut.allowed_again(dropped, it.state, ()) == {f"{CUT}{version}": keys[:1]}
    assert cut.allowed_again(dropped, it.state, ends[1:]) == dropped


def test_what_a_pod_sends_to_its_own_node_is_not_cut(monkeypatch):
    """The agent reads the node's addresses only if a flow seems forbidden. Then it checks each such flow again."""
    monkeypatch.setattr(cut, "node_addresses", lambda: {read_ip("192.0.2.1")})
    it = Compiler()
    it.put_pod(make_pod("client", "10.0.0.1"))
    it.put_policy(policy("p", policyTypes=["Egress"]))
    to_node, to_other = (SimpleNamespace(source=read_ip("10.0.0.1"), replier=read_ip(replier), protocol=IPPROTO_UDP,
                                         replier_port=53, source_port=5000, mark=0)
                         for replier in ("192.0.2.1", "192.0.2.2"))
    assert cut.forbidden([to_node, to_other], it.state) == [to_other]


@pytest.mark.parametrize("ports, ends, kept", [
    ((68, 67), ("10.0.0.1", "10.0.0.2"), True), ((67, 68), ("10.0.0.2", "10.0.0.1"), True),
    ((68, 67), ("10.0.0.2", "10.0.0.1"), False), ((67, 68), ("10.0.0.1", "10.0.0.2"), False),
    ((69, 67), ("10.0.0.1", "10.0.0.2"), False), ((67, 69), ("10.0.0.2", "10.0.0.1"), False)])
def test_requests_for_a_lease_and_answers_are_not_cut(ports, ends, kept):
    """The address 10.0.0.1 comes from DHCP, and policies close its pod in both directions."""
    it = Compiler()
    it.put_pod(make_pod("client", "10.0.0.1"))
    it.put_policy(policy("p", policyTypes=["Ingress", "Egress"]))
    it.state.elements[DHCP4][read_ip("10.0.0.1")] = ""
    flow = SimpleNamespace(mark=0, source=read_ip(ends[0]), replier=read_ip(ends[1]), protocol=IPPROTO_UDP,
                           source_port=ports[0], replier_port=ports[1])
    assert cut.forbidden([flow], it.state) == ([] if kept else [flow])
