"""A server whose requests hang in other programs or in locks. Other requests continue, and a caller that leaves frees
its worker."""

import fcntl
import json
import os
import signal
import socket
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from lab.node import links

from fastcni.testing.witnesses import eventually

HUNG = """#!/bin/sh
cat > /dev/null
[ -e {directory}/works ] && exec echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.22.0.9/24"}}]}}'
echo "$CNI_COMMAND $$" >> {directory}/hung.log
exec sleep 1000
"""


class Hung:
    """A network whose IPAM plugin is another project's and does not end. It has the keys of the network's
    configuration, the variables of its requests, and the plugin's processes."""

    def __init__(self, directory):
        self.directory, self.log = directory, directory / "hung.log"
        self.keys, self.env = {"ipam": {"type": "hung-ipam"}}, {"CNI_PATH": str(directory)}
        path = directory / "hung-ipam"
        path.write_text(HUNG.format(directory=directory))
        path.chmod(0o755)

    def works(self):
        (self.directory / "works").touch()

    @property
    def pids(self):
        """Return {pid of the plugin's process: CNI_COMMAND}."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return {int(line.split()[1]): line.split()[0] for line in lines}

    def started(self, count=1):
        assert eventually(lambda: len(self.pids) >= count)

    @property
    def alive(self):
        """Return the pids of the processes that still run."""
        return [pid for pid in processes() if group_of(pid) in self.pids]


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def group_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[2]) if fields[0] != "Z" else 0


@pytest.fixture
def hung(tmp_path):
    made = Hung(tmp_path)
    yield made
    for pid in made.alive:
        with suppress(ProcessLookupError):      # the kill of the server may have ended them, too
            os.kill(pid, signal.SIGKILL)


@contextmanager
def held(path):
    """Lock a file with flock() until the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_of(node):
    """Lock the addresses of the network net-a."""
    return held(Path(node.conf()["ipam"]["dataDir"]) / "net-a" / "lock")


# -- others go on ------------------------------------------------------------------------------------------------

def test_hanging_programs_delay_no_other_network(node, pod_netns, start, hung):
    """Once, 32 IPAM plugins of one network hung and occupied all workers. The server answered no other request, not
    even VERSION."""
    server = start("--workers", "4")
    conf, pods = node.conf(**hung.keys), [pod_netns() for _ in range(2)]
    sent = [server.send("ADD", conf, pods[0], ifname=f"net{n}", env=hung.env) for n in range(6)]
    hung.started(4)
    server.ok("VERSION", conf)
    server.ok("ADD", node.conf(name="net-b", bridge="br1"), pods[1])
    server.ok("STATUS", node.conf(name="net-b", cniVersion="1.1.0"))
    server.ok("DEL", node.conf(name="net-b", bridge="br1"), pods[1])
    for each in sent:
        each.close()


def test_a_held_lock_of_one_network_delays_no_other(node, pod_netns, start):
    """Once, 41 requests that waited for one network's lock occupied all workers."""
    server, pods = start("--workers", "4"), [pod_netns() for _ in range(2)]
    with lock_of(node):
        sent = [server.send("ADD", node.conf(), pods[0], ifname=f"net{n}") for n in range(9)]
        server.ok("VERSION", node.conf())
        server.ok("ADD", node.conf(name="net-b", bridge="br1"), pods[1])
        for each in sent:
            each.close()
        assert eventually(lambda: len(server.lines("event=caller_gone")) == 9)
    server.ok("ADD", node.conf(), pods[0])
    assert list(node.held()) == ["10.22.0.2"]


def test_a_loopback_is_added_while_all_workers_hang(node, pod, start, hung):
    """This is also true within the first second, because one extra thread is reserved for light requests."""
    server = start("--workers", "1")
    waiting = server.send("ADD", node.conf(**hung.keys), pod, env=hung.env)
    hung.started()
    server.ok("ADD", {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}, pod, ifname="lo")
    waiting.close()


# -- callers that leave ------------------------------------------------------------------------------------------

