"""Fixtures: a server in the test's own network namespace, and nodes of a cluster. fastcni's plugins are installed for
the plugins that a request delegates to."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.node import Node, set_sysctl
from lab.portmap_chain import DUAL, Chain
from unit.server.client import Server
from unit.server.cluster import ClusterNode, edited
from unit.server.flushed import Log
from unit.server.local import Local

from fastcni.kernel import netns
from fastcni.launcher.install import install
from fastcni.server.restoring.replay import name_thread
from fastcni.server.restoring.restorer import Restoring
from fastcni.testing.witnesses import eventually


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    """Return the directory in which fastcni's plugin files are installed."""
    directory = tmp_path_factory.mktemp("plugins")
    install(directory)
    return str(directory)


@pytest.fixture
def node(tmp_path, host_netns):
    return Node(tmp_path, host_netns)


@pytest.fixture
def pod(node, pod_netns):
    return pod_netns()


@pytest.fixture
def local(node, tmp_path, monkeypatch, plugins):
    """Return a function local(**options) that starts a server in this process. After the test, each server is stopped
    with all its workers."""
    running = []

    def make(**options):
        running.append(Local(tmp_path, monkeypatch, **options).__enter__())
        running[-1].cni_path = plugins
        return running[-1]

    yield make
    for server in running:
        server.__exit__()
        assert not server.crashed


@pytest.fixture
def start(tmp_path, plugins, host_netns):
    """Return a function start(*options) that starts a server as a process. The server's CNI_PATH is the plugins'
    directory. After the test, each server is killed."""
    running = []

    def make(*options, **more):
        server = Server(tmp_path, *options, **more)
        running.append(server.__enter__())
        server.cni_path = plugins
        return server

    yield make
    for server in running:
        server.__exit__()


@pytest.fixture
def server(start):
    return start()


@pytest.fixture
def make_watch(node):
    """Return a function make_watch(replay, at_start, drops) that makes a NamespaceWatch of the test's namespace with a
    Log. The test calls the watch's attend()."""
    made = []

    def make(replay=None, at_start=False, drops=None):
        home = netns.open_own()
        it = Restoring(Log(), replay, drops).watch(home, at_start=at_start)
        made.append((it, home))
        attend = it.attend

        def attend_in_a_thread(started):
            with ThreadPoolExecutor(1, initializer=name_thread) as pool:
                pool.submit(attend, started).result()

        it.attend = attend_in_a_thread
        return it

    yield make
    for it, home in made:
        it.close()
        os.close(home)


@pytest.fixture
def watch(make_watch):
    """Return a NamespaceWatch that has read the current state of the firewall."""
    it = make_watch()
    it.attend(time.monotonic())
    return it


@pytest.fixture
def net(node):
    """Return a Chain of the plugins bridge and portmap, with ipMasq and ipspoofchk."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, hairpinMode=True, ipMasq=True, ipspoofchk=True))


@pytest.fixture
def cluster_node(tmp_path):
    """Return a function cluster_node(name, **options) that makes a ClusterNode. The nodes of a test share a store."""
    running = []

    def make(name="a", **options):
        running.append(ClusterNode(tmp_path, name, **options))
        return running[-1]

    yield make
    for one in running:
        one.stop()
    assert not [one.faults for one in running if one.faults]


@pytest.fixture
def edit(tmp_path):
    """`with edit() as data:` lets a test change the content of the store that the nodes share."""
    return lambda: edited(tmp_path / "store")


SLOW = """#!/bin/sh
cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
echo started >> {directory}/slow.log
sleep {seconds}
echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.22.0.9/24", "gateway": "10.22.0.1"}}]}}'
"""


class Slow:
    """slow(seconds) installs an IPAM plugin whose ADD takes that long. It returns (keys of a network's configuration,
    environment variables of its requests)."""

    def __init__(self, directory):
        self.directory = directory

    def __call__(self, seconds):
        path = self.directory / "slow-ipam"
        path.write_text(SLOW.format(directory=self.directory, seconds=seconds))
        path.chmod(0o755)
        return {"ipam": {"type": "slow-ipam"}}, {"CNI_PATH": str(self.directory)}

    def started(self, count=1, seconds=30):
        """Return whether the plugin's ADD has begun `count` times within `seconds`."""
        log = self.directory / "slow.log"
        return eventually(lambda: log.exists() and len(log.read_text().split()) >= count, seconds)


@pytest.fixture
def slow(tmp_path):
    return Slow(tmp_path)
