"""Another program changes the tables of policies. Since Linux 6.9 the kernel rejects the change; on older kernels the
agent undoes it. Needs root."""

import socket
import subprocess
import time
from contextlib import closing

import features
import pytest
from unit.agent.policy import flood
from unit.agent.policy.pods import ADDRESSES
from unit.agent.policy.test_service import WEB_ONLY, allowed, node, running  # noqa: F401 - fixtures

from fastcni.agent import nft_table
from fastcni.agent.contract import ConfigurationError
from fastcni.agent.policy.attached import AttachedCompiler
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.ruleset import TABLE, Ruleset
from fastcni.agent.policy.state import State
from fastcni.agent.run import remove_policies
from fastcni.kernel import nft
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")
OWNED = "nft-owned-tables"
CHANGES = [("delete", "table", "inet", TABLE), ("flush", "chain", "inet", TABLE, "ingress"),
           ("flush", "chain", "inet", TABLE, "egress"), ("flush", "table", "inet", TABLE),
           ("flush", "map", "inet", TABLE, "in4")]


@pytest.fixture
def older_kernel(monkeypatch):
    """Imitate a kernel without owned tables. The test's kernel rejects the unknown flag, as an older kernel rejects
    NFT_TABLE_F_PERSIST."""
    if features.has(OWNED):
        monkeypatch.setattr(nft_table, "OWNED", 1 << 7)


def flags():
    """Return the flags that nft prints for the table."""
    return [line.strip() for line in run("nft", "list", "table", "inet", TABLE).splitlines() if "flags owner" in line]


@pytest.mark.needs(OWNED)
def test_no_packet_passes_while_another_program_flushes_all_rules(running, node):  # noqa: F811
    """Once, up to 273 datagrams passed during each of 30 flushes, until the agent had written the table again."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    listener = node.listeners["b", socket.SOCK_DGRAM, 80]
    assert eventually(lambda: allowed(node))
    flood.received(listener)
    with flood.new_flows(node.names["c"], ADDRESSES["b"][0], 80):
        for _ in range(100):
            run("nft", "flush", "ruleset")
    assert flood.received(listener) == 0
    running.add("a", app="web")
    assert allowed(node, "a")
    assert "policies_restored" not in running.events()


@pytest.mark.needs(OWNED)
@pytest.mark.parametrize("words", CHANGES, ids=" ".join)
def test_another_program_cannot_change_the_table(running, words):  # noqa: F811
    running.write(WEB_ONLY)
    running.add("b", app="db")
    assert eventually(lambda: "goto all-in" in run("nft", "list", "table", "inet", TABLE))
    before = run("nft", "list", "table", "inet", TABLE)
    refused = subprocess.run(["nft", *words], capture_output=True, text=True, check=False)
    assert refused.returncode and "Operation not permitted" in refused.stderr
    assert run("nft", "list", "table", "inet", TABLE) == before


@pytest.mark.needs(OWNED)
def test_a_new_agent_takes_over_the_table_before_it_knows_the_policies(running, node):  # noqa: F811
    """When the agent starts, the API server may be unavailable for a long time."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    running.stop()
    assert not flags()
    with closing(Engine(AttachedCompiler())):
        assert flags()
        run("nft", "flush", "ruleset")
        assert allowed(node)
    running.start()
    assert eventually(lambda: running.it.ready)
    assert flags() and allowed(node)


@pytest.mark.needs(OWNED)
def test_a_second_agent_names_the_process_that_has_the_table(running):  # noqa: F811
    assert eventually(lambda: running.it.ready)
    port = running.it.engine.rules.port
    with pytest.raises(ConfigurationError, match=rf"belongs to another process \(netlink port {port}\)"):
        Engine(AttachedCompiler())
    with pytest.raises(ConfigurationError, match="belongs to another process"):
        remove_policies()
    running.stop()
    assert remove_policies()
    running.start()


@pytest.mark.needs(OWNED)
def test_a_table_of_an_earlier_version_is_replaced_by_an_owned_one(host_netns, monkeypatch):
    with closing(Ruleset()) as earlier:
        earlier.flags = 0
        earlier.load(State())
        assert not flags()
    with closing(Ruleset()) as rules:
        rules.adopt()
        rules.load(State())
        assert rules.flags and flags()
        rules.load(State())
        assert rules.remove() and not rules.remove()


@pytest.mark.parametrize("words", [*CHANGES, ("flush", "ruleset")], ids=" ".join)
def test_an_older_kernel_lets_others_change_the_table_and_that_is_undone(older_kernel, running, node, words):  # noqa: F811
    running.write(WEB_ONLY)
    running.add("b", app="db")
    assert running.it.engine.rules.flags == 0
    run("nft", *words)
    assert eventually(lambda: "policies_restored" in running.events())
    assert eventually(lambda: allowed(node))
    # On a busy machine, the notifications of one flush arrive in parts. The agent restores the table after each part.
    restored = 0
    while (found := running.events().count("policies_restored")) != restored:
        restored = found
        time.sleep(1)
    assert restored <= 2
    run("nft", "add", "table", "inet", "others")
    run("nft", "delete", "table", "inet", "others")
    run("nft", "list", "ruleset")
    time.sleep(0.3)
    assert running.events().count("policies_restored") == restored


def test_flags_are_those_of_the_kernel():
    """Compare the constants with linux/netfilter/nf_tables.h."""
    assert nft_table.OWNED == nft.NFT_TABLE_F_OWNER | nft.NFT_TABLE_F_PERSIST == 6
