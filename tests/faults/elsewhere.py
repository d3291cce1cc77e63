"""Make requests in other time namespaces, and run `fastcni gc` in mount namespaces that see no pod. Living pods keep
their addresses, links and files.

A time namespace shifts CLOCK_BOOTTIME, as in a restored virtual machine or in a container with --time. In a private
mount of /run/netns, namespaces that are made later appear as plain files. The campaign also adds and deletes pods.
After each step every living pod has its address file, its link and its cache file, and no address is given twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from faults.rounds import document_of
from faults.world import ANSWER, Request, World, left_behind
from lab.node import cid_of, run

from fastcni.runtime import RuntimeConf
from fastcni.runtime.cache import Cache
from fastcni.spec import json as compact

PODS = 4
OFFSETS_S = (86400 * 30, 3600, 1)  # later than the node's time; other_time() adds a time just after the boot
NETWORK = "net-a"


class Blind:
    """A process in a mount namespace with a private /run/netns. end() ends the process and the namespace."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "infinity"])

    def words(self):
        return ["nsenter", "--mount", "--target", str(self.process.pid)]

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def campaign(row, _options):
    has_times = not subprocess.run(["unshare", "--time", "--fork", "true"], capture_output=True).returncode
    if not has_times:
        row.note("without time namespaces, which this kernel lacks")
    with World() as world, contextlib.ExitStack() as opened:
        pods = [world.pod() for _ in range(PODS)]
        blind = Blind()                 # sees the namespaces of these pods, but not of later pods
        opened.callback(blind.end)
        pods += [world.pod() for _ in range(PODS)]
        Places(world, row, pods, blind, has_times).run()


class Places:
    """The pods of one network, and requests for them from other time and mount namespaces."""

    def __init__(self, world, row, pods, blind, has_times):
        self.world, self.row, self.pods, self.blind, self.rng = world, row, pods, blind, row.rng()
        self.has_times = has_times
        self.conf = world.node.conf("10.22.0.0/24", isGateway=True)
        self.directory, self.cache = world.directory / "conf", Cache(world.directory / "cache")
        self.directory.mkdir()
        self.network = {"cniVersion": self.conf["cniVersion"], "name": self.conf["name"], "plugins": [self.conf]}
        (self.directory / "a.conflist").write_text(json.dumps(self.network))
        self.living, self.collected = {}, 0             # {pod: its address}
        self.server = world.server()

    def run(self):
        base = self.world.node.left(*self.pods)
        while self.row.running:
            pod = self.rng.choice(self.pods)
            step = self.rng.choice((self.collect, self.change, self.change))
            step(pod)
            self.check(step.__name__)
        for pod in self.pods:
            if pod in self.living:
                self.change(pod)
        run("ip", "link", "del", self.conf.get("bridge", "br0"), check=False)
        self.row.left(left_behind(self.world.node, base, *self.pods))
        self.row.note(f"{self.collected} times fastcni gc")

    def other_time(self):
        """Return the words to put before a command so that it runs in another time, or [] for the node's time."""
        since_boot = int(float(Path("/proc/uptime").read_text().split()[0]))
        offset = self.rng.choice((*OFFSETS_S, 1 - since_boot, 0, 0))
        return ["unshare", "--time", "--fork", f"--boottime={offset}"] if offset and self.has_times else []

    def change(self, pod):
        """Add the pod, or delete a living pod, in a random time namespace. The mount namespace is the node's: a runtime
        sees its pod's namespace."""
        words = self.other_time()
        command = "DEL" if pod in self.living else "ADD"
        answer = self.request(command, pod, words)
        if wrong := document_of(answer, command) or (answer.status and answer.stdout.decode()):
            self.row.failed(f"{command} of {pod} {' '.join(words)}: {wrong}")
        runtime = RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0")
        if command == "DEL":
            self.living.pop(pod)
            self.cache.remove(NETWORK, runtime)
        elif answer.status == 0:
            result = json.loads(answer.stdout)
            address = result["ips"][0]["address"]
            if address in self.living.values():
                self.row.failed(f"{address} is given to {pod}, and another pod has it")
            self.living[pod] = address
            self.cache.write(NETWORK, compact.write(self.network), runtime, result)

    def request(self, command, pod, words):
        """Make a request, one-shot or warm. words: the words before the plugin file in the command line, such as
        unshare(1)."""
        self.row.attempt()
        env = self.world.environment(command, pod, self.rng.choice((self.server.path, "")))
        try:
            done = subprocess.run([*words, self.world.bin_dir / self.conf["type"]], capture_output=True, env=env,
                                  input=json.dumps(self.conf).encode(), timeout=ANSWER)
        except subprocess.TimeoutExpired as e:
            return Request(None, e.stdout or b"")
        return Request(done.returncode, done.stdout, done.stderr)

    def collect(self, _):
        """Run `fastcni gc` in a random time namespace, and in the mount namespace of `blind` or of the node."""
        self.row.attempt()
        self.collected += 1
        words = [*self.other_time(), *self.rng.choice((self.blind.words(), []))]
        done = subprocess.run([*words, sys.executable, "-m", "fastcni", "gc", NETWORK, "--conf-dir", self.directory,
                               "--bin-dir", self.world.bin_dir, "--cache-dir", self.world.directory / "cache"],
                              capture_output=True, text=True, timeout=ANSWER, env={**os.environ, "FASTCNI_SOCKET": ""})
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            self.row.failed(f"fastcni gc {' '.join(words)}: status {done.returncode} {done.stderr[-500:]}")

    def check(self, after):
        """Report each address file, link or cache file that a living pod has lost. after: the name of the last step."""
        for pod, address in [*self.living.items()]:
            runtime = RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0")
            has = {"address file": (Path(self.world.node.data_dir) / NETWORK / address.split("/")[0]).exists(),
                   "cache file": os.path.exists(self.cache.path(NETWORK, runtime)),
                   "link": "eth0" in run("ip", "link", "show", netns=pod)}
            if lost := [what for what, there in has.items() if not there]:
                self.row.failed(f"{pod} ({address}) has lost after {after}: {', '.join(lost)}")
                del self.living[pod]
