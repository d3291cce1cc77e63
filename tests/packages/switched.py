"""A node that switches its plugins: a runtime with one plugin directory, pods with host ports, and TCP streams to the
pods."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time

from conftest import PEER
from lab.traffic import add_external
from side_by_side.sides import Inside, run, set_netns
from unit.node.conftest import Host

FROM_OUTSIDE = "198.51.100.1"
LIST = {"cniVersion": "1.0.0", "name": "net1", "plugins": [
    {"type": "bridge", "bridge": "br0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": {
        "type": "host-local", "subnet": "10.123.77.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
    {"type": "firewall"}]}
NAMES = ("bridge", "portmap", "firewall", "host-local", "loopback")
PAUSE_S = 0.01


class Switched(Host):
    """A host in the calling thread's network namespace. bin: a plugin directory with the Go plugins."""

    def __init__(self, where, pod_netns):
        self.bin = where / "bin"
        self.bin.mkdir()
        for name in NAMES:
            shutil.copy2(f"{PEER}/{name}", self.bin)
        super().__init__(where, str(self.bin))
        self.where, self.units, self.pod_netns = where, where / "units", pod_netns
        self.configure(LIST)
        self.outside = add_external(pod_netns)
        run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def new_pod(self, container, port=0):
        """Add a pod with a host port, if `port` is not 0. Return the name of the pod's namespace."""
        pod = self.pod_netns()
        run("ip", "link", "set", "lo", "up", netns=pod)
        self.add(container, pod, ports=[(port, 80)] if port else ())
        return pod

    def goes(self, container, pod):
        """Delete a pod and its namespace. Repeat a failed DEL, as runtimes do: the first DEL of Debian's Go plugins
        fails if a chain never existed."""
        try:
            self.delete(container, pod)
        except Exception as e:
            assert "does not exist" in str(e), e
            self.delete(container, pod)
        run("ip", "netns", "del", pod)

    def command(self, *words):
        """Return arguments of subprocess.run() for a fastcni command on this node: the words and the environment."""
        return {"args": [sys.executable, "-m", "fastcni", *map(str, words)], "text": True,
                "env": {**os.environ, "CNI_PATH": str(self.bin), "FASTCNI_SOCKET": ""}}

    def fastcni(self, *words, ok=(0,)):
        """Run a fastcni command, which must end with an exit status of `ok`. Return its output."""
        done = subprocess.run(**self.command(*words), capture_output=True, timeout=120, check=False)
        assert done.returncode in ok, done.stdout + done.stderr
        return done.stdout

    def install(self):
        return self.fastcni("install", "--bin-dir", self.bin)

    def uninstall_words(self, *more):
        return ("uninstall", "--bin-dir", self.bin, "--unit-dir", self.units, "--conf-dir", self.conf, "--cache-dir",
                self.cache, *more)

    def uninstall(self, *more):
        return self.fastcni(*self.uninstall_words(*more))


class Stream:
    """A TCP connection from outside to the host port of a pod. Both ends send a line every 10 ms."""

    def __init__(self, node, pod, port):
        self.answered, self.wrong, self.stopped = 0, "", False
        with Inside(pod):
            server = socket.create_server(("0.0.0.0", 80))
        with Inside(node.outside):
            self.client = socket.create_connection((FROM_OUTSIDE, port), timeout=20)
        peer, _ = server.accept()
        self.sockets = [server, self.client, peer]
        self.client.settimeout(5)
        self.threads = [threading.Thread(target=target, daemon=True) for target in (lambda: echo(peer), self.talk)]
        for thread in self.threads:
            thread.start()

    def talk(self):
        try:
            while not self.stopped:
                line = f"{self.answered}\n".encode()
                self.client.sendall(line)
                answer = b""
                while not answer.endswith(b"\n"):
                    more = self.client.recv(100)
                    assert more, "the connection was closed"
                    answer += more
                assert answer == line, answer
                self.answered += 1
                time.sleep(PAUSE_S)
        except (OSError, AssertionError) as e:
            self.wrong = f"after {self.answered} lines: {e!r}"

    def check(self):
        """Check that the connection still transfers lines."""
        before = self.answered
        deadline = time.monotonic() + 10
        while self.answered < before + 5 and not self.wrong:
            assert time.monotonic() < deadline, "the stream transfers no lines"
            time.sleep(PAUSE_S)
        assert self.wrong == ""

    def close(self):
        self.stopped = True
        self.threads[1].join(10)
        for sock in self.sockets:
            sock.close()


def echo(sock):
    try:
        while data := sock.recv(1000):
            sock.sendall(data)
    except OSError:
        return


class Churn:
    """A thread that adds and deletes pods repeatedly by the installed plugins. No call may fail."""

    def __init__(self, node):
        self.node, self.rounds, self.errors, self.stopped = node, 0, [], False
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.pods = [node.pod_netns() for _ in range(2)]
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        set_netns(self.home)
        while not self.stopped:
            for pod in self.pods:
                self.call("ADD", lambda pod=pod: self.node.add("churn", pod))
                self.call("DEL", lambda pod=pod: self.node.delete("churn", pod))
            self.rounds += 1

    def call(self, command, act):
        try:
            act()
        except Exception as e:
            # Debian's Go plugins fail at their first DEL, because fastcni never made the masquerade chain
            if command == "DEL" and "does not exist" in str(e):
                act()
            else:
                self.errors.append(f"{command}: {e}")

    def done(self, rounds=2):
        """Wait until `rounds` more rounds have begun and ended. Stop the thread, and return the errors."""
        end, deadline = self.rounds + rounds, time.monotonic() + 60
        while self.rounds < end and time.monotonic() < deadline and not self.errors:
            time.sleep(PAUSE_S)
        self.close()
        return self.errors

    def close(self):
        self.stopped = True
        self.thread.join(60)
        if self.home >= 0:
            os.close(self.home)
            self.home = -1


def ruleset():
    return run("nft", "list", "ruleset")
