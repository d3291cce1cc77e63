"""Pods with several networks, and a server. A pod is one request. In some tests, the server is killed or stopped during
a request."""

import json
import os
import subprocess

import pytest
from lab.networks import NETWORKS, define, elements, held, kept, multus, network
from lab.node import addresses, cid_of, links
from stopping import stop
from unit.server.test_stopped import go_on

from fastcni.launcher import pack
from fastcni.launcher.install import base_interpreter, checked_interpreter
from fastcni.testing.witnesses import eventually

ACME = """#!/bin/sh
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo $$ > {directory}/new
    mv {directory}/new {directory}/started
    tries=0
    while [ ! -e {directory}/goes-on ] && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
echo '{{"cniVersion": "1.1.0"}}'
"""


@pytest.fixture
def acme(tmp_path):
    """Yield the directory of another project's plugin. The plugin's ADD lasts until the test ends."""
    (tmp_path / "acme").write_text(ACME.format(directory=tmp_path))
    (tmp_path / "acme").chmod(0o755)
    yield tmp_path
    (tmp_path / "goes-on").touch()
    if (tmp_path / "started").exists():
        process = (tmp_path / "started").read_text().strip()
        assert eventually(lambda: not os.path.exists(f"/proc/{process}"))


def three(node, *letters):
    return multus(node, *(network(node, letter) for letter in letters or "abc"))


def test_a_pod_is_one_request(node, pod, start):
    server, conf = start(), three(node)
    result = server.ok("ADD", conf, pod)
    assert [addresses(name, pod) for name in ("eth0", "net1", "net2")] == [
        ["10.1.1.2/24"], ["10.1.2.2/24"], ["10.1.3.2/24"]]
    server.ok("CHECK", {**conf, "prevResult": result}, pod)
    server.ok("DEL", conf, pod)
    assert eventually(lambda: len(server.lines("event=request_done")) == 3)
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


def test_many_pods_at_once_get_all_of_their_networks(node, pod_netns, start):
    server, conf, pods = start(), three(node), [pod_netns() for _ in range(12)]
    for command, names in (("ADD", ["lo", "eth0", "net1", "net2"]), ("DEL", ["lo"])):
        for request in [server.send(command, conf, pod) for pod in pods]:
            assert request.answer().status == 0
        assert [list(links(pod)) for pod in pods] == [names] * len(pods)
    assert (held(node, *"abc"), kept(node)) == ([0, 0, 0], [])


def test_a_server_that_is_killed_between_two_networks_leaves_nothing_to_the_del(node, pod, start, acme):
    server = start()
    conf = multus(node, network(node, "a"), {"name": "x", "type": "acme", "cniVersion": "1.1.0"}, network(node, "c"),
                  binDir=str(acme))
    request = server.send("ADD", conf, pod, cid=cid_of(pod))
    assert eventually((acme / "started").exists)
    assert (list(links(pod)), held(node, *"ac")) == (["lo", "eth0"], [1, 0])
    server.process.kill()
    server.process.wait()
    request.close()
    assert len(elements(node, pod)) == 3
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"ac"), kept(node)) == (["lo"], [0, 0], [])


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """Return the directory of plugin files that wait for a stopped server only briefly."""
    directory = tmp_path_factory.mktemp("hasty")
    image = pack.pack(checked_interpreter(base_interpreter()), (0.5, 5.0, 3.0))
    for name in ("multus", "bridge", "host-local"):
        (directory / name).write_bytes(image)
        (directory / name).chmod(0o755)
    return directory


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_without_the_server_a_plugin_file_adds_and_deletes_all_networks(node, pod, start, hasty, end):
    """The server made the pod's ADD before. If the server is stopped, the plugin file waits for it once, and not once
    for each network."""
    server, conf = start(), three(node)
    server.ok("ADD", conf, pod, cid="c-1")
    if end == "stopped":
        stop(server.process.pid)
    else:
        server.process.kill()
        server.process.wait()

    def call(command):
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c-1", "CNI_IFNAME": "eth0", "CNI_PATH": str(hasty),
               "CNI_NETNS": f"/run/netns/{pod}", "FASTCNI_SOCKET": str(server.path), "PATH": os.environ["PATH"]}
        done = subprocess.run([hasty / "multus"], env=env, input=json.dumps(conf).encode(), capture_output=True,
                              timeout=60, check=False)
        assert done.returncode == 0, (done.stdout, done.stderr)

    call("DEL")
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])
    call("ADD")
    assert list(links(pod)) == ["lo", "eth0", "net1", "net2"]
    call("DEL")
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])
    if end == "stopped":
        go_on(server)


def test_a_server_that_is_killed_amid_many_pods_leaves_nothing_to_their_dels(node, pod_netns, start):
    """Each ADD is interrupted at a different step. Only the pods' files name the networks b and c."""
    define(node, network(node, "b"), network(node, "c"))
    server, pods, first = start(), [pod_netns() for _ in range(12)], network(node, "a")
    conf = multus(node, first, annotations={NETWORKS: "b,c"})
    server.ok("ADD", conf, pods[0], cid=cid_of(pods[0]))
    requests = [server.send("ADD", conf, pod, cid=cid_of(pod)) for pod in pods[1:]]
    assert eventually(lambda: held(node, "b")[0] > 4)
    server.process.kill()
    server.process.wait()
    for request in requests:
        request.close()
    for pod in pods:
        node.delete(multus(node, first), pod)
    assert [list(links(pod)) for pod in pods] == [["lo"]] * len(pods)
    assert (held(node, *"abc"), kept(node)) == ([0, 0, 0], [])
