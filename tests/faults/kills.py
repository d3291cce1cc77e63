"""Kill plugin files in both modes, and the server with its running requests, with SIGKILL at random times.

After each kill a DEL succeeds. At the end no state and no process is left."""

import time

from faults.load import Runtime, clean_up, pod_conf, together
from faults.world import World, held_locks

PODS = 4
SERVER_LIFE_S = (0.1, 1.5)      # from the server's start to the kill: shortest, longest


def campaign(row, _options):
    with World() as world:
        conf, pods = pod_conf(world.node), [world.pod() for _ in range(PODS)]
        base, rng, killed = world.node.left(*pods), row.rng(), 0
        server = world.server()

        def sometimes(rng):
            return rng.uniform(0, 0.03) if rng.random() < 0.4 else None

        def kill_server():
            nonlocal server, killed
            time.sleep(rng.uniform(*SERVER_LIFE_S))
            server.__exit__()
            killed += 1
            server = world.server()

        runtimes = [Runtime(world, row, conf, pod, number, [server.path, server.path, ""], sometimes)
                    for number, pod in enumerate(pods)]
        together([each.loop for each in runtimes], row, kill_server)
        clean_up(world, row, conf, pods, base, server.path)
        for path in held_locks(world.node.data_dir):
            row.left(f"still locked: {path}")
        row.note(f"server killed {killed} times")
