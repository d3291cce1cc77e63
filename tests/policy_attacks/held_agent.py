"""`python -m policy_attacks.held_agent ARGUMENTS`: run `fastcni ARGUMENTS` with an agent that stops writing rules
within each ADD.

The agent still writes the rules that precede an ADD's answer. It never writes the pod's own rules, which normally
follow some milliseconds after the answer. So attacks run as if in these milliseconds.
"""

from fastcni.agent.policy.engine import Engine
from fastcni.cli import main


class Held:
    """Methods that replace those of Engine: after the first protect(), only protect() writes rules."""

    protect, commit = Engine.protect, Engine.commit
    writes = True


def protect(engine, attachment):
    Held.writes = True
    try:
        Held.protect(engine, attachment)
    finally:
        Held.writes = False


def commit(engine):
    if Held.writes:
        Held.commit(engine)


if __name__ == "__main__":
    Engine.protect, Engine.commit = protect, commit
    main()
