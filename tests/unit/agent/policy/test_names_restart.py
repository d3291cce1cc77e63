"""DNS names in policies when the agent ends, hangs, is killed, or starts again. Needs root."""

import json
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest
from stopping import kill, stop
from unit.agent.policy.names_world import NODE_OUTSIDE, RESOLVERS, host, named
from unit.agent.policy.test_names import named_pods, redirected, running, world  # noqa: F401 - fixtures
from unit.agent.policy.test_service import Running, node  # noqa: F401 - fixture

from fastcni.agent.policy.names import addresses as answered
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually


class Process(Running):
    """`fastcni agent` as a process. The cluster's only node is the test's namespace."""

    def start(self):
        directory = self.directory.parent
        (directory / "nodes.json").write_text(json.dumps({
            "network": {"Network": "10.0.0.0/16", "Backend": {"Type": "host-gw"}},
            "nodes": [{"name": "one", "subnets": ["10.0.0.0/24"], "public": [NODE_OUTSIDE[0]]}]}))
        with open(directory / "log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fastcni", "agent", "--nodes", directory / "nodes.json", "--node-name", "one",
                 "--iface", "outside", "--no-ip-masq", "--subnet-file", directory / "subnet.env", "--conflist", "",
                 "--folder", directory, "--policies", self.directory,
                 *(word for address in RESOLVERS for word in ("--dns-server", address))], stdout=log, stderr=log)

    def listens(self):
        """Return whether the agent accepts connections. The socket's file exists before the agent listens."""
        with socket.socket(socket.AF_UNIX) as conn:
            return conn.connect_ex(self.settings.socket) == 0

    def await_redirection(self):
        assert eventually(lambda: all("expires" in run(
            "nft", "list", "set", "inet", "fastcni-names", f"resolvers{version}", check=False) for version in (4, 6)),
            30), (self.directory.parent / "log").read_text()

    def write(self, *documents):
        (self.directory / "all.json").write_text(json.dumps({"kind": "List", "items": documents}))

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def process(world, tmp_path):          # noqa: F811
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = Process(tmp_path)
    try:
        it.write(named("a.test", "*.b.test"))
        assert eventually(it.listens), (tmp_path / "log").read_text()
        for name in "ab":
            it.add(name, app=name)
        it.await_redirection()
        yield it
    finally:
        it.stop()


@pytest.mark.parametrize("end", [kill, stop])
def test_a_killed_or_stopped_agent_keeps_names_lets_queries_go_directly_and_opens_none(process, world, end):  # noqa: F811
    """The test takes some five seconds: the elements of the redirection expire after two, and the agent starts
    twice."""
    world.put("a.test", host(1), host(1, 6))
    world.put("x.b.test", host(2), host(2, 6))
    for kind, resolver, family in (("A", RESOLVERS[0], 4), ("AAAA", RESOLVERS[1], 6)):
        assert eventually(lambda kind=kind, resolver=resolver, family=family: world.told(
            "a", "a.test", kind, resolver=resolver, seconds=0.5) and world.connects("a", host(1, family)))
    end(process.process.pid)
    for kind, resolver, family in (("A", RESOLVERS[0], 4), ("AAAA", RESOLVERS[1], 6)):
        assert eventually(lambda kind=kind, resolver=resolver, family=family: world.told(
            "a", "x.b.test", kind, resolver=resolver, seconds=0.5) == [host(2, family)])
        assert world.connects("a", host(1, family), 10)
        assert not world.connects("a", host(2, family), 0.1)
        assert not world.connects("b", host(1, family), 0.1)
    if end is kill:
        process.process.wait()
        process.start()
    else:
        process.process.send_signal(signal.SIGCONT)
    process.await_redirection()
    assert world.connects("a", host(1), 10)
    assert eventually(lambda: world.told("a", "x.b.test", seconds=0.5) and world.connects("a", host(2), 0.5))
    assert not world.connects("b", host(2), 0.1)


