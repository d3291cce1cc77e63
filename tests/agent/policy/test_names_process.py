"""DNS names in policies by `fastcni agent` as a process that is killed, stopped and started again. Needs root."""

import json
import os
import signal
import subprocess
import sys

import pytest
from agent.policy.names_world import NODE_OUTSIDE, RESOLVERS, World, host, named
from agent.policy.test_service import Running, node  # noqa: F401 - fixture

from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")


class Process(Running):
    """The agent as the command runs it; its only node is the test's namespace."""

    def start(self):
        folder = self.folder.parent
        (folder / "nodes.json").write_text(json.dumps({
            "network": {"Network": "10.0.0.0/16", "Backend": {"Type": "host-gw"}},
            "nodes": [{"name": "one", "subnets": ["10.0.0.0/24"], "public": [NODE_OUTSIDE[0]]}]}))
        with open(folder / "log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fastcni", "agent", "--nodes", folder / "nodes.json", "--node-name", "one",
                 "--iface", "outside", "--no-ip-masq", "--subnet-file", folder / "subnet.env", "--conflist", "",
                 "--folder", folder, "--policies", self.folder,
                 *(word for address in RESOLVERS for word in ("--dns-server", address))], stdout=log, stderr=log)

    def await_redirection(self):
        assert eventually(lambda: all("expires" in run(
            "nft", "list", "set", "inet", "fastcni-names", f"resolvers{version}", check=False) for version in (4, 6)),
            30), (self.folder.parent / "log").read_text()

    def write(self, *documents):
        (self.folder / "all.json").write_text(json.dumps({"kind": "List", "items": documents}))

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def world(node, pod_netns):         # noqa: F811
    found = World(node, pod_netns)
    yield found
    found.close()


@pytest.fixture
def process(world, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = Process(tmp_path)
    try:
        it.write(named("a.test", "*.b.test"))
        assert eventually((tmp_path / "policy.sock").exists, 30), (tmp_path / "log").read_text()
        for name in "ab":
            it.add(name, app=name)
        it.await_redirection()
        yield it
    finally:
        it.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_agent_keeps_names_lets_queries_go_directly_and_opens_none(process, world, number):
    """Some five seconds: the elements of the redirection live for two, and the agent starts twice."""
    world.put("a.test", host(1), host(1, 6))
    world.put("x.b.test", host(2), host(2, 6))
    for kind, resolver, family in (("A", RESOLVERS[0], 4), ("AAAA", RESOLVERS[1], 6)):
        assert eventually(lambda kind=kind, resolver=resolver, family=family: world.told(
            "a", "a.test", kind, resolver=resolver, seconds=0.5) == [host(1, family)])
        assert world.connects("a", host(1, family), 10)
    process.process.send_signal(number)
    for kind, resolver, family in (("A", RESOLVERS[0], 4), ("AAAA", RESOLVERS[1], 6)):
        assert eventually(lambda kind=kind, resolver=resolver, family=family: world.told(
            "a", "x.b.test", kind, resolver=resolver, seconds=0.5) == [host(2, family)])
        assert world.connects("a", host(1, family), 10)
        assert not world.connects("a", host(2, family), 0.1)
        assert not world.connects("b", host(1, family), 0.1)
    if number == signal.SIGKILL:
        process.process.wait()
        process.start()
    else:
        process.process.send_signal(signal.SIGCONT)
    process.await_redirection()
    assert world.connects("a", host(1), 10)
    assert eventually(lambda: world.told("a", "x.b.test", seconds=0.5) and world.connects("a", host(2), 0.5))
    assert not world.connects("b", host(2), 0.1)
