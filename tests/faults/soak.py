"""A long load with occasional flushes. The server's memory, descriptors and threads stay flat."""

import os
import subprocess
import time

from faults.load import Runtime, clean_up, pod_conf, together
from faults.world import World
from real_kernel.node import eventually

PODS = 4
WARM_UP = 0.25                  # share of the time in which caches and the allocator's heap grow
SAMPLE_S = 0.5                  # between two samples
MAX_GROWTH_KB = 3 << 10         # of the memory after the warm-up
MAX_MORE = 16                   # threads or descriptors after it: background threads start when needed
CLOSE_S = 20                    # until the server has closed the sockets of idle namespaces


class Sample:
    """Resident memory in kB, descriptors and threads of a process."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/status") as file:
            values = dict(line.split(":", 1) for line in file)
        self.memory, self.threads = int(values["VmRSS"].split()[0]), int(values["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))


def campaign(row, _options):
    with World() as world:
        conf, server, pods = pod_conf(world.node), world.server(), [world.pod() for _ in range(PODS)]
        base, pid = world.node.left(*pods), server.process.pid
        warm_at = time.monotonic() + WARM_UP * (row.until - time.monotonic())
        first, highest, rng = None, 0, row.rng()

        def sample():
            nonlocal first, highest
            time.sleep(SAMPLE_S)
            now = Sample(pid)
            if first is None and time.monotonic() > warm_at:
                first = now
            highest = max(highest, now.memory) if first else 0
            if rng.random() < SAMPLE_S / 10:
                subprocess.run(["nft", "flush ruleset"], capture_output=True)

        runtimes = [Runtime(world, row, conf, pod, number, [server.path], flushed=True)
                    for number, pod in enumerate(pods)]
        together([each.loop for each in runtimes], row, sample)
        if first is None:
            row.note("no sample was taken after the warm-up: nothing is compared")
            first = Sample(pid)
        flat = eventually(lambda: Sample(pid).descriptors <= first.descriptors + MAX_MORE, CLOSE_S)
        last = Sample(pid)
        if not flat:
            row.failed(f"descriptors: {first.descriptors} after the warm-up, {last.descriptors} at the end")
        if last.threads > first.threads + MAX_MORE:
            row.failed(f"threads: {first.threads} after the warm-up, {last.threads} at the end")
        if last.memory > first.memory + MAX_GROWTH_KB:
            row.failed(f"memory: {first.memory} kB after the warm-up, {last.memory} at the end, {highest} at most")
        clean_up(world, row, conf, pods, base, server.path)
        row.note(f"memory {first.memory / 1024:.1f} to {last.memory / 1024:.1f} MB, "
                 f"{last.descriptors} descriptors, {last.threads} threads")
