"""Measure setup and teardown of a podman container by fastcni and by netavark's bridge driver, in turn in one run.

    .venv/bin/python benchmarks/bench_netavark.py           # as root; a minute, and once two to fetch Debian 13

The node has the root directory of Debian 13 with Debian's netavark (tests/runtimes/world.py). Each call gets podman's
JSON for a container with a published port. Another container stays in the network, so no call makes or removes the
network's bridge. Prints a table: medians in ms, and how many times faster than netavark's bridge each row is.

    netavark, bridge      netavark with its own bridge driver
    netavark, fastcni     netavark, which calls the driver fastcni, warm
    fastcni, warm         the driver without netavark, by a server
    fastcni, one-shot     the driver without netavark and without a server
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NETAVARK, DRIVERS, CONFIG = "/usr/lib/podman/netavark", "/usr/libexec/netavark", "/run/netavark-bench"
BY_NETAVARK = (NETAVARK, "--config", CONFIG, "--rootless=false", "--aardvark-binary=/nowhere",
               "--plugin-directory", DRIVERS)
# {implementation: (driver, command line, whether by the server)}
SIDES = {"netavark, bridge": ("bridge", BY_NETAVARK, False), "netavark, fastcni": ("fastcni", BY_NETAVARK, True),
         "fastcni, warm": ("fastcni", (f"{DRIVERS}/fastcni",), True),
         "fastcni, one-shot": ("fastcni", (f"{DRIVERS}/fastcni",), False)}


def documents(side, number):
    """Return two JSON documents for a container in the network of `side`: podman's for netavark, and netavark's for a
    plugin."""
    place = [*SIDES].index(side)
    network = {"name": f"bench{place}", "id": f"{place}" * 64, "driver": SIDES[side][0], "internal": False,
               "network_interface": f"bench{place}", "ipv6_enabled": False, "dns_enabled": False,
               "ipam_options": {"driver": "host-local"}, "options": {},
               "subnets": [{"subnet": f"10.{60 + place}.0.0/16", "gateway": f"10.{60 + place}.0.1"}]}
    options = {"interface_name": "eth0", "static_ips": [f"10.{60 + place}.0.{number + 2}"]}
    port = {"container_port": 80, "host_port": 10000 + 100 * place + number, "protocol": "tcp", "range": 1,
            "host_ip": ""}
    common = {"container_id": f"{number}{place}" * 32, "container_name": "bench", "port_mappings": [port]}
    if SIDES[side][1] is BY_NETAVARK:
        return {**common, "networks": {network["name"]: options}, "network_info": {network["name"]: network}}
    return {**common, "network": network, "network_options": options}


def call(side, command, netns, number):
    """Run setup or teardown. Return its duration in ms."""
    _, words, by_server = SIDES[side]
    env = {"PATH": os.environ["PATH"], **({} if by_server else {"FASTCNI_SOCKET": ""})}
    words, stdin = [*words, command, f"/run/netns/{netns}"], json.dumps(documents(side, number)).encode()
    started = time.perf_counter()
    done = subprocess.run(words, input=stdin, capture_output=True, env=env, check=False)
    took = time.perf_counter() - started
    assert done.returncode == 0, f"{side} {command}: {done.stdout}{done.stderr}"
    return took * 1000


def measure(rounds):
    """Return {implementation: [(ms of setup, ms of teardown)]}. Call measure() on the node."""
    found = {side: [] for side in SIDES}
    netns = ["standing", "measured"]
    os.makedirs(CONFIG, exist_ok=True)
    for place, side in enumerate(SIDES):
        subprocess.run(["ip", "netns", "add", f"{netns[0]}{place}"], check=True)
        call(side, "setup", f"{netns[0]}{place}", 0)
    for _ in range(rounds):
        for side, times in found.items():
            subprocess.run(["ip", "netns", "add", netns[1]], check=True)
            times.append((call(side, "setup", netns[1], 1), call(side, "teardown", netns[1], 1)))
            subprocess.run(["ip", "netns", "del", netns[1]], check=True)
    for place, side in enumerate(SIDES):
        call(side, "teardown", f"{netns[0]}{place}", 0)
        subprocess.run(["ip", "netns", "del", f"{netns[0]}{place}"], check=True)
    return found


def report(found):
    lines = [f"{'ms':20}{'setup':>10}{'teardown':>10}"]
    medians = {side: [statistics.median(each) for each in zip(*times, strict=True)] for side, times in found.items()}
    reference = next(iter(medians.values()))
    for side, (setup, teardown) in medians.items():
        times = f"{reference[0] / setup:5.1f}x {reference[1] / teardown:5.1f}x"
        lines.append(f"{side:20}{setup:10.1f}{teardown:10.1f}   {times}")
    return "\n".join(lines)


def main():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--inside", action="store_true", help="measure here, on a node with a server")
    chosen = options.parse_args()
    if chosen.inside:
        print(report(measure(chosen.rounds)))
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from packages.clean_system import base
    from runtimes.test_netavark import PACKAGES
    from runtimes.world import World

    with (tempfile.TemporaryDirectory() as directory,
          World(directory, base("trixie", "trixie-podman", *PACKAGES)) as world):
        world.shell(f"fastcni install --netavark-dir {DRIVERS}")
        world.serve()
        print(world.run(sys.executable, __file__, "--inside", "--rounds", chosen.rounds), end="")


if __name__ == "__main__":
    main()
