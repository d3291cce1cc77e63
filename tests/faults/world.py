"""Make the node of a campaign (namespaces, installed plugins, servers), and search it for residue."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from lab.node import Inside, Node, cid_of, eventually, set_sysctl
from unit.server.client import Server

from fastcni.launcher.install import install
from fastcni.testing.namespaces import add_netns, delete_netns, set_lo_up

SERVE = ("-c", "from fastcni.cli.serve import serve; serve()", "--socket")      # imports no command except `serve`
REMOVAL_S = 2.0         # until the kernel and the server's deferred work have removed deleted objects
ANSWER = 90             # seconds for one request, on a busy machine


class Request:
    """The outcome of one run of a plugin file: status, stdout, stderr."""

    def __init__(self, status, stdout, stderr=b""):
        self.status, self.stdout, self.stderr = status, stdout, stderr


class World:
    """`with World() as world:` moves this thread to a new node, and removes the node at the end, also after Ctrl-C.

    bin_dir: a directory with installed plugins. By default World installs plugins for this node."""

    def __init__(self, bin_dir=None):
        self.closing, self.bin_dir = contextlib.ExitStack(), bin_dir

    def __enter__(self):
        with contextlib.ExitStack() as closing:
            self.directory = Path(tempfile.mkdtemp(prefix="fcni-faults-"))
            closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.name = f"faults-host-{uuid.uuid4().hex[:8]}"
            add_netns(self.name)
            closing.callback(delete_netns, self.name)
            closing.enter_context(Inside(self.name))
            set_lo_up()
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
            if not self.bin_dir:
                self.bin_dir = self.directory / "bin"
                install(self.bin_dir)
            self.node = Node(self.directory, self.name)
            self.pods = []
            closing.callback(self._delete_pods)
            self.closing = closing.pop_all()
        return self

    def __exit__(self, *_):
        self.closing.close()

    def _delete_pods(self):
        for pod in self.pods:
            delete_netns(pod)

    def pod(self):
        """Make a pod's namespace without duplicate address detection. Return its name."""
        name = f"faults-pod-{uuid.uuid4().hex[:8]}"
        add_netns(name)
        self.pods.append(name)
        with Inside(name):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        return name

    def server(self, *options, before=(), program=SERVE):
        """Start a server on this node. The end of the World kills the server. before, program: as for Server."""
        server = Server(self.directory, "--log-level", "error", *options, before=before, program=program)
        return self.closing.enter_context(server)

    def environment(self, command, pod="", socket="", **more):
        path = f"/run/netns/{pod}" if pod else ""
        return {**os.environ, "CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": path,
                "CNI_IFNAME": "eth0", "CNI_PATH": str(self.bin_dir), "FASTCNI_SOCKET": str(socket), **more}

    def call(self, command, conf, pod="", socket="", limit=ANSWER, **more):
        """Make a request by the installed plugin file: warm if `socket` is a server's socket, one-shot if ""."""
        try:
            done = subprocess.run([self.bin_dir / conf["type"]], input=json.dumps(conf).encode(), capture_output=True,
                                  env=self.environment(command, pod, socket, **more), timeout=limit)
        except subprocess.TimeoutExpired as e:
            return Request(None, e.stdout or b"")
        return Request(done.returncode, done.stdout, done.stderr)


def left_behind(node, before, *pods, seconds=REMOVAL_S):
    """Return the differences between node.left() now and `before` as text, "" for none."""
    found = {}

    def same():
        found.clear()
        found.update(node.left(*pods))
        return found == before
    if eventually(same, seconds):
        return ""
    was, now = items(before), items(found)
    return "; ".join([*(f"+ {item}" for item in now if item not in was),
                      *(f"- {item}" for item in was if item not in now)])


def items(left):
    """Return the findings of node.left() as a flat list of texts: "links of the host: ('br0', ...)"."""
    return [f"{what}{place}: {item}" for what, value in left.items() for place, found in places(what, value)
            for item in found]


def places(what, value):
    """Return [(place, items)] of one finding of node.left(). what: the finding's key. value: for links and inside a
    list for the host and each pod, for files a dict, otherwise a list."""
    if what in ("links", "inside"):
        names = [" of the host"] if what == "links" else []
        return [(names[at] if at < len(names) else f" of pod {at - len(names)}", each) for at, each in enumerate(value)]
    return [("", value.items() if isinstance(value, dict) else value)]


def held_locks(directory):
    """Return the lock files below `directory` that a process still holds."""
    held = []
    for path in Path(directory).rglob("*lock"):
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(str(path))
    return held


def descriptors(pid):
    """Return a process's open descriptors, {number: target}."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return found