def test_a_caller_that_leaves_ends_its_program_and_frees_its_attachment(node, pod, start, hung):
    """Once, the program kept running, and until it ended, each DEL of the pod failed: "waited for one of 32
    workers"."""
    server = start("--workers", "1", "--queue-timeout", "30")
    before = node.left(pod)
    add = server.send("ADD", node.conf(**hung.keys), pod, env=hung.env)
    hung.started()
    add.close()
    hung.started(2)  # the rollback of the ADD also calls the plugin that hangs
    assert set(hung.pids.values()) == {"ADD", "DEL"}
    hung.works()
    server.ok("DEL", node.conf(**hung.keys), pod, env=hung.env)
    assert hung.alive == [] and node.left(pod) == before
    assert server.lines("event=caller_gone", "command=ADD", "run=True")


def test_a_caller_that_leaves_ends_the_wait_for_a_lock(node, pod, start):
    server = start("--workers", "1")
    with lock_of(node):
        before = node.left(pod)
        add = server.send("ADD", node.conf(isGateway=True), pod)
        assert eventually(lambda: "eth0" in links(pod))         # the next step of the ADD is to ask for its address
        add.close()
        assert eventually(lambda: server.lines("event=caller_gone", "run=True"))
    assert set(links(pod)) == {"lo"} and node.left(pod) == before


def test_an_add_whose_answer_cannot_be_delivered_is_rolled_back(node, pod, start):
    """The caller stops reading but keeps its connection open. The server notices this when it sends the result."""
    server = start("--workers", "1")
    with lock_of(node):
        before = node.left(pod)
        add = server.send("ADD", node.conf(isGateway=True), pod)
        add.conn.shutdown(socket.SHUT_RD)
    assert eventually(lambda: server.lines("event=caller_gone", "command=ADD", "run=True"))
    add.close()
    assert set(links(pod)) == {"lo"} and node.left(pod) == before and not node.held()


DRAINS_SHORTLY = """import sys; from fastcni.server import service
service.DRAIN_TIMEOUT_S = 0.2
sys.exit(service.serve(sys.argv[1]))"""


def test_a_server_whose_requests_do_not_end_stops_in_time_and_says_so(node, pod, start, hung):
    """Otherwise, systemd would kill the server after 90 s, and the log would have no line about it."""
    server = start(program=("-c", DRAINS_SHORTLY))
    waiting = server.send("ADD", node.conf(**hung.keys), pod, env=hung.env)
    hung.started()
    assert server.stop() == 1
    assert server.lines("level=error", "event=requests_unanswered", "running=1")
    waiting.close()


def test_the_programs_of_a_killed_server_end(node, pod, start, hung):
    server = start()
    # the test keeps this caller, because the program ends if its caller leaves
    waiting = server.send("ADD", node.conf(**hung.keys), pod, env=hung.env)
    hung.started()
    (program,) = hung.pids
    server.process.kill()
    assert eventually(lambda: not group_of(program))
    waiting.close()


@pytest.mark.parametrize("warm", [False, True], ids=["one-shot", "warm"])
def test_the_program_of_a_killed_plugin_ends(node, pod, plugins, server, hung, warm):
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": f"/run/netns/{pod}",
           "CNI_PATH": hung.env["CNI_PATH"], "FASTCNI_SOCKET": str(server.path) if warm else ""}
    with subprocess.Popen([f"{plugins}/bridge"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as plugin:
        plugin.stdin.write(json.dumps(node.conf(**hung.keys)).encode())
        plugin.stdin.close()
        hung.started()
        (program,) = hung.pids
        plugin.kill()
    assert eventually(lambda: not group_of(program))
    hung.works()
    if warm:
        assert eventually(lambda: server.lines("event=caller_gone", f"pid={plugin.pid}", "run=True"))


# -- DELs --------------------------------------------------------------------------------------------------------

def test_a_del_is_answered_while_adds_keep_coming(node, pod_netns, start, slow):
    server, (keys, env) = start("--workers", "1"), slow(0.4)
    pods = [pod_netns() for _ in range(2)]
    sent = [server.send("ADD", node.conf(**keys), pods[0], ifname=f"net{n}", env=env) for n in range(12)]
    server.ok("DEL", node.conf(), pods[1])
    assert eventually(lambda: server.lines("command=DEL"))
    assert len(server.lines("command=ADD")) < 12
    for each in sent:
        each.close()
