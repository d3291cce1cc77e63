"""The agent's metrics."""

import ast
from pathlib import Path

import fastcni
from fastcni.agent.metrics import EVENTS

NOT_OF_AN_AGENT = {"policies_removed"}          # the command `fastcni agent --leave` logs this event


def test_each_warning_and_error_of_the_agent_is_counted():
    """Once, `fastcni_agent_warnings` did not count seven events, such as bgp_failed."""
    logged = {call.args[0].value for path in (Path(fastcni.__file__).parent / "agent").rglob("*.py")
              for call in ast.walk(ast.parse(path.read_text()))
              if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
              and call.func.attr in ("warning", "error") and call.args
              and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)}
    assert len(logged) > 30
    assert logged - set(EVENTS) == NOT_OF_AN_AGENT
