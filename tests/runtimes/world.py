"""A node for runtimes: network, mount and pid namespaces with separate directories, and the search for residue.

    with World() as world:
        world.run("ctr", "version")             # a program on the node
        world.start("containerd")               # a daemon on the node
        world.path("/run/netns")                # the node's directory, for this process
        world.left()                            # what pods could have left

With World(directory, system) the node's root directory is an overlay of `system`, and programs are those of `system`.

World changes nothing on the machine; init.py lists the separate directories. A veth connects the node, which has
ADDRESS, with a second network namespace "outside", which has OUTSIDE.
"""

import contextlib
import glob
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from lab.node import COMMON_FILES, eventually, lasting, links, members, rules

from fastcni.testing.namespaces import enter

ROOT = Path(__file__).parents[2]
ADDRESS, OUTSIDE = "192.0.2.1", "192.0.2.2"
ADDRESS6, OUTSIDE6 = "2001:db8::1", "2001:db8::2"
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
CGROUPS = [f"/sys/fs/cgroup/{below}{name}" for name in ("default", "k8s.io", "libpod_parent") for below in ("", "*/")]
MOUNTS = ("/run/", "/var/lib/cni", "/var/lib/containe")      # paths below which runtimes mount
LOG = "/run/one-shot.log"               # the log of one-shot requests, see World.requests()
SOCKET = "/run/fastcni/fastcni.sock"
LINKS = """
ip link set lo up
ip netns add outside
ip link add up0 type veth peer far0 netns outside
ip addr add {ADDRESS}/24 dev up0; ip addr add {ADDRESS6}/64 dev up0 nodad; ip link set up0 up
ip -n outside addr add {OUTSIDE}/24 dev far0; ip -n outside addr add {OUTSIDE6}/64 dev far0 nodad
ip -n outside link set far0 up; ip -n outside link set lo up
ip route add default via {OUTSIDE}; ip -6 route add default via {OUTSIDE6}
"""
WEB = ("httpd", "-f", "-p", "80", "-h", "/etc")      # a server in a container, see answers()
ANSWER_S = 120                  # for one program, on a busy machine
REMOVAL_S = 15                  # until runtimes and the kernel have completed removals in the background


class Daemon:
    """A program that runs on the node. pid: its process id in this process's pid namespace."""

    def __init__(self, world, words, log, env):
        self.log = Path(log)
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(world.command(*words), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                          env={**world.env, **env})
        self.pid = int(eventually(lambda: children(self.popen.pid))[0])

    def end(self, number=signal.SIGTERM):
        """Send a signal to the program, and wait until it has ended."""
        if self.popen.poll() is None:
            os.kill(self.pid, number)
            self.popen.wait(ANSWER_S)

    def lines(self, *words):
        return [line for line in self.log.read_text(errors="replace").splitlines()
                if all(word in line for word in words)]


