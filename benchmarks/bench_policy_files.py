"""Measure network policies in files: how long an ADD and another file's policy wait after a hostile file is written.

    .venv/bin/python benchmarks/bench_policy_files.py           # as root; 2,000 pods in as many files

Prints a table of figures and wanted figures. The agent is a separate process. Immediately after the hostile file, the
benchmark makes an ADD and writes a file with a policy. The policy is in force when the agent names the policy for a
pod's address.

`make test` runs each part once, with small numbers, and asserts no time.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import pytest
from bench_cluster_ipam import Table
from bench_policy import Agent, Site, add_and_delete, make_port, pod, took_ms, unshare

from fastcni.kit import policies

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * 9)}]\n" for each in range(1, 12)) + "kind: NetworkPolicy\n"
HOSTILE = {
    "no file": "", "2,000 brackets, 2 KB": "[" * 2000, "aliases, 1 KB": f"{ALIASES}spec: {{podSelector: *a11}}\n",
    "a harmless list of 0.4 MB": "kind: List\nitems:\n" + "".join(
        f"- {{kind: Pod, metadata: {{name: x{each}, labels: {{app: web, tier: front, more: of-it}}}}, "
        f"status: {{podIP: 10.9.{each >> 8}.{each & 255}}}}}\n" for each in range(3000)),
    "an endless list of 4 MB": "kind: List\nitems: [" + "[]," * 1_300_000 + "]\n"}
ADDRESS = "10.200.0.1"


class Processes:
    """The agent's process and its child processes. peak: the largest sum of the proportional set sizes of all these
    processes, in KB."""

    def __init__(self, pid):
        self.pid, self.peak, self.ended = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def close(self):
        self.ended.set()
        self.thread.join()

    def _run(self):
        while not self.ended.wait(0.01):
            self.peak = max(self.peak, sum(map(self.pss, self.tree(self.pid))))

    def tree(self, pid):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:                 # the process has ended
            return [pid]
        return [pid, *(each for child in children for each in self.tree(child))]

    @staticmethod
    def pss(pid):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:                 # the process has ended
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)

    def processor_ms(self):
        """Return the processor time of the agent's main process in ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def write(directory, name, text):
    (directory / "new").write_text(text)
    (directory / "new").rename(directory / name)


def document(app, name="new"):
    return json.dumps({"kind": "NetworkPolicy", "metadata": {"name": name}, "spec": {
        "podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress"]}})


def await_policies(agent, names):
    """Wait until the agent names these policies for ADDRESS."""
    while True:
        (found,) = policies.ask(agent.socket, {"do": "explain", "address": ADDRESS})["pods"]
        if found["ingress"] == names:
            return
        time.sleep(0.001)


def add_memory(table, processes):
    table.add("    memory of all processes", f"{processes.peak / 1024:.0f} MB", "150 MB", processes.peak < 150 << 10)


def measure(table, files, site, rounds):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
        agent = Agent(site, work)
        directory, processes = Path(work, "policies"), Processes(agent.pid)
        try:
            measure_agent(table, agent, directory, processes, files, rounds)
        finally:
            processes.close()
            agent.close()


def measure_agent(table, agent, directory, processes, files, rounds):
    make_port()
    for number in range(files):
        write(directory, f"pod-{number}.json", json.dumps({
            "kind": "Pod", "metadata": {"name": f"file-{number}", "labels": {"app": "x"}},
            "status": {"podIP": f"10.8.{number >> 8}.{number & 255}"}}))
    write(directory, "pod.json", json.dumps({"kind": "Pod", "metadata": {"name": "victim", "labels": {"app": "v"}},
                                          "status": {"podIP": ADDRESS}}))
    write(directory, "first.json", document("v", "first"))
    while not policies.ask(agent.socket, {"do": "explain", "address": ADDRESS})["pods"]:
        time.sleep(0.01)
    await_policies(agent, ["default/first"])
    add_memory(table, processes)
    for what, text in HOSTILE.items():
        adds, others, processes.peak = [], [], 0
        for number in range(rounds):
            if text:
                write(directory, "hostile.yaml", f"# {number}\n{text}")
            write(directory, "other.json", document("v"))
            others.append(took_ms(await_policies, agent, ["default/first", "default/new"]))
            if text:
                write(directory, "hostile.yaml", f"# {number} again\n{text}")
            adds.append(add_and_delete(pod(10_000 + number, number % 100), agent))
            (directory / "other.json").unlink()
            await_policies(agent, ["default/first"])
            time.sleep(0.3 if text else 0)
        for name, found in ((f"{what}: an ADD", adds), ("    another file's policy", others)):
            high = max(found)
            table.add(name, f"{statistics.median(found):.1f} ms, {high:.1f} ms at most", "50 ms", high <= 50)
        add_memory(table, processes)
    (directory / "hostile.yaml").unlink()
    time.sleep(0.5)
    before, began = processes.processor_ms(), []
    for number in range(rounds):
        app = "v" if number % 2 else "w"
        write(directory, "pod.json", json.dumps({"kind": "Pod", "metadata": {"name": "victim", "labels": {"app": app}},
                                              "status": {"podIP": ADDRESS}}))
        began.append(took_ms(await_policies, agent, ["default/first"] if number % 2 else []))
    table.add(f"one label in one of {files} files", f"{statistics.median(began):.1f} ms, {max(began):.1f} ms at most")
    table.add("    processor time of the agent", f"{(processes.processor_ms() - before) / rounds:.0f} ms", "50 ms",
              (processes.processor_ms() - before) / rounds <= 50)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--policies", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    unshare()
    table = Table()
    measure(table, options.files, Site(options.policies, 200, 0), options.rounds)
    print(table)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network namespace")
def test_each_part_of_the_benchmark_of_files_runs(host_netns):
    table = Table()
    measure(table, 10, Site(5, 5, 0), 2)
    assert "one label in one of 10 files" in str(table)


if __name__ == "__main__":
    main()
