"""A model of the cluster. Requests, crashes, partitions, reboots and an operator's steps come in any order.

    Invariant: no address of an address space has two live owners.

An owner is live from the result of its ADD until its DEL begins, its node loses power, or another sandbox takes its
pod's place. An owner stays live if its node loses the store, or is declared dead. A second invariant is about the
store: after another node has raised a node's epoch, writes with the earlier epoch have no effect.

The assumption is rule A1 in docs/ipam.md:

    A1  The operator stops a node's pods and processes before forgetting the node. Here the node is switched off.

The rules call the plugin as a runtime does, see machine.py and simulation.py. Here the store is in memory.
tests/cluster/test_model.py runs the machine on etcd and on the store `local`. `python -m faults cluster` runs all three
for a given time, with new random choices each time.
"""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from unit.kit.ipam.cluster.machine import IPAM, ClusterMachine
from unit.kit.ipam.cluster.memory_store import MemoryStore
from unit.kit.ipam.cluster.real_stores import LocalMachine
from unit.kit.ipam.cluster.simulation import LOST_REPLY, PAUSE, simulated_modules

from fastcni.kit.ipam.cluster import allocate, claims, states
from fastcni.kit.ipam.cluster.contract import ACTIVE, DEAD, HELD, QUARANTINE, SHARED, Block, Fenced

ANY = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
QUICK = settings(max_examples=60, stateful_step_count=50, derandomize=True, phases=(Phase.generate,), **ANY)
LONG = settings(max_examples=30, stateful_step_count=60, phases=(Phase.generate,), **ANY)
SEEDS = 12
FIND = settings(max_examples=300, stateful_step_count=60, phases=(Phase.generate,), report_multiple_bugs=False, **ANY)


def run(machine, chosen):
    with simulated_modules(lambda: ClusterMachine.current.cluster):
        run_state_machine_as_test(machine, settings=chosen)


# The planted faults need none of these rules. Without them, a search takes a tenth of the time.
NOT_NEEDED = dict.fromkeys(("back_up", "restore", "confirm", "jump_clock", "collect", "return_idle", "answer", "delete",
                            "repeat_add", "kill_process", "pass_time", "reboot", "change_power", "forget", "remove"))


def find(base, match, **values):
    """Run a machine with a planted fault until an invariant fails, with one seed after another. Most faults need one
    seed. The steps of a seed depend on the version of hypothesis and on the imported modules."""
    with pytest.raises(AssertionError, match=match):
        for number in range(1, 1 + SEEDS):
            run(seed(number)(type("ClusterMachine", (base,), NOT_NEEDED | values)), FIND)


def steps(*lines, kind=ClusterMachine):
    """Run these rules of a machine, in this order. Return the machine."""
    with simulated_modules(lambda: ClusterMachine.current.cluster):
        machine = kind()
        try:
            for name, *values in lines:
                getattr(machine, name)(*values)
        finally:
            machine.teardown()
    return machine


def test_no_address_of_a_space_has_two_live_owners():
    run(ClusterMachine, QUICK)


# -- the table of states -----------------------------------------------------------------------------------------------

WALK = (
    ("fill", 1, "tiny"), ("add", 0, "wide", 0, "", (LOST_REPLY, "claim")), ("fill", 0, "wide"), ("fill", 0, "dual"),
    ("fill", 0, "sticky"), ("fill", 1, "fixed"), ("fill", 2, "wide"), ("reboot", 1), ("fill", 1, "other-space"),
    ("pass_time", 61.0), ("reboot", 1), ("fill", 1, "other-space"), ("pass_time", 301.0), ("fill", 2, "overlapping"),
    ("lose", 2, 1), ("declare_dead", 2, 1, None), ("repair",), ("fill", 2, "wide"),
    *[("delete", 0, None)] * 40, ("return_idle", 2, None), ("remove", 0, 1),
)
# Transitions that neither a request nor an operator of the machine causes. states_contract.py tests all transitions on
# each store.
NEVER = {
    (ACTIVE, states.RETURN, states.USED),           # a node claimed an address while the owner returned the block
    (ACTIVE, states.ADOPT, states.FORMER),          # the process of declare_dead() was killed
    (DEAD, states.DECLARE, states.RAISED),
    (ACTIVE, states.ADOPT, states.LATER),           # the node's record was deleted
    (QUARANTINE, states.ADOPT, states.LATER),
    (QUARANTINE, states.ADOPT, states.OWN),
    (SHARED, states.SHARE, states.ANY),             # two nodes share a block at the same time
    (SHARED, states.RETURN, states.EMPTY),          # fastcni returns no shared block
    (states.UNKNOWN, states.FORGET, states.ANY),    # two servers forget a node at the same time
}


def transitions_of(monkeypatch, *lines, kind=ClusterMachine):
    """Run these rules of a machine. Return the transitions of the table that happened."""
    seen, after = set(), states.after

    def noted(record, event, guard=states.ANY, node=None):
        new = after(record, event, guard, node)
        if new is not None:
            seen.add((record.state, event, guard))
        return new

    monkeypatch.setattr(states, "after", noted)
    steps(*lines, kind=kind)
    return seen


@pytest.mark.parametrize("kind", [ClusterMachine, LocalMachine])
def test_requests_and_operators_make_each_transition_of_the_table(monkeypatch, kind):
    assert transitions_of(monkeypatch, *WALK, kind=kind) == set(states.TRANSITIONS) - NEVER


# -- planted faults: the machine finds them ----------------------------------------------------------------------------

class WithoutCompare(MemoryStore):
    """A store with a fault: claim() takes blocks of other nodes."""

    def claim(self, me, wanted):
        for key in wanted:
            self.memory.blocks.pop(tuple(key), None)
        return super().claim(me, wanted)


