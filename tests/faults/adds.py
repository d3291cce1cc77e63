"""Kill the launchers of ADDs with SIGKILL, and send each pod's DEL immediately, warm or one-shot. No address remains
allocated.

The server may still work on the ADD while the DEL runs. The server then rolls the ADD back, or does not begin it. The
campaign calls only the IPAM plugins host-local and cluster, so that it makes many ADDs."""

import json
import os
import subprocess
import threading
import time

from faults.load import guarded
from faults.world import ANSWER, World
from lab.node import Inside

WORKERS = 2
WARM, ONE_SHOT = 0.7, 0.3       # the share of warm ADDs, and of one-shot DELs
LIFE_S = {True: 0.002, False: 0.012}     # the longest time until an ADD is killed: warm, one-shot
ROLLED_BACK_S = 5.0             # seconds in which the server rolls an ADD back, also on a busy machine


def campaign(row, options):
    with World() as world:
        server = world.server()
        killers = [Killer(world, row, server, number) for number in range(WORKERS)]
        threads = [threading.Thread(target=guarded, args=(each.loop, row), daemon=True) for each in killers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, row.until - time.monotonic()) + ANSWER)
        row.note(f"{sum(each.killed for each in killers):,} ADDs killed")


class Killer:
    """A thread that starts ADDs, kills them and sends DELs. Each round has a new container id."""

    def __init__(self, world, row, server, number):
        self.world, self.row, self.server, self.rng = world, row, server, row.rng(number)
        self.number, self.round, self.killed = number, 0, 0
        data = {"dataDir": str(world.directory / "addresses")}
        store = {"type": "local", "path": str(world.directory / "store")}
        self.confs = [self.conf("host-local", ranges=[[{"subnet": "10.40.0.0/16"}]], **data),
                      self.conf("cluster", range="10.41.0.0/16", node_name="a", store=store, **data)]

    def conf(self, kind, **ipam):
        return {"cniVersion": "1.0.0", "name": f"net-{kind}", "type": kind, "ipam": {"type": kind, **ipam}}

    def loop(self):
        with Inside(self.world.name):
            while self.row.running:
                self.one_round()

    def one_round(self):
        self.round += 1
        conf, cid = self.rng.choice(self.confs), f"k{self.number}-{self.round}"
        warm = self.rng.random() < WARM
        self.row.attempt()
        add = self.start("ADD", conf, cid, self.server.path if warm else "")
        time.sleep(self.rng.uniform(0, LIFE_S[warm]))
        add.kill()
        self.killed += add.wait(ANSWER) == -9
        deleted = self.start("DEL", conf, cid, "" if self.rng.random() < ONE_SHOT else self.server.path)
        if status := deleted.wait(ANSWER):
            self.row.failed(f"DEL of {cid}: status {status}")
        self.check(conf, cid)

    def start(self, command, conf, cid, socket):
        environment = {**self.world.environment(command, "", socket), "CNI_CONTAINERID": cid,
                       "CNI_NETNS": "/run/netns/none"}
        process = subprocess.Popen([self.world.bin_dir / conf["type"]], stdin=subprocess.PIPE,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        try:
            process.stdin.write(json.dumps(conf).encode())
            process.stdin.close()
        except BrokenPipeError:                 # the plugin was killed before it read stdin
            return process
        return process

    def check(self, conf, cid):
        """Give the server time to roll back. Then report address files of the container, and files that name no
        owner."""
        directory, deadline = self.directory(conf), time.monotonic() + ROLLED_BACK_S
        while (left := self.held(directory, cid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for name, content in left:
            self.row.left(f"{directory}/{name}: {content!r}, after the DEL of {cid}")
            os.unlink(f"{directory}/{name}")

    def directory(self, conf):
        space = conf["name"] if conf["type"] == "host-local" else "default"
        return f"{self.world.directory}/addresses/{space}"

    def held(self, directory, cid):
        """Return [(name, content)] of address files of the container, and of files that name no owner."""
        found = []
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            if name.startswith("10."):
                try:
                    with open(f"{directory}/{name}", "rb") as file:
                        content = file.read()
                except FileNotFoundError:
                    continue
                if not content or content.startswith(f"{cid}\r\n".encode()):
                    found.append((name, content))
        return found