class World:
    def __init__(self, directory, system=None):
        self.directory, self.system = Path(directory), system
        self.env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
                    "FASTCNI_LOG": LOG, "CONTAINERD_SNAPSHOTTER": "native"}
        for name in ("FASTCNI_SOCKET", "CNI_PATH", "NETCONFPATH"):
            self.env.pop(name, None)
        self.servers = []

    def __enter__(self):
        self.cgroups_before = runtime_cgroups()
        (self.directory / "system").mkdir()
        own = [self.system, self.directory / "system", ROOT, self.directory, *of_python()] if self.system else []
        self.init = subprocess.Popen([*UNSHARE, sys.executable, Path(__file__).with_name("init.py"), *own],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert self.init.stdout.readline() == b"ready\n", "the node's namespaces cannot be made"
            self.pid = int(children(self.init.pid)[0])
            self.shell(LINKS.format(**globals()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.init.stdin.close()                     # the node's pid 1 ends, so the kernel ends all its processes
        self.init.wait(ANSWER_S)
        self.init.stdout.close()
        assert eventually(self._without_cgroups), f"cannot be removed: {self.cgroups()}"

    def _without_cgroups(self):
        """Remove the containers' cgroups. Return whether all are removed."""
        for top in self.cgroups():
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):      # processes of the cgroup are still ending
                    os.rmdir(directory)
        return not self.cgroups()

    def cgroups(self):
        """Return the runtimes' cgroups that did not exist before the node was made."""
        return [path for path in runtime_cgroups() if path not in self.cgroups_before]

    def command(self, *words):
        """Return the command line that runs a program on the node."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-p", "--root", "--wd", "--",
                *(str(word) for word in words)]

    def run(self, *words, check=True, stdin="", limit=ANSWER_S, **env):
        """Run a program on the node. Return its output. Raise AssertionError with all output if the program fails."""
        done = self.call(*words, stdin=stdin, limit=limit, **env)
        assert not check or done.returncode == 0, f"{words}: status {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def call(self, *words, stdin="", limit=ANSWER_S, **env):
        """Run a program on the node. Return the CompletedProcess."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, input=stdin, timeout=limit,
                              env={**self.env, **env}, check=False)

    def shell(self, script, **env):
        """Run shell commands on the node, in the directory of the checkout. Stop at the first command that fails."""
        return self.run("sh", "-e", "-c", f"cd {ROOT}\n{script}", **env)

    def start(self, *words, log="", **env):
        """Start a daemon on the node."""
        return Daemon(self, words, self.directory / (log or f"{words[0]}.log"), env)

    def path(self, name):
        """Return the path of a file of the node, for this process."""
        return Path(f"/proc/{self.pid}/root{name}")

    @contextlib.contextmanager
    def inside(self):
        """Move the calling thread to the node's network namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        enter(f"/proc/{self.pid}/ns/net")
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{home}")
            os.close(home)

    def serve(self, *before):
        """Start fastcni's server on the node, so that later requests are warm. before: a program that starts the
        server."""
        self.servers.append(self.start(*before, "fastcni", "serve", log=f"server-{len(self.servers)}.log"))
        assert eventually(lambda: self.servers[-1].lines("server_ready")), self.servers[-1].log.read_text()
        return self.servers[-1]

    def requests(self):
        """Return {"one-shot": number of requests so far, "warm": number of requests so far}."""
        log = self.path(LOG)
        warm = sum(len(server.lines(f"event={name}")) for server in self.servers
                   for name in ("request_done", "request_failed"))
        return {"one-shot": len(log.read_text().splitlines()) if log.exists() else 0, "warm": warm}

    def left(self):
        """Return objects that pods could have left: links, rules, files, processes, mounts. Bridges are left out,
        because DEL keeps them."""
        with self.inside():
            found = {"links": sorted(name for name, link in links().items()
                                     if link.get("linkinfo", {}).get("info_kind") != "bridge"),
                     "rules": lasting(rules()),
                     "members": [members("fastcni-forward4"), members("fastcni-forward6")]}
        found["files"] = self._files("/var/lib/cni")
        found["netns"] = sorted(path.name for path in self.path("/run/netns").iterdir())
        found["processes"] = sorted(filter(None, (comm(path) for path in self.path("/proc").glob("[0-9]*"))))
        mounts = (line.split()[4] for line in self.path("/proc/1/mountinfo").read_text().splitlines())
        found["mounts"] = sorted(path for path in mounts if path.startswith(MOUNTS))
        return found

    def _files(self, directory):
        """Return the files below a directory, such as address files and result caches, without the files that belong to
        no pod."""
        top = self.path(directory)
        return sorted(f"{path.relative_to(top)}" for path in top.rglob("*")
                      if path.is_file() and not path.name.startswith((*COMMON_FILES, "cni.lock")))

    def residue(self, before, but=""):
        """Wait for removals. Return the differences between left() and `before` as text, "" for none. but: a key of
        left() to ignore."""
        found = []

        def none():
            now = self.left()
            found[:] = [line for key in now if key != but for line in differences(key, before[key], now[key])]
            return not found
        eventually_slow(none)
        return "\n".join(found)


def of_python():
    """Return the directories and files that this Python needs to run in another system."""
    if sys.base_prefix != "/usr":
        return [sys.base_prefix]
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [f"/usr/bin/{name}", f"/usr/lib/{name}", "/usr/lib/python3"]


def differences(key, before, now):
    """Return the differences of one key of left() as lines. Processes and links that have disappeared are no
    differences: ctr calls DEL after the namespace was removed, and the kernel removes the namespace's links a little
    later."""
    was, has = Counter(map(str, before)), Counter(map(str, now))
    return [*(f"+ {key}: {item}" for item in has - was),
            *(f"- {key}: {item}" for item in was - has if key not in ("processes", "links"))]


def answers(world, port, host=ADDRESS, netns="outside"):
    """Return whether the server WEB of a pod answers at the node's port. netns: the client's namespace; None: the
    node."""
    inside = ("ip", "netns", "exec", netns) if netns else ()
    return "root:" in world.call(*inside, "timeout", "2", "busybox", "wget", "-q", "-O", "-",
                                 f"http://{host}:{port}/passwd").stdout


def runtime_cgroups():
    return {path for pattern in CGROUPS for path in glob.glob(pattern)}


def eventually_slow(claim, seconds=REMOVAL_S):
    """Repeat claim() until it is true, at most for `seconds`, with longer pauses than eventually(). claim() may start
    programs."""
    return eventually(claim, seconds, pause=0.3)


def children(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def comm(process):
    """Return the name of a process from /proc, or "" if the process has ended."""
    with contextlib.suppress(OSError):
        if "\nState:\tZ" not in (process / "status").read_text():
            return (process / "comm").read_text().strip()
    return ""
