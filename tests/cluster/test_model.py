"""Run the model of tests/unit/kit/ipam/cluster/test_model.py on the stores that real nodes use.

    Invariant: no address of a space has two live owners.
"""

import pytest
from hypothesis import settings
from unit.kit.ipam.cluster.machine import ClusterMachine
from unit.kit.ipam.cluster.real_stores import EtcdMachine, LocalMachine, SimulatedEtcd
from unit.kit.ipam.cluster.test_model import FORGOTTEN, QUICK, find, run, steps

BOUNDED = settings(QUICK, max_examples=40)      # some 2,000 steps, in 10 s on etcd


@pytest.fixture(params=["local", "etcd"])
def machine(request):
    if request.param == "local":
        return LocalMachine
    return type("EtcdMachine", (EtcdMachine,), {"etcd": request.getfixturevalue("etcd_member")})


def test_no_address_of_a_space_has_two_live_owners(machine):
    ClusterMachine.take_steps()
    run(machine, BOUNDED)
    assert ClusterMachine.take_steps() >= 1000


def test_a_node_that_boots_without_its_store_gives_nothing_of_its_former_blocks(machine):
    steps(*FORGOTTEN, kind=machine)


class WithoutCompare(SimulatedEtcd):
    """A store with a defect: claim() takes a block that another node has."""

    def claim(self, me, wanted):
        for block in self.blocks():
            if (block.space, block.cidr) in wanted and block.node != me.name:
                self.give_back(block)
        return super().claim(me, wanted)


def test_the_machine_finds_a_claim_that_compares_nothing(etcd_member):
    find(EtcdMachine, "two live owners", etcd=etcd_member, store=WithoutCompare)
