"""`python -m policy_attacks.held_agent ARGUMENTS`: `fastcni ARGUMENTS` with an agent that is stopped in each ADD.

The agent writes its rules before an ADD's answer. It never writes the pod's own rules, which follow the answer. Attacks
can then use the time between the answer and the rules, which is otherwise some milliseconds.
"""

from fastcni.agent.policy.engine import Engine
from fastcni.cli import main


class Held:
    """Replaces the methods of Engine: after the first protect(), only protect() writes."""

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
