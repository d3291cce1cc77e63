"""Measure cluster-wide addresses on a real etcd of one member: the cost of an ADD, and how many nodes etcd serves.

    .venv/bin/python benchmarks/bench_cluster_ipam.py            # as root it also measures plugin files and a server
    .venv/bin/python benchmarks/bench_cluster_ipam.py --etcd http://10.0.0.1:2379

Prints a table of figures and wanted figures. etcd counts the requests (/metrics), not the client. Nodes are simulated:
each has its own name and directory, and gives addresses without making links.

`make test` runs each part once, with small numbers and the store `local`, and asserts no time.
"""

import argparse
import gc
import ipaddress
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import ipam_at_scale
from cluster_nodes import ENV, Etcd, Local, Node, host_local

from fastcni.bench.calls import Running, one
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.plugins import load

BLOCK = 64                      # addresses of a block
HELD = (0, 48, 1000)
WARM_UP = 20                    # pairs of ADD and DEL before the measurement
PARTS = ("present", "files", "claim", "many", "first", "usual", "given", "full", "week")


def took_ms(function, *args):
    began = time.perf_counter()
    function(*args)
    return (time.perf_counter() - began) * 1e3


# -- an ADD with a block present ---------------------------------------------------------------------------------------

def block_present(store, directory, held, rounds, cool_down=0):
    """Return {"cluster": [ms of an ADD], "host-local": [ms of an ADD]}. The requests run in this process, which keeps
    the store open as the server does.

    Each ADD follows a DEL immediately, so with a cool-down no address would be free."""
    name = f"held-{held}-{cool_down}"
    sides = {"cluster": Node(store, directory, name, network_name=name, cool_down=cool_down),
             "host-local": host_local(directory / name)}
    for node in sides.values():
        for number in range(held + 1):
            node.call("ADD", number)
    found = {name: [] for name in sides}
    for number in range(held + 1, held + 1 + rounds):
        for name, node in sides.items():
            found[name].append(took_ms(node.call, "ADD", number))
            node.call("DEL", number)
    for node in sides.values():
        node.close()
    return found


def by_plugin_files(store, directory, held, rounds, socket_path=""):
    """Return the figures of block_present() for plugin files: one-shot, or warm if socket_path names a server's
    socket."""
    name = f"files-{held}-{bool(socket_path)}"
    sides = {"cluster": Node(store, directory, name, network_name=name, cool_down=0),
             "host-local": host_local(directory / name)}
    found = {name: [] for name in sides}
    for node in sides.values():
        for number in range(held + 1):
            node.call("ADD", number)
        node.close()
    for number in range(held + 1, held + 1 + rounds):
        for name, node in sides.items():
            for command in ("ADD", "DEL"):
                env = {**ENV, "CNI_COMMAND": command, "CNI_CONTAINERID": f"{number:064x}",
                       "CNI_PATH": f"{directory}/bin",
                       "FASTCNI_SOCKET": socket_path, "PATH": os.environ["PATH"]}
                path = f"{directory}/bin/{node.type}"
                ms, _ = one(lambda path=path, env=env, node=node: Running(path, env, node.stdin, path))
                if command == "ADD":
                    found[name].append(ms)
    return found


# -- an ADD that claims a block ----------------------------------------------------------------------------------------

def block_to_claim(etcd, directory, rounds):
    """Return ([ms of an ADD that claims a block], [ms of other ADDs], requests of a claim). Blocks have 8 addresses,
    and no block is claimed ahead. etcd's counter is read only at the beginning and at the end, because a read would
    slow down the next ADD."""
    node = Node(etcd.conf, directory, "claims", network_name="claims", range="10.64.0.0/16", block_size=29)

    def block(reply):
        return int(ipaddress.ip_interface(json.loads(reply)["ips"][0]["address"])) // 8

    known = {block(node.call("ADD", 0))}
    with_claim, without = [], []
    before = sum(etcd.requests().values())
    for number in range(1, rounds * 8 + 1):
        began = time.perf_counter()
        reply = node.call("ADD", number)
        ms = (time.perf_counter() - began) * 1e3
        (without if block(reply) in known else with_claim).append(ms)
        known.add(block(reply))
    requests = sum(etcd.requests().values()) - before
    node.close()
    return with_claim, without, requests / len(with_claim)


# -- many nodes --------------------------------------------------------------------------------------------------------

def together(count, work, ready=None):
    """Run work(number, begin) in `count` processes. begin() returns in all processes at the same time, when each
    process has called it and ready() has returned. Return (seconds from the first begin to the last end, [results of
    work()], processor seconds of all processes). work() must return a JSON value."""
    go_read, go_write = os.pipe()
    children = []
    gc.freeze()                     # the server also freezes its objects
    for number in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.close(go_write)
                began = []

                def begin(write=write, began=began):
                    os.write(write, b"\n")
                    os.read(go_read, 1)
                    began.extend([time.monotonic(), time.process_time()])

                result = work(number, begin)
                document = json.dumps([began[0], time.monotonic(), time.process_time() - began[1], result]).encode()
                with os.fdopen(write, "wb") as file:
                    file.write(document)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        children.append((pid, read))
    for _, read in children:
        os.read(read, 1)
    if ready:
        ready()
    os.close(go_read)
    os.close(go_write)
    found = []
    for pid, read in children:
        with os.fdopen(read, "rb") as file:
            found.append(json.loads(file.read() or b"null"))
        os.waitpid(pid, 0)
    if not all(found):
        raise SystemExit("a simulated node has failed")
    seconds = max(ended for _, ended, _, _ in found) - min(began for began, _, _, _ in found)
    return seconds, [result for _, _, _, result in found], sum(cpu for _, _, cpu, _ in found)


