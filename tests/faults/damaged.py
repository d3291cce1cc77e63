"""Damage files: records of cluster-wide addresses and of host-local, and python_core.elf.

The campaign changes bytes of a file, cuts the file, replaces its content or removes it. Each answer is one document. No
live address is given again, each DEL succeeds, and after the DELs of all pods no address is allocated. The launcher
does not use a python_core.elf whose size or time has changed. If the damage changes neither, a small share of the
requests may have no answer, see docs/reliability.md."""

import itertools
import json
import shutil
import subprocess
from pathlib import Path

from faults.rounds import document_of
from faults.world import ANSWER, Request, World
from project.plugin_file import INTERPRETER, write_executable

from fastcni.launcher import interpreters, pack

PAGE = 4096
PODS = 6
# The share of requests that may lack an answer after hidden damage, and the number of requests from which on the share
# is checked
MAX_LOST, FEW = 0.05, 40


def cut(rng, data):
    return data[:rng.randrange(len(data))] if data else b""


def flip(rng, data):
    """Return `data` with up to a page of changed bytes."""
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes(byte ^ 0x5A for byte in data[at:at + rng.choice((1, 16, PAGE))]) + data[at + PAGE:]


def other(rng, data):
    return rng.choice((b"", b"{}", b"[]", b"null", b'{"blocks": 7}', bytes(64), rng.randbytes(100), data + data))


def campaign(row, _options):
    with World() as world:
        records, elf = Records(world, row), Core(world, row)
        for number in itertools.count():
            if not row.running:
                break
            (records if number % 3 else elf).one_round(number)
        records.end()
        elf.end()


class Records:
    """Pods of two networks, one-shot and warm. The campaign damages files between their requests."""

    def __init__(self, world, row):
        self.world, self.row, self.rng, self.damages = world, row, row.rng("records"), 0
        self.server, self.live = world.server(), {}         # {container: (conf, address)}
        self.data = world.directory / "addresses"
        store = {"type": "local", "path": str(world.directory / "store")}
        self.confs = [self.conf("host-local", ranges=[[{"subnet": "10.40.0.0/27"}]]),
                      self.conf("cluster", range="10.41.0.0/27", block_size=30, node_name="a", store=store)]

    def conf(self, kind, **ipam):
        return {"cniVersion": "1.0.0", "name": f"net-{kind}", "type": kind,
                "ipam": {"type": kind, "dataDir": str(self.data), **ipam}}

    def one_round(self, number):
        container = self.rng.choice([*self.live, f"c{number}"]) if len(self.live) < PODS else self.rng.choice(
            [*self.live])
        if container in self.live:
            self.delete(container)
        else:
            self.add(container)
        self.damage()

    def add(self, container):
        conf = self.rng.choice(self.confs)
        answer = self.request("ADD", conf, container)
        if answer.status == 0:
            address = json.loads(answer.stdout)["ips"][0]["address"]
            if address in {had for _, had in self.live.values()}:
                self.row.failed(f"{address} is given to {container}, and another pod has it")
            self.live[container] = conf, address
        elif answer.status is not None:
            self.row.failed(f"ADD of {container}: {answer.stdout!r}")

    def delete(self, container):
        conf, address = self.live.pop(container)
        answer = self.request("DEL", conf, container)
        if answer.status:
            self.row.failed(f"DEL of {container}: {answer.stdout!r}")
        elif self.held(address):
            self.row.left(f"{address} after the DEL of {container}")

    def request(self, command, conf, container):
        self.row.attempt()
        socket = self.rng.choice((self.server.path, ""))
        answer = self.world.call(command, conf, "", socket, CNI_CONTAINERID=container, CNI_NETNS="/run/netns/none")
        if wrong := document_of(answer, command):
            self.row.failed(f"{command} of {container} ({'warm' if socket else 'one-shot'}): {wrong}")
        return answer

    def held(self, address):
        return [path for path in self.data.rglob(address.split("/")[0]) if path.is_file()]

    def damage(self):
        """Damage one file, but no address file and no lock, because these record who has an address."""
        files = [path for path in sorted(self.data.rglob("*")) if path.is_file() and not path.name.startswith("10.")
                 and not path.name.endswith("lock")]
        if not files:
            return
        path, how = self.rng.choice(files), self.rng.choice((cut, flip, other, None))
        self.damages += 1
        if how:
            path.write_bytes(how(self.rng, path.read_bytes()))
        else:
            path.unlink()

    def end(self):
        for container in [*self.live]:
            self.delete(container)
        for path in sorted(self.data.rglob("10.*")):
            self.row.left(f"{path}: {path.read_bytes()!r}")
        if self.server.process.poll() is not None:
            self.row.failed(f"the server ended with status {self.server.process.returncode}")
        self.row.note(f"{self.damages} records damaged")