def test_what_pods_were_told_outlives_the_table_the_agent_and_its_death(named_pods, running):     # noqa: F811
    it = named_pods
    it.put("a.test", host(1), host(2, 6))
    assert it.learns("a", "a.test", host(1)) and it.learns("a", "a.test", host(2, 6), "AAAA")
    running.it.stale = True                 # as if another program had changed the table
    assert eventually(lambda: "policies_restored" in running.events())
    assert it.connects("a", host(1)) and it.connects("a", host(2, 6), 9)
    run("nft", "flush", "ruleset", check=False)         # since Linux 6.9, the kernel keeps tables that have an owner
    assert it.connects("a", host(1)) and not it.connects("b", host(1), 0.1)
    running.stop()
    assert it.connects("a", host(1)) and not it.connects("b", host(1), 0.1)
    running.start()
    assert redirected(running)
    assert it.connects("a", host(1)) and it.connects("a", host(2, 6), 9) and not it.connects("b", host(1), 0.1)


def test_while_the_agent_hangs_queries_go_directly_and_names_stay_as_they_are(named_pods, running):  # noqa: F811
    it = named_pods
    it.put("a.test", host(1))
    it.put("x.b.test", host(2))
    assert it.learns("a", "a.test", host(1))
    running.ended.set()                     # without the agent's thread, the elements of the redirection expire
    running.thread.join()
    for stream in (False, True):
        assert eventually(lambda stream=stream: it.told("a", "x.b.test", seconds=0.5, stream=stream)) == [host(2)]
    assert it.connects("a", host(1)) and not it.connects("a", host(2), 0.1)
    running.it.close()
    running.start()
    assert redirected(running)
    assert it.told("a", "x.b.test") == [host(2)]
    assert it.connects("a", host(1)) and it.connects("a", host(2))


@pytest.mark.parametrize("policies, goes_on", [(("a.test",), True), (("b.test",), False)])
def test_a_connection_outlives_the_end_of_the_ttl_and_a_restart_while_its_name_is_in_the_policy(
        named_pods, running, monkeypatch, policies, goes_on):       # noqa: F811
    """Once, the restart ended the connection, because the next agent knew only addresses whose TTL had not ended."""
    it = named_pods
    monkeypatch.setattr(answered, "MIN_TTL_S", 1.0)
    monkeypatch.setattr(answered, "SLACK_S", 0.0)
    it.put("a.test", host(1), ttl=0)

    def opened():                           # on a busy machine the TTL of one second may end before the connection
        assert it.told("a", "a.test") == [host(1)]
        with suppress(TimeoutError):
            return it.connection("a", host(1), 0.9)

    with eventually(opened) as client, it.web.accept()[0] as server:
        assert eventually(lambda: not it.connects("a", host(1), 0.1))
        running.it.stale = True             # the agent writes the table again, with addresses whose TTL has ended
        assert eventually(lambda: "policies_restored" in running.events())
        running.stop()
        running.write(named(*policies))
        for _ in range(2):
            running.start()
            assert redirected(running)
            assert eventually(lambda: not running.it.engine.suspects and not running.it.engine.flows.begun)
            assert not it.connects("a", host(1), 0.1)
            running.stop()
        client.send(b"x")
        server.settimeout(10 if goes_on else 0.5)
        if goes_on:
            assert server.recv(1) == b"x"
        else:
            with pytest.raises(TimeoutError):
                server.recv(1)


def test_a_connection_that_no_answer_has_opened_is_cut_at_the_start(named_pods, running):  # noqa: F811
    """A policy with names is added while no agent runs. The pod already has a connection that the policy does not
    allow."""
    it = named_pods
    running.write()
    assert eventually(lambda: it.connects("a", host(1)))
    with it.connection("a", host(1)) as client:
        while select.select([it.web], [], [], 0)[0]:
            server = it.web.accept()[0]
        with server:
            running.stop()
            running.write(named("a.test"))
            running.start()
            assert eventually(lambda: running.it.cut)
            client.send(b"x")
            server.settimeout(0.5)
            with pytest.raises(TimeoutError):
                server.recv(1)
