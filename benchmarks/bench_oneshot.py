"""Whole one-shot processes against Debian's Go plugins: the same call on both sides, turn and turn about.

    .venv/bin/python -m pytest --benchmark-only benchmarks/bench_oneshot.py

PEER names another directory of Go plugins, ROUNDS another number of rounds. Before each call the node rests, so that
the deferred work of the call before (20 ms of RCU after a DEL) is not charged to this one.
"""

import os
import time

import pytest
from node import PEER, Node

from fastcni.launcher.install import install

ROUNDS = int(os.environ.get("ROUNDS", "60"))
REST = 0.04                     # seconds
NEED = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists(f"{PEER}/bridge"),
                          reason=f"needs root, and the Go plugins in {PEER}")

CASES = {
    "loopback": ("loopback", {}),
    "bridge": ("bridge", {"isGateway": True}),
    "bridge ipMasq": ("bridge", {"isGateway": True, "ipMasq": True}),
    "ptp": ("ptp", {}),
    "host-local, 0 held": ("host-local", {}),
    "host-local, 1000 held": ("host-local", {}),
    "host-local, 5000 held": ("host-local", {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{side: directory of its plugins}"""
    ours = tmp_path_factory.mktemp("bin")
    install(str(ours))
    return {"peer": PEER, "fastcni": str(ours)}


@pytest.fixture(scope="module")
def node():
    with Node(pods=2) as made:
        yield made


def hold(node, conf, count):
    """Fill `count` addresses of a network with other containers' files, as the Go plugin writes them."""
    folder = f"{conf['ipam']['dataDir']}/{conf['name']}"
    os.makedirs(folder, exist_ok=True)
    prefix = conf["ipam"]["subnet"].rsplit(".", 2)[0]
    for n in range(2, count + 2):
        with open(f"{folder}/{prefix}.{n >> 8}.{n & 255}", "w", encoding="ascii") as file:
            file.write(f"other{n}\r\neth0")


@NEED
@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize("case", CASES)
def test_oneshot(benchmark, compare, node, folders, case, command):
    kind, keys = CASES[case]
    spent = {"peer": [], "fastcni": []}
    confs = {}
    for side in spent:
        confs[side] = node.conf(side, kind, **keys) | {"name": f"{case}-{side}".replace(" ", "-").replace(",", "")}
        hold(node, confs[side], int(case.split()[1]) if "held" in case else 0)

    def call(side, each):
        took = node.call(folders[side], each, confs[side], pod=list(spent).index(side))
        if each == command:
            spent[side].append(took)

    def before():
        """The peer's whole turn, then what ours needs to have happened."""
        for side, each in (("peer", "ADD"), ("peer", "DEL"), ("fastcni", "DEL" if command == "ADD" else "ADD")):
            call(side, each)
            time.sleep(REST)

    benchmark.pedantic(call, ("fastcni", command), setup=before, rounds=ROUNDS)
    call("fastcni", "DEL")
    compare(f"{case} {command}", spent["peer"][2:], spent["fastcni"][2:])     # the first two find cold caches