def many_adds(make, nodes, adds, ready=None):
    """Make `adds` ADDs by `nodes` nodes at the same time. make(number): makes a node in its process. Return (seconds,
    addresses, processor seconds). Before the measurement each node makes some ADDs, so it has joined, has a block, and
    its code is warm."""
    def work(number, begin):
        node = make(number)
        for _ in range(WARM_UP):
            node.call("ADD", 0)
            node.call("DEL", 0)
        begin()
        return [node.call("ADD", each).decode() for each in range(1, adds // nodes + 1)]

    seconds, found, cpu = together(nodes, work, ready)
    return seconds, [json.loads(reply)["ips"][0]["address"] for each in found for reply in each], cpu


def first_blocks(store, directory, nodes, processes, space):
    """Let `nodes` nodes make their first ADD at the same time, each in a thread of one of `processes` processes. Return
    (seconds, addresses, processor seconds)."""
    def work(number, begin):
        mine = [Node(store, directory, f"first-{number}-{each}", network_name=space)
                for each in range(nodes // processes)]
        found, gate = [], threading.Barrier(len(mine) + 1)

        def add(node):
            gate.wait()
            try:
                found.append(node.add(1))
            except SystemExit as e:
                print(e, file=sys.stderr)

        threads = [threading.Thread(target=add, args=(node,)) for node in mine]
        for thread in threads:
            thread.start()
        begin()
        gate.wait()
        for thread in threads:
            thread.join()
        return found

    open_store(store).nodes()           # loads the store's client, as on a running node
    seconds, found, cpu = together(processes, work)
    return seconds, [address for each in found for address in each], cpu


# -- the table ---------------------------------------------------------------------------------------------------------

class Table:
    """A table of rows (what, figure, wanted figure, whether the figure meets it)."""

    def __init__(self):
        self.rows = []

    def add(self, what, figure, wanted="", good=None):
        self.rows.append((what, figure, wanted, "" if good is None else "yes" if good else "NO"))
        print(f"  {what}: {figure}", file=sys.stderr, flush=True)

    def __str__(self):
        rows = [("", "figure", "wanted", "met"), *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
                 for row in rows]
        return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def compare(table, what, found, wanted="1.15x"):
    """Add a row for an ADD on a node that has a block: the medians of cluster and host-local, and their ratio."""
    cluster, other = (statistics.median(found[side]) for side in ("cluster", "host-local"))
    table.add(f"ADD, block present, {what}", f"{cluster:.3f} ms, host-local {other:.3f} ms, {cluster / other:.2f}x",
              wanted, cluster <= 1.15 * other if wanted else None)


def by_files(table, etcd, directory, rounds):
    """Add the rows of plugin files, one-shot and warm. These rows need root, because the server listens below /run."""
    from fastcni.bench.sides import serve
    from fastcni.launcher.install import install

    install(directory / "bin")
    with serve(str(directory)) as server:
        for held in HELD[1:]:
            compare(table, f"{held} held, one-shot", by_plugin_files(etcd.conf, directory, held, rounds))
            compare(table, f"{held} held, warm", by_plugin_files(etcd.conf, directory, held, rounds * 4, server.sock))


def claiming(table, etcd, directory, rounds):
    with_claim, without, requests = block_to_claim(etcd, directory, rounds)
    if not requests:                            # the store `local` counts no requests
        return
    more = statistics.median(with_claim) - statistics.median(without)
    table.add("ADD, block to claim: requests", f"{requests:g}", "2", requests <= 2)
    table.add("ADD, block to claim: added time", f"{more:.2f} ms", "2 ms", more <= 2)


def at_once(table, etcd, directory, nodes, adds, run):
    def node(number):
        return Node(etcd.conf, directory / f"many-{run}", f"node-{number}", network_name=f"many-{run}")

    before = []
    seconds, addresses, cpu = many_adds(node, nodes, adds,
                                        lambda: before.extend((etcd.requests().get("Txn", 0), etcd.cpu_s())))
    etcd_cpu, claims = etcd.cpu_s() - before[1], etcd.requests().get("Txn", 0) - before[0]
    least, given, least_cpu = many_adds(lambda number: host_local(directory / f"many-{run}-{number}"), nodes, adds)
    twice = len(addresses) - len(set(addresses))
    table.add(f"{nodes} nodes, {adds:,} ADDs at once", f"{len(addresses) / seconds:,.0f} addresses/s", "20,000/s",
              len(addresses) / seconds >= 20_000)
    table.add("    processor time of an ADD", f"{cpu / len(addresses) * 1e6:.0f} us: {len(addresses) / cpu:,.0f}/s by "
              f"each of {os.cpu_count()} processors; etcd {etcd_cpu / len(addresses) * 1e6:.0f} us")
    table.add("    the same by host-local, without a store",
              f"{len(given) / least:,.0f} addresses/s, {least_cpu / len(given) * 1e6:.0f} us")
    table.add("    addresses given twice", f"{twice}", "0", not twice)
    if claims:
        each = claims / len(addresses) * BLOCK
        table.add("    store transactions for 64 addresses", f"{each:.2f}", "1.2", each <= 1.2)
    return addresses


def firsts(table, etcd, directory, nodes, processes):
    before, began = etcd.requests(), etcd.cpu_s()
    seconds, addresses, cpu = first_blocks(etcd.conf, directory / "first", nodes, processes, "first")
    etcd_cpu, after = etcd.cpu_s() - began, etcd.requests()
    asked = {method: after[method] - before.get(method, 0) for method in after if after[method] > before.get(method, 0)}
    table.add(f"{nodes:,} nodes, first block at once", f"{seconds:.2f} s", "5 s", seconds <= 5)
    table.add("    processor time", f"nodes {cpu:.2f} s, etcd {etcd_cpu:.2f} s")
    table.add("    nodes with an address of their own", f"{len(set(addresses)):,}", f"{nodes:,}",
              len(set(addresses)) == nodes)
    if asked:
        table.add("    requests of each", f"{sum(asked.values()) / nodes:.2f} ({spelled(asked, nodes)})")


def spelled(asked, nodes):
    return ", ".join(f"{method} {count / nodes:.2f}" for method, count in sorted(asked.items()))


def usual(table, etcd, directory, pods):
    """Add a row: the etcd requests for ADDs and DELs of a new node, next to the numbers of whereabouts."""
    before = sum(etcd.requests().values())
    node = Node(etcd.conf, directory, "usual", network_name="usual")
    for command in ("ADD", "DEL"):
        for number in range(pods):
            node.call(command, number)
    node.close()
    asked = sum(etcd.requests().values()) - before
    table.add(f"requests of {pods} ADDs and DELs of a new node", f"{asked}, {asked / pods:.3f} a pod",
              "whereabouts: 9-10 an ADD, 8-9 a DEL")


def main():
    for name in ("cluster", "host-local"):
        load(name)                      # before threads and processes need the module
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--etcd", default="", help="the URL of an etcd; by default the benchmark starts an etcd")
    parser.add_argument("--directory", default="/dev/shm", help="the directory for the nodes' state")
    parser.add_argument("--etcd-directory", default=None,
                        help="the directory for etcd's data; by default the system's temporary directory")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", default="", help=",".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="run a few rounds of each part")
    options = parser.parse_args()
    rounds, table = 20 if options.quick else options.rounds, Table()
    with tempfile.TemporaryDirectory(dir=options.directory) as name, Etcd(options.etcd, options.etcd_directory) as etcd:
        directory, parts = Path(name), options.only.split(",") if options.only else PARTS
        if "present" in parts:
            for held in HELD:
                compare(table, f"{held} held, in process", block_present(etcd.conf, directory, held, rounds * 5))
            compare(table, "48 held, all other addresses cooling down, in process",
                    block_present(etcd.conf, directory, 48, rounds * 5, cool_down=30), wanted="")
        if "files" in parts and os.geteuid() == 0:
            by_files(table, etcd, directory, rounds // 2)
        if "claim" in parts:
            claiming(table, etcd, directory, rounds // 4)
        if "many" in parts:
            for run in range(1 if options.quick else 3):
                at_once(table, etcd, directory, 30, 3000, run)
        if "first" in parts:
            firsts(table, etcd, directory, 1000, 20)
        if "usual" in parts:
            usual(table, etcd, directory, 1000)
        if "given" in parts:
            ipam_at_scale.given(table, etcd, directory, 1000, 100, 20, together)
        if "full" in parts:
            ipam_at_scale.full(table, etcd.conf, directory, 200, 18)
        if "week" in parts:
            ipam_at_scale.week(table, etcd.conf, directory, 50)
    print(table)


def test_each_part_of_the_benchmark_runs(tmp_path, scaled):
    """Run each part with small numbers and the store `local`. No address is given twice."""
    store, table = Local(tmp_path), Table()
    compare(table, "few held", block_present(store.conf, tmp_path, 4, scaled(100)))
    claiming(table, store, tmp_path, 2)
    addresses = at_once(table, store, tmp_path, 3, scaled(300), 0)
    assert len(addresses) == len(set(addresses))
    seconds, addresses, _ = first_blocks(store.conf, tmp_path / "first", 8, 2, "first")
    assert seconds > 0 and len(addresses) == len(set(addresses)) == 8
    usual(table, store, tmp_path, scaled(100))
    ipam_at_scale.given(table, store, tmp_path, 4, 3, 2, together)
    ipam_at_scale.full(table, store.conf, tmp_path, 3, 24)
    ipam_at_scale.week(table, store.conf, tmp_path, 2, 1)
    assert "host-local" in str(table)


if __name__ == "__main__":
    main()
