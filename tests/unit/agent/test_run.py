"""The agent's loop with stubs of its parts."""

import json
import threading
from dataclasses import replace
from ipaddress import ip_address, ip_network

from lab.loggers import logger_to
from unit.agent.nodes import conf, record

from fastcni.agent import network
from fastcni.agent.contract import State
from fastcni.agent.run import Agent, Options
from fastcni.daemon.wakeup import Wakeup
from fastcni.testing.witnesses import eventually


class StubKeeper:
    """A stub of Keeper and Masquerade that sends no wakeup."""

    def __init__(self):
        self.due, self.wakeup = float("inf"), Wakeup()
        self.fileno = self.wakeup.fileno

    def attend(self):
        pass

    def set(self, *_):
        pass

    def close(self):
        self.wakeup.close()


class StubBackend:
    name = "vxlan"

    def __init__(self):
        self.written = []               # (this node's subnet, names of the other nodes)

    def state(self, me, others):
        self.written.append((str(me.subnets[4]), sorted(node.name for node in others)))
        return State()

    def mtu(self):
        return 1450


def test_a_list_that_comes_while_the_subnet_changes_is_not_lost(tmp_path, monkeypatch):
    """Once, the earlier list replaced the new list until the next change of a node."""
    (tmp_path / "nodes.json").write_text(json.dumps({}))
    hooks = {}

    def note(event):
        hooks.get(event["event"], lambda: None)()

    settings = {"path": str(tmp_path / "nodes.json"), "name": "node-1"}
    agent = Agent(Options("static", settings, subnet_file=str(tmp_path / "env"), conflist=""),
                  logger_to(note))
    me, backend = record(1, "vxlan", {}), StubBackend()
    for name in ("Keeper", "Masquerade"):
        monkeypatch.setattr(network, name, lambda log: StubKeeper())
    moved = replace(me, subnets={4: ip_network("10.244.9.0/24")})
    two, three = (replace(record(number, "vxlan", {}), public={4: ip_address(f"192.0.2.{number}")})
                  for number in (2, 3))
    agent._begin = lambda *_: setattr(agent, "ready", True)
    # in place of the thread that watches the registry
    hooks["subnet_changed"] = lambda: agent._changed([moved, two, three])
    agent._changed([me, two])
    agent.network = it = network.Network(conf(), backend, me, agent.log, str(tmp_path))
    thread = threading.Thread(target=agent._keep, args=(it,))
    thread.start()
    try:
        assert eventually(lambda: backend.written == [("10.244.1.0/24", ["node-2"])])
        agent.rejoined.append(moved)
        agent.wakeup.wake()
        assert eventually(lambda: backend.written[-1] == ("10.244.9.0/24", ["node-2", "node-3"]), 5), backend.written
        assert eventually(lambda: agent.figures() == {"nodes": 2, "skipped": 0, "routes": 0, "ready": 1})
    finally:
        agent.stop()
        thread.join()
        agent.close()
        it.close()
