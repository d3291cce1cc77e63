"""The model of the cluster for as long as it is given: no address of a space has two live owners.

Each pass has a seed that the output names. tests/cluster_ipam/test_model.py says what the model is."""

import traceback

import hypothesis
from cluster_ipam.machine import ClusterMachine
from cluster_ipam.test_model import LONG, run


def campaign(row, _options):
    rng, failed = row.rng(), False
    while row.running and not failed:
        number = rng.randrange(1 << 32)
        machine = hypothesis.seed(number)(type("ClusterMachine", (ClusterMachine,), {}))
        try:
            run(machine, LONG)
        except Exception as e:
            row.failed(f"seed {number}: {type(e).__name__}: {e} {' '.join(getattr(e, '__notes__', ()))}")
            traceback.print_exc()
            failed = True               # the same fault would be found again
        row.attempt(ClusterMachine.take_steps())
