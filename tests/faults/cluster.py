"""Run the model of the cluster for the given time: no address of an address space has two live owners.

Passes alternate between a store in memory, the store `local`, and an etcd. The output names the seed of each pass.
tests/unit/kit/ipam/cluster/test_model.py describes the model."""

import contextlib
import itertools
import shutil
import traceback

import hypothesis
from cluster.etcd import Etcd, encoded
from unit.kit.ipam.cluster.machine import OLDER, ClusterMachine
from unit.kit.ipam.cluster.real_stores import LocalMachine, RestoredEtcdMachine
from unit.kit.ipam.cluster.test_model import LONG, run


def campaign(row, _options):
    with contextlib.ExitStack() as opened:
        machines = [(ClusterMachine, {}), (LocalMachine, {})]
        if shutil.which("etcd"):
            etcd = opened.enter_context(Etcd())
            for _ in range(OLDER):
                etcd.call("/v3/kv/put", {"key": encoded("before"), "value": ""})
            machines.append((RestoredEtcdMachine, {"etcd": etcd}))
        else:
            row.note("without etcd, which is not installed")
        rng = row.rng()
        for base, values in itertools.cycle(machines):
            if not row.running or row.failures:         # a further pass would find the same fault again
                return
            one_pass(row, rng.randrange(1 << 32), base, values)


def one_pass(row, number, base, values):
    machine = hypothesis.seed(number)(type("ClusterMachine", (base,), values))
    try:
        run(machine, LONG)
    except Exception as e:
        row.failed(f"{base.__name__}, seed {number}: {type(e).__name__}: {e} {' '.join(getattr(e, '__notes__', ()))}")
        traceback.print_exc()
    row.attempt(ClusterMachine.take_steps())
