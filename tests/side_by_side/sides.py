"""Run one implementation of the plugins on a separate host: make pods, start processes, and call plugins by the CNI
protocol."""

import ctypes
import json
import os
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor

from fastcni.testing.namespaces import add_netns, delete_netns, run, set_lo_up

CLONE_NEWNET = 0x40000000
LIMIT = 60                                      # seconds for one plugin; the slowest waits 5 s for DAD
libc = ctypes.CDLL(None, use_errno=True)


class Inside:
    """`with Inside(name):` moves this thread, and the processes that it starts, to a named network namespace."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            set_netns(there)
        finally:
            os.close(there)

    def __exit__(self, *_):
        try:
            set_netns(self.home)
        finally:
            os.close(self.home)


def set_netns(fd):
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a namespace")


def new_netns(role):
    """Add a network namespace whose lo is down, as a runtime does for a pod. Return its name."""
    name = f"fcni-{role}-{uuid.uuid4().hex[:8]}"
    add_netns(name)
    return name


def set_sysctl(netns, name, value):
    with Inside(netns), open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


class Answer:
    """The answer of one plugin process: status, stdout, stderr; `document` is the one JSON document of stdout."""

    __slots__ = ("status", "stdout", "stderr")

    def __init__(self, status, stdout, stderr):
        self.status, self.stdout, self.stderr = status, stdout, stderr

    @property
    def document(self):
        return json.loads(self.stdout) if self.stdout else None

    def __str__(self):
        return f"status {self.status}: {self.stdout} {self.stderr}"


class Side:
    """`with Side(...) as side:` adds a host namespace; at the end the namespace, its pods and processes are removed."""

    def __init__(self, name, bin_dir, directory, socket=""):
        self.name, self.bin_dir, self.directory, self.socket = name, bin_dir, str(directory), socket
        self.made = []

    def __enter__(self):
        os.makedirs(self.directory)
        try:
            self.host = self.netns("host")
            with Inside(self.host):
                set_lo_up()
            # No test needs duplicate address detection on the host, which would take two seconds a test.
            set_sysctl(self.host, "net/ipv6/conf/default/accept_dad", "0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.made:
            delete_netns(name)

    def netns(self, role):
        name = new_netns(role)
        self.made.append(name)
        return name

    def pod(self, quick_dad=False):
        """Add a pod's namespace. Return its path, for CNI_NETNS. quick_dad: switch off duplicate address detection."""
        name = self.netns("pod")
        if quick_dad:
            set_sysctl(name, "net/ipv6/conf/default/accept_dad", "0")
        return f"/run/netns/{name}"

    def on_host(self, *command, **more):
        with Inside(self.host):
            return run(*command, **more)

    def own(self, conf):
        """Return the configuration with this Side's directory in place of @here."""
        return json.loads(json.dumps(conf).replace("@here", self.directory))

    def environment(self, command, netns="", *, cid="pod-1", ifname="eth0", args="", **more):
        """Return the environment variables of one call, without variables whose value is None."""
        found = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_NETNS": netns, "CNI_IFNAME": ifname,
                 "CNI_ARGS": args, "CNI_PATH": self.bin_dir, "PATH": os.environ["PATH"],
                 "FASTCNI_SOCKET": self.socket, **more}
        return {key: value for key, value in found.items() if value is not None}

    def call(self, command, conf, netns="", *, plugin=None, **more):
        """Run a plugin once. Return its Answer. conf: a dict, or the bytes of stdin."""
        if isinstance(conf, dict):
            conf = self.own(conf)
            plugin = plugin or conf["type"]
            conf = json.dumps(conf).encode()
        with Inside(self.host):
            done = subprocess.run([f"{self.bin_dir}/{plugin}"], input=conf, capture_output=True, timeout=LIMIT,
                                  env=self.environment(command, netns, **more))
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, command, conf, netns="", **more):
        """Make a call that must succeed. Return the JSON document on stdout, or None if stdout is empty."""
        answer = self.call(command, conf, netns, **more)
        assert answer.status == 0, f"{self.name} {command}: {answer}"
        return answer.document

    def add(self, conf, netns, **more):
        return self.ok("ADD", conf, netns, **more)

    def check(self, conf, netns, result, **more):
        assert self.ok("CHECK", {**conf, "prevResult": result}, netns, **more) is None

    def delete(self, conf, netns, **more):
        assert self.ok("DEL", conf, netns, **more) is None

    def held(self, network, data_dir=None):
        """Return {file name: content} of the address files and last_reserved_ip files of a host-local directory."""
        directory = f"{data_dir or self.directory}/{network}"
        names = os.listdir(directory) if os.path.isdir(directory) else []
        return {name: open(f"{directory}/{name}", newline="").read() for name in names
                if name not in ("lock", ".fastcni.index")}


def addresses(held):
    """Return the addresses of Side.held()."""
    return {name: owner for name, owner in held.items() if not name.startswith("last_reserved_ip.")}


def seen_at_each_delete(side, pods, read_state):
    """Delete pods one after another. pods: [(path, configuration)], with the container ids pod-0, pod-1, ... Return
    [read_state(side)] before the first DEL and after each DEL."""
    seen = [read_state(side)]
    for i, (pod, conf) in enumerate(pods):
        side.delete(conf, pod, cid=f"pod-{i}")
        seen.append(read_state(side))
    return seen


def at_once(function, sides):
    """Run function(side) for all sides at the same time. Return the results in order."""
    with ThreadPoolExecutor(len(sides)) as pool:
        return list(pool.map(function, sides))
