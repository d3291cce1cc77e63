"""Flush nftables while pods are added and deleted. The server restores the set elements of living pods, and not those
of deleted pods.

Some requests are warm, others one-shot. A flush deletes the ruleset, the table, or its rules."""

import subprocess
import time

from faults.load import Runtime, clean_up, pod_conf, together
from faults.world import World, left_behind

STAYING, COMING = 3, 3          # numbers of pods: that stay, that are added and deleted
RESTORED = 30.0  # seconds until the server has restored everything: it delays restores after repeated flushes
FLUSHES = ("flush ruleset", "delete table inet fastcni", "flush table inet fastcni")


def campaign(row, _options):
    with World() as world:
        conf, server = pod_conf(world.node), world.server()
        staying, coming = ([world.pod() for _ in range(count)] for count in (STAYING, COMING))
        base = world.node.left(*staying, *coming)
        for pod in staying:
            added = world.call("ADD", conf, pod, server.path)
            if added.status:
                row.failed(f"ADD of {pod}: {added.stdout!r}")
        lasting, rng, count = world.node.left(*staying, *coming), row.rng(), 0
        row.until -= min(RESTORED, row.until - time.monotonic()) / 2        # leaves time for the last restore

        def flush():
            nonlocal count
            time.sleep(rng.choice([0.02, 0.2, 1.0]))
            subprocess.run(["nft", rng.choice(FLUSHES)], capture_output=True)  # fails if the table was deleted before
            count += 1

        runtimes = [Runtime(world, row, conf, pod, number, [server.path, ""], flushed=True)
                    for number, pod in enumerate(coming)]
        together([each.loop for each in runtimes], row, flush)
        row.left(left_behind(world.node, lasting, *staying, *coming, seconds=RESTORED))
        if server.process.poll() is not None:
            row.failed(f"the server ended with status {server.process.returncode}")
        clean_up(world, row, conf, [*staying, *coming], base, server.path)
        row.note(f"{count} flushes")
