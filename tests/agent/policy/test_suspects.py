"""Each connection that a change forbids is looked at by the cut."""

from agent.policy.clusters import connections
from agent.policy.test_compile import CHANGES
from hypothesis import given, settings

from fastcni.agent.policy import cut, interpret
from fastcni.agent.policy.compile import Compiler


@settings(max_examples=25)
@given(CHANGES, CHANGES)
def test_each_forbidden_connection_has_an_end_that_is_suspected(before, changes):
    it = Compiler("here")
    for name, arguments in before:
        getattr(it, name)(*arguments)
    allowed = [one for one in connections() if interpret.allows(it.state, one)]
    it.take()
    suspects = set()
    for number, (name, arguments) in enumerate(changes):
        getattr(it, name)(*arguments)
        if number % 3 != 1:
            suspects |= cut.suspects(it.state, it.take())
    suspects |= cut.suspects(it.state, it.take())
    for one in allowed:
        assert interpret.allows(it.state, one) or suspects & {one.source, one.destination}, one
