"""Measure cluster-wide addresses with many nodes: a part of bench_cluster_ipam.py.

    given      1,000 nodes allocate 100 addresses each: requests, and how long an ADD takes that claims a block
    full       pods on random nodes take addresses of one range until the first ADD fails: how many addresses are left
    week       pods are added and deleted for a week: how many addresses of the claimed blocks are used
"""

import random
import statistics
import time

from cluster_nodes import Node

from fastcni.kit.ipam.cluster import stores, upkeep
from fastcni.kit.ipam.cluster.conf import read_keys
from fastcni.spec.config import Section

BLOCK = 64              # addresses of a block
DAYS, HOURS = 7, 24


def given(table, etcd, directory, nodes, adds, processes, together):
    """Measure `given`. The nodes are divided among `processes` processes. All nodes claim their first block at the same
    time, and their second block when the first block is full."""
    def work(number, begin):
        mine = [Node(etcd.conf, directory / "given", f"given-{number}-{each}", network_name="given")
                for each in range(nodes // processes)]
        known, claims, others, addresses = [set() for _ in mine], [], [], []
        begin()
        for add in range(adds):
            for node, blocks in zip(mine, known, strict=True):
                began = time.perf_counter()
                address = node.add(add)
                took = (time.perf_counter() - began) * 1e3
                addresses.append(address)
                (others if block_of(address) in blocks else claims).append(took)
                blocks.add(block_of(address))
        return [claims, others, addresses]

    before, began = sum(etcd.requests().values()), etcd.cpu_s()
    seconds, found, cpu = together(processes, work)
    asked, etcd_cpu = sum(etcd.requests().values()) - before, etcd.cpu_s() - began
    claims, others, addresses = (sorted(one for each in found for one in each[place]) for place in range(3))
    table.add(f"{nodes:,} nodes give {len(addresses):,} addresses", f"{seconds:.1f} s, nodes {cpu:.1f} s and etcd "
              f"{etcd_cpu:.1f} s of processor time")
    table.add("    addresses given twice", f"{len(addresses) - len(set(addresses))}", "0",
              len(addresses) == len(set(addresses)))
    table.add("    an ADD that claims a block", f"{statistics.median(claims):.1f} ms, 99 of 100 within "
              f"{claims[len(claims) * 99 // 100]:.1f} ms")
    table.add("    another ADD", f"{statistics.median(others):.2f} ms, 99 of 100 within "
              f"{others[len(others) * 99 // 100]:.2f} ms")
    if asked:
        table.add("    requests of an ADD", f"{asked / len(addresses):.3f}")


def full(table, store, directory, nodes, prefix):
    """Measure `full` with a range of 2^(32 - prefix) addresses."""
    pick = random.Random(1)
    mine = [Node(store, directory / "full", f"full-{number}", network_name="full", range=f"10.0.0.0/{prefix}")
            for number in range(nodes)]
    count = 0
    try:
        while True:
            pick.choice(mine).add(count)
            count += 1
    except SystemExit as e:
        if "is full" not in str(e):
            raise
    size = (1 << 32 - prefix) - 2
    table.add(f"{nodes} nodes, a range of {size:,} addresses: given when it is full for a node",
              f"{count:,}, {count / size:.0%}")


def week(table, store, directory, nodes, days=DAYS):
    """Measure `week`. The number of a node's pods changes at random between 20 and 180. In each hour an eighth of the
    pods is replaced, and the node returns empty blocks, as the node's server does."""
    pick = random.Random(2)
    mine = [Node(store, directory / "week", f"week-{number}", network_name="week", cool_down=0)
            for number in range(nodes)]
    keys = [read_keys(Section(node.conf)) for node in mine]
    registry = stores.open_store(store)
    pods, wanted, made, used, blocks = [[] for _ in mine], [100] * nodes, 0, [], []
    for _ in range(days * HOURS):
        for each, (node, running) in enumerate(zip(mine, pods, strict=True)):
            wanted[each] = min(180, max(20, wanted[each] + pick.randint(-20, 20)))
            pick.shuffle(running)
            for _ in range(max(len(running) // 8, len(running) - wanted[each])):
                node.call("DEL", running.pop())
            while len(running) < wanted[each]:
                made += 1
                node.call("ADD", made)
                running.append(made)
            upkeep.give_back_idle(registry, keys[each], print, 0.0)
        claimed = len(registry.blocks("week"))
        used.append(sum(map(len, pods)) / (BLOCK * claimed))
        blocks.append(claimed / sum(-(-len(running) // BLOCK) for running in pods))
    for day in (0, days - 1):
        span = slice(day * HOURS, (day + 1) * HOURS)
        table.add(f"{nodes} nodes, day {day + 1}: used addresses of the claimed blocks",
                  f"{statistics.mean(used[span]):.0%}; {statistics.mean(blocks[span]):.2f} times the fewest blocks")
    table.add(f"    pods in {days} days", f"{made:,}")


def block_of(address):
    return address.rpartition(".")[0], int(address.rpartition(".")[2]) // BLOCK
