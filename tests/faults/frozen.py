"""Freeze the server (SIGSTOP, as a debugger does). Callers still get answers, and the server changes nothing when it
continues.

The campaign makes requests before and during the freeze. After SIGCONT the same process continues, and the node's state
still matches the answers that callers got during the freeze."""

import json
import os
import signal
import threading
import time

from faults.load import TRY_AGAIN, pod_conf
from faults.rounds import document_of
from faults.world import ANSWER, World, left_behind
from lab.node import Inside, run

from fastcni.kit.call.deadlines import UNREAD_S

LATE_S = 2.0                    # time in which a continued server could wrongly finish a request
SHORT, LONG = 0.3, UNREAD_S + 2  # seconds of a freeze; in a long freeze the plugin file runs an unread request one-shot


class Asked(threading.Thread):
    """A thread that makes one request."""

    def __init__(self, world, server, command, conf, pod):
        super().__init__(daemon=True)
        self.request, self.answer, self.world = (command, conf, pod, server.path), None, world
        self.start()

    def run(self):
        with Inside(self.world.name):
            self.answer = self.world.call(*self.request)


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
    """Freeze the server before or during an ADD or a DEL. Then check the answer and the state."""
    pid, first = server.process.pid, rng.choice(["ADD", "DEL"])
    if first == "DEL":
        world.call("ADD", conf, pod, server.path)
    before = rng.random() < 0.5                     # otherwise freeze while the server works on the request
    if before:
        os.kill(pid, signal.SIGSTOP)
    asked = Asked(world, server, first, conf, pod)
    if not before:
        time.sleep(rng.uniform(0, 0.004))
        os.kill(pid, signal.SIGSTOP)
    row.attempt()
    try:
        asked.join(seconds)
        os.kill(pid, signal.SIGCONT)    # the server answers the requests that it has read; plugin files run the rest
        asked.join(ANSWER)
        if asked.is_alive() or asked.answer.status is None:
            row.failed(f"{first}, frozen {'before' if before else 'while it worked'}: no answer in {ANSWER} s")
            return
    finally:
        os.kill(pid, signal.SIGCONT)
    check_answer(world, row, server, conf, pod, first, asked.answer)


def check_answer(world, row, server, conf, pod, first, answer):
    """Check that the node's state matches the answer, now and after the server has continued."""
    if wrong := document_of(answer, first):
        row.failed(f"{first} with a frozen server: {wrong}")
    if answer.status and (first != "ADD" or json.loads(answer.stdout)["code"] != TRY_AGAIN):
        row.failed(f"{first} with a frozen server: status {answer.status} {answer.stdout!r}")
    if first == "ADD" and answer.status == 0:
        time.sleep(LATE_S)
        checked = world.call("CHECK", {**conf, "prevResult": json.loads(answer.stdout)}, pod, server.path)
        if checked.status:
            row.failed(f"a successful ADD was rolled back when the server continued: {checked.stdout!r}")
    deleted = world.call("DEL", conf, pod, server.path)
    if deleted.status:
        row.failed(f"the DEL after a freeze: {deleted.stdout!r}")
    if first == "ADD" and answer.status:
        time.sleep(LATE_S)                            # a late ADD would make state again that DEL has removed
