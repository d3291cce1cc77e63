"""Start the installed plugin files as a runtime does, on the real kernel: ADD, CHECK, DEL. DEL must leave nothing.

DEL answers when the kernel has notified that the link is deleted. A helper process waits for the kernel's ACK. The
helper must not hold the caller's pipes or the pod's namespace, and must not remain a zombie.
"""

import json
import os
import subprocess
import sys

import pytest
from lab.node import Inside, cid_of, elements, eventually, links, run, source_seen

from fastcni.launcher.install import install
from fastcni.testing.fake_runtime import AtOnceMode

DOORS = {"process": [], "zipapp": [os.path.realpath(sys._base_executable), "-I", "-S"]}


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory)
    return directory


@pytest.fixture(params=DOORS)
def call(bin_dir, request):
    """Return a function that runs one request as a process and returns (exit status, stdout, pid). before: a command
    line that executes the plugin."""
    def call(command, conf, pod, stdin=None, before=()):
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
               "CNI_IFNAME": "eth0", "CNI_PATH": str(bin_dir), "PATH": os.environ["PATH"]}
        child = subprocess.Popen([*before, *DOORS[request.param], str(bin_dir / conf["type"])], env=env,
                                 start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        out, err = child.communicate(json.dumps(conf).encode() if stdin is None else stdin, timeout=30)
        assert err == b""
        return child.returncode, out, child.pid
    return call


def alive(session):
    """Return whether a process of a session exists. Zombies do not count."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, _, _, its_session = file.read().rpartition(")")[2].split()[:4]
        except OSError:
            continue                # the process ended after listdir()
        if its_session == str(session) and state not in "ZX":
            return True
    return False


def test_add_check_and_del(node, pod_netns, call):
    one, two = pod_netns(), pod_netns()
    conf = node.conf(isDefaultGateway=True, ipMasq=True, macspoofchk=True)
    results = {}
    for pod in (one, two):
        status, out, _ = call("ADD", conf, pod)
        assert status == 0, out
        results[pod] = json.loads(out)
        assert links(pod)["eth0"]["address"] == results[pod]["interfaces"][2]["mac"]
    assert source_seen(one, two, "10.22.0.3") == "10.22.0.2"
    for pod in (one, two):
        assert call("CHECK", {**conf, "prevResult": results[pod]}, pod)[:2] == (0, b"")
        assert call("DEL", {**conf, "prevResult": results[pod]}, pod)[:2] == (0, b"")
        assert call("DEL", conf, pod)[:2] == (0, b"")
    assert set(links()) == {"lo", "br0"}
    assert set(links(one)) == set(links(two)) == {"lo"}
    assert node.held() == {}
    assert elements("pods4") == elements("guarded", "bridge") == []


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_del_answers_before_its_helper_is_done_and_leaves_no_process(node, pod, call, kind):
    """On a busy machine, the helper may end before the test checks for it. One early answer in thirty DELs is
    enough."""
    conf, early = node.conf(type=kind, ipMasq=True), 0
    for _ in range(30):
        assert call("ADD", conf, pod)[0] == 0
        status, out, session = call("DEL", conf, pod, before=("nice", "-n", "19"))
        early += alive(session)
        assert (status, out) == (0, b"")
        assert set(links(pod)) == {"lo"}
        assert eventually(lambda session=session: not alive(session), 10)
        if early:
            break
    assert early, "no DEL of thirty answered before the kernel's RCU barrier was over"


def test_pods_namespace_ends_when_the_runtime_unmounts_it(node, pod, call):
    conf = node.conf()
    assert call("ADD", conf, pod)[0] == 0
    run("ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1", "netns", pod)
    assert call("DEL", conf, pod)[0] == 0
    run("ip", "netns", "del", pod)
    assert eventually(lambda: "probe0" not in links(), 10), "the namespace outlives its name"


def test_failed_add_answers_once_and_leaves_nothing(node, pod, call):
    before = node.left(pod)
    status, out, session = call("ADD", node.conf(isGateway=True, ipMasq=True, ipMasqBackend="pf"), pod)
    assert status == 1
    assert json.loads(out)["code"] == 7
    assert node.left(pod) == before
    assert not alive(session)


def test_stdin_of_100_megabytes_is_refused(node, pod, call):
    before = node.left(pod)
    stdin = b'{"name": "' + b"a" * 100_000_000 + b'"}'
    status, out, session = call("ADD", node.conf(), pod, stdin=stdin)
    assert status == 1
    assert json.loads(out)["code"] == 6
    assert "bytes" in json.loads(out)["msg"]
    assert node.left(pod) == before
    assert not alive(session)


def held_of(pod):
    """Return this process's references to a pod's namespace: descriptors, and netlink sockets that are bound in it."""
    with Inside(pod):
        inode = os.stat("/proc/thread-self/ns/net").st_ino
        with open("/proc/thread-self/net/netlink") as file:
            sockets = [line for line in file.readlines()[1:] if line.split()[2] != "0"]
    descriptors = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            descriptors += [fd] if os.stat(f"/proc/self/fd/{fd}").st_ino == inode else []
        except OSError:
            continue                # the descriptor that listdir() used
    return descriptors + sockets


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_helper_holds_nothing_of_the_pods_namespace(node, pod, kind):
    conf, held = node.conf(type=kind), []

    class Recording(AtOnceMode):
        def defer(self, function, *args):
            held.append(held_of(pod))
            super().defer(function, *args)

    node.add(conf, pod)
    node.delete(conf, pod, mode=Recording())
    assert held
    assert held[0] == []
