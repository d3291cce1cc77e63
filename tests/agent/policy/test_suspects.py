"""Each connection that a change forbids is looked at by the cut. Answers on those that are allowed again are let."""

from socket import IPPROTO_ICMP, IPPROTO_UDP

import pytest
from agent.policy.clusters import connections, make_pod
from agent.policy.test_compile import CHANGES, policy
from hypothesis import given, settings

from fastcni.agent.policy import cut, interpret
from fastcni.agent.policy.compile import Compiler
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
    """A port that is not read lets no answer, or the answers of all ports."""
    ends, version = (read_ip(server), read_ip(client)), "6" if ":" in server else "4"
    it = Compiler()
    it.put_pod(make_pod("server", server))
    it.put_policy(policy("p", ingress=[{"ports": [{"port": 80, "protocol": "UDP"}]}]))
    keys = [concat(*ends, protocol(IPPROTO_UDP), service(port), service(5000)) for port in (80, 81)]
    dropped = {f"{CUT}{version}": keys, f"{CUT_ANY}{version}": [concat(*ends, protocol(IPPROTO_ICMP))]}
    assert cut.allowed_again(dropped, it.state, ()) == {f"{CUT}{version}": keys[:1]}
    assert cut.allowed_again(dropped, it.state, ends[1:]) == dropped
