"""Write an agent's tables for two pods, with the fastcni of the Python that runs this file.

    PYTHON benchmarks/policy_tables.py POLICY PORTS       # JSON texts, see main()

`bench_policy.py --packets --before PYTHON` runs it, to compare the cost of a packet with that of another version. The
tables of versions before the checks at ports do not contain ports.
"""

import json
import sys

from fastcni.agent.policy import attached
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.spec.address import read_ip


def main(policy, ports):
    """ports: [[address, name of the host's link, whether a bridge has the link, last byte of the pod's MAC]]."""
    engine = Engine(compiler())
    write(engine, [attached.Attachment(("net", address, "eth0"), f"default/{address}", {}, (read_ip(address),), number,
                                       *port_of(*port)) for number, (address, *port) in enumerate(ports)], policy)
    engine.close()


def write(engine, attachments, policy):
    """Write the engine's tables for pods of the namespace `default` and one NetworkPolicy."""
    engine.compiler.put_namespace("default", {})
    for each in attachments:
        engine.compiler.attach(each)
    engine.compiler.put_policy(read_policy(policy))
    engine.load()
    engine.commit()


def compiler():
    try:
        from fastcni.kernel import wire

        return attached.AttachedCompiler(link_of=wire.index_of)
    except (AttributeError, TypeError):         # an earlier version, whose rules know no link
        return attached.AttachedCompiler()


def port_of(name, bridged, number):
    """Return the arguments of Attachment for a port: none in versions before the checks at ports."""
    try:
        from fastcni.agent.policy.ports import Port
    except ImportError:
        return ()
    return (Port(name, bridged, bytes((2, 0, 0, 0, 0, number))),)


if __name__ == "__main__":
    main(*map(json.loads, sys.argv[1:]))
