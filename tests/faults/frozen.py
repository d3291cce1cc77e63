"""A server that is stopped (SIGSTOP, a debugger): plugins are answered, and it undoes nothing when it continues.

Requests come before and during the stop. After SIGCONT it is the same process, and the state is still the one that the
answers meanwhile have told."""

import json
import os
import signal
import threading
import time

from faults.load import TRY_AGAIN, pod_conf
from faults.steps import document_of
from faults.world import ANSWER, World, left_behind
from real_kernel.node import Inside, run

LATE = 2.0                      # seconds in which a server that goes on would do what it had read
SHORT, LONG = 0.3, 7.0          # seconds of a freeze: a hiccup, and more than a signal wait of five seconds


class Asked(threading.Thread):
    """One request in a thread of its own."""

    def __init__(self, world, server, command, conf, pod):
        super().__init__(daemon=True)
        self.words, self.answer, self.world = (command, conf, pod, server.path), None, world
        self.start()

    def run(self):
        with Inside(self.world.name):
            self.answer = self.world.call(*self.words)


def campaign(row, _options):
    with World() as world:
        server, conf, pod, rng = world.server(), pod_conf(world.node), world.pod(), row.rng()
        base = world.node.left(pod)
        for number in range(1 << 30):
            if not row.running:
                break
            one_freeze(world, row, server, conf, pod, rng, SHORT if number % 4 else LONG)
            run("ip", "link", "del", "br0", check=False)
            left = left_behind(world.node, base, pod)
            row.left(left)
            if left or server.process.poll() is not None:
                if server.process.poll() is not None:
                    row.failed(f"the server ended with status {server.process.returncode} after a freeze")
                break


def one_freeze(world, row, server, conf, pod, rng, seconds):
    """Freeze the server around an ADD or a DEL; the state is what the answers say."""
    pid, first = server.process.pid, rng.choice(["ADD", "DEL"])
    if first == "DEL":
        world.call("ADD", conf, pod, server.path)
    before = rng.random() < 0.5                     # or while it works
    if before:
        os.kill(pid, signal.SIGSTOP)
    asked = Asked(world, server, first, conf, pod)
    if not before:
        time.sleep(rng.uniform(0, 0.004))
        os.kill(pid, signal.SIGSTOP)
    row.attempt()
    try:
        asked.join(seconds)
        thawed = asked.is_alive() and seconds == SHORT
        if thawed:
            os.kill(pid, signal.SIGCONT)            # a hiccup: the answer comes from either
        asked.join(ANSWER)
        if asked.is_alive() or asked.answer.status is None:
            row.failed(f"{first}, frozen {'before' if before else 'while it worked'}: no answer in {ANSWER} s")
            return
    finally:
        os.kill(pid, signal.SIGCONT)
    check_answer(world, row, server, conf, pod, first, asked.answer)


def check_answer(world, row, server, conf, pod, first, answer):
    """What was answered is so, also after the server has gone on."""
    if wrong := document_of(answer, first):
        row.failed(f"{first} with a frozen server: {wrong}")
    if answer.status and (first != "ADD" or json.loads(answer.stdout)["code"] != TRY_AGAIN):
        row.failed(f"{first} with a frozen server: status {answer.status} {answer.stdout!r}")
    if first == "ADD" and answer.status == 0:
        time.sleep(LATE)
        checked = world.call("CHECK", {**conf, "prevResult": json.loads(answer.stdout)}, pod, server.path)
        if checked.status:
            row.failed(f"an ADD that succeeded was undone when the server went on: {checked.stdout!r}")
    deleted = world.call("DEL", conf, pod, server.path)
    if deleted.status:
        row.failed(f"the DEL after a freeze: {deleted.stdout!r}")
    if first == "ADD" and answer.status:
        time.sleep(LATE)                            # a late ADD would bring back what DEL has removed