class Core:
    """A plugin file with its own python_core.elf, which the campaign damages and repairs."""

    def __init__(self, world, row):
        self.world, self.row, self.rng = world, row, row.rng("core")
        self.shown, self.hidden, self.lost = 0, 0, 0
        self.installed = interpreters.core_of(INTERPRETER)
        if not self.installed:
            row.note("python_core.elf is not built for this interpreter")
            return
        directory = world.directory / "core"
        directory.mkdir()
        self.elf = Path(shutil.copy2(self.installed, directory))
        self.plugin = write_executable(directory / "host-local", pack.pack(INTERPRETER, core=str(self.elf)))
        self.conf = {"cniVersion": "1.0.0", "name": "net-core", "type": "host-local", "ipam": {
            "type": "host-local", "dataDir": str(directory), "ranges": [[{"subnet": "10.42.0.0/24"}]]}}

    def one_round(self, number):
        """Add a pod with a damaged python_core.elf, repair the file, and delete the pod. Check that nothing remains."""
        if not self.installed:
            return
        data, hidden = Path(self.installed).read_bytes(), self.rng.random() < 0.5
        damaged = flip(self.rng, data) if hidden else self.rng.choice((cut, flip, other))(self.rng, data)
        self.replace(damaged, like=hidden and len(damaged) == len(data))
        added = self.request("ADD", number)
        if hidden:
            self.hidden += 1
            self.lost += bool(document_of(added, "ADD"))
        else:
            self.shown += 1
            if wrong := document_of(added, "ADD") or (added.status and added.stdout):
                self.row.failed(f"ADD with a damaged python_core.elf, {len(damaged)} bytes: {wrong}")
        self.replace(data, like=True)
        if (deleted := self.request("DEL", number)).status:
            self.row.failed(f"DEL after python_core.elf was repaired: {deleted.stdout!r}")
        for path in (self.elf.parent / "net-core").glob("10.*"):
            self.row.left(f"{path}: {path.read_bytes()!r}")
            path.unlink()

    def replace(self, data, like):
        """Write `data` as python_core.elf. like: give the file the times of the installed file."""
        self.elf.unlink()
        write_executable(self.elf, data)
        if like:
            shutil.copystat(self.installed, self.elf)

    def request(self, command, number):
        self.row.attempt()
        env = self.world.environment(command, "") | {"CNI_CONTAINERID": f"core{number}", "CNI_NETNS": "/run/netns/none"}
        try:
            done = subprocess.run([self.plugin], input=json.dumps(self.conf).encode(), capture_output=True, env=env,
                                  timeout=ANSWER)
        except subprocess.TimeoutExpired as e:
            return Request(None, e.stdout or b"")
        return Request(done.returncode, done.stdout, done.stderr)

    def end(self):
        if self.hidden >= FEW and self.lost > MAX_LOST * self.hidden:
            self.row.failed(f"{self.lost} of {self.hidden} requests without an answer after hidden damage")
        if self.installed:
            self.row.note(f"python_core.elf damaged {self.shown} times, and {self.hidden} times unseen: "
                          f"{self.lost} requests without an answer")