class WithoutEpoch(MemoryStore):
    """A store with a fault: it does not compare the epoch of a node."""

    def _own(self, me):
        try:
            return super()._own(me)
        except Fenced as e:
            return e.node


class WithoutQuarantine(MemoryStore):
    """A store with a fault: the blocks of a dead node are free immediately."""

    def declare_dead(self, node):
        dead = super().declare_dead(node)
        for key in [key for key, block in self.memory.blocks.items() if block.node == node.name]:
            del self.memory.blocks[key]
        return dead


class NotedFirst:
    """A claims.claim_blocks() with a fault: it records a block as the node's own before it claims the block."""

    def __init__(self, function):
        self.function = function

    def __call__(self, store, me, keys, ranges, state):
        claim = store.claim

        def noted(me, wanted):
            blocks = [Block(space=space, cidr=cidr, node=me.name, epoch=me.epoch, state=ACTIVE, since=1.0)
                      for space, cidr in wanted]
            claims.note_blocks(store, keys, blocks, print)
            return claim(me, wanted)

        store.claim = noted
        return self.function(store, me, keys, ranges, state)


@pytest.mark.parametrize("store", [WithoutCompare, WithoutEpoch, WithoutQuarantine])
def test_the_machine_finds_a_fault_that_is_planted_in_the_store(store):
    find(ClusterMachine, r"two live owners|epoch", store=store)


def test_the_machine_finds_a_block_that_is_noted_before_it_is_claimed(monkeypatch):
    monkeypatch.setattr(claims, "claim_blocks", NotedFirst(claims.claim_blocks))
    find(ClusterMachine, "two live owners")


# -- sequences of steps that the machine has found --------------------------------------------------------------------

FORGOTTEN = (("fill", 0, "wide"), ("remove", 0, 1), ("fill", 1, "wide"), ("fill", 1, "sticky"), ("fill", 1, "fixed"),
             ("change_power", 0), ("fill", 0, "wide"))


def test_a_node_that_boots_without_its_store_gives_nothing_of_its_former_blocks():
    """The node was forgotten while it was switched off, and another node has its blocks. Once, the node used its
    recorded blocks again while the store was unavailable."""
    steps(*FORGOTTEN)


def test_a_sandbox_gets_no_address_of_its_pods_former_sandbox_in_a_block_that_another_node_has():
    """Once, after the clock was set back, the node kept the files of the previous boot. A pod of the same name took
    over such a file's address."""
    steps(*FORGOTTEN[:-2], ("jump_clock", 0, -86400.0), ("repair",), FORGOTTEN[-1])


def test_the_steps_of_a_forgotten_node_show_a_boot_without_a_confirmation(monkeypatch):
    monkeypatch.setattr(allocate, "unconfirmed", lambda space: False)
    with pytest.raises(AssertionError, match="two live owners"):
        steps(*FORGOTTEN)


BEATS = tuple(("confirm", node, None) for node in range(3))
# the pause after the restore has ended
SETTLED = (*BEATS, ("fill", 0, "wide"), ("fill", 2, "wide"), ("pass_time", 31.0), *BEATS)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("network", list(IPAM))
def test_nodes_that_the_store_has_shown_nothing_wait_after_a_restore(network, first):
    """The store keeps its ID. The revision that the first node saw last is no higher than the backup's, and the third
    node has never asked. Once, both nodes got addresses of the second node's pods."""
    known = "other-space" if network == "other-space" else "overlapping"
    steps(("add", 0, known, 0, "", None), ("back_up",), ("fill", 1, network),
          ("restore", (first, 1, 2 - first), [network]), *SETTLED, ("fill", 0, network), ("fill", 2, network))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize("known", [True, False])
def test_an_address_in_another_nodes_block_is_asked_for_again_after_a_restore(order, known):
    """The restored store lacks the IPClaim. If `known` is False, the store also lacks the block until the
    block's node has claimed it."""
    saved = [("add", 1, "wide", 0, "", None), ("add", 0, "overlapping", 0, "", None), ("back_up",)]
    machine = steps(*(saved if known else saved[1:]), ("fill", 1, "wide"), ("delete", 4 if known else 3, None),
                    ("add", 0, "fixed", 0, "10.0.0.14", (PAUSE, "ip_claim")), ("answer", 1, None), ("go_on", 0),
                    ("restore", order, []), *BEATS, ("answer", 1, None))
    ip_claim = machine.memory.ip_claims["default", "10.0.0.14"]
    assert (ip_claim.state, ip_claim.node) == (HELD, "n1")
    assert {block.node for block in machine.memory.blocks.values()} == {"n1", "n2"}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_a_sticky_address_that_a_pod_got_again_after_the_backup_is_not_kept_for_another_sandbox(order):
    steps(("add", 0, "overlapping", 0, "", None), ("fill", 1, "sticky"), ("delete", 1, None), ("back_up",),
          ("fill", 1, "sticky"), ("restore", order, ["sticky"]), *SETTLED, ("fill", 0, "sticky"))


def test_a_node_that_has_lost_its_blocks_file_claims_its_single_addresses_again_after_a_restore():
    """The lost file also contained the block sizes of the address space."""
    with simulated_modules(lambda: ClusterMachine.current.cluster):
        machine = ClusterMachine()
        try:
            machine.fill(1, "overlapping")
            machine.back_up()
            machine.fill(0, "tiny")
            (machine.nodes[0].directory / "default/.cluster/blocks.json").unlink()
            machine.restore((0, 1, 2), ["overlapping"])
        finally:
            machine.teardown()
    assert {(one.node, one.state) for one in machine.memory.ip_claims.values()} == {("n1", HELD)}
