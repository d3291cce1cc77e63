"""doctor and uninstall: what they report about dhcp leases, and about the node's blocks of cluster-wide addresses."""

import json
import os
import socket
import time

import pytest
from unit.node.conftest import LIST

from fastcni.dhcp.lease import Lease, Owner
from fastcni.dhcp.lease_files import LeaseFiles
from fastcni.kernel import presence, sysctl
from fastcni.kit.ipam.cluster.released import boottime
from fastcni.node import dhcp_leases
from fastcni.node.attachments import address_dirs
from fastcni.node.checks import cluster as checks_cluster
from fastcni.node.checks import dhcp as checks_dhcp
from fastcni.node.checks.doctor import node_of
from fastcni.node.checks.findings import ERROR, WARNING
from fastcni.node.own import files as own_files
from fastcni.node.own import uninstall
from fastcni.node.own.uninstall import State

HOUR_S = 3600.0


@pytest.fixture
def sock(tmp_path, monkeypatch):
    """Return the path at which this node's dhcp daemon would listen."""
    path = str(tmp_path / "dhcp.sock")
    monkeypatch.setattr(checks_dhcp, "SOCKET_PATH", path)
    monkeypatch.setattr(uninstall, "SOCKET_PATH", path)
    monkeypatch.setattr(dhcp_leases, "SOCKET_PATH", path)
    return path


@pytest.fixture
def leased(monkeypatch):
    """Return a function leased(container, running=True, boot=..., seconds=...). It writes a lease file as the daemon
    does, and returns the file's path."""
    monkeypatch.setattr(presence, "sees_processes", lambda proc="/proc": True)

    def write(container, running=True, boot="", seconds=HOUR_S):
        files = LeaseFiles(dhcp_leases.DIRECTORY, boot or sysctl.boot_id())
        namespace = "/proc/self/ns/net" if running else "/proc/4194305/ns/net"
        owner = Owner(container.encode(), container, "net", "eth0", namespace, os.stat("/proc/self/ns/net").st_ino,
                      {}, b"", 0)
        files.write(owner, Lease(bytes((10, 0, 0, 7)), 24, bytes(4), b"", {}, b"", boottime()), time.time() + seconds)
        return dhcp_leases.path_of(files.directory, owner.key)
    return write


@pytest.fixture
def node(directories):
    return lambda: node_of(directories.places, (), "")


def dhcp(sock):
    return {**LIST, "plugins": [{"type": "macvlan", "ipam": {"type": "dhcp", "daemonSocketPath": sock}}]}


def texts(found):
    return [(it.severity, it.what) for it in found]


# -- dhcp --------------------------------------------------------------------------------------------------------------

def test_a_node_without_dhcp_has_no_finding(node, sock):
    assert [*checks_dhcp.leases(node())] == []


def test_a_network_that_needs_a_daemon_and_has_none(node, directories, sock, leased):
    directories.configure(dhcp(sock))
    leased("c1")
    leased("c2", running=False)
    first, second = checks_dhcp.leases(node())
    assert (first.severity, first.what) == (ERROR, f"no dhcp daemon listens at {sock}, and a network here uses it")
    assert "1 lease of running pods" in first.why and "fastcni-dhcp.service" in first.do
    assert (second.severity, second.what) == (WARNING, "1 dhcp lease of pods that are gone: 10.0.0.7 of c2 eth0")


def test_leases_of_running_pods_without_a_daemon_are_a_warning(node, sock, leased):
    leased("c1")
    leased("c2", boot="an earlier one")                     # the reboot has ended this pod
    assert texts(checks_dhcp.leases(node())) == [
        (WARNING, f"1 dhcp lease of running pods, and no daemon listens at {sock}: 10.0.0.7 of c1 eth0"),
        (WARNING, "1 dhcp lease of pods that are gone: 10.0.0.7 of c2 eth0")]


def test_a_lease_that_ended_although_a_daemon_runs_is_an_error_and_a_damaged_file_is_named(node, directories, sock,
                                                                                           leased):
    directories.configure(dhcp(sock))
    leased("c1")
    leased("c2", seconds=-1.0)
    leased("c3", running=False)                             # the pod has ended, so the daemon will release this lease
    damaged = leased("c4")
    with open(damaged, "ab") as file:
        file.write(b"!")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sock)
        listening.listen()
        assert texts(checks_dhcp.leases(node())) == [
            (ERROR, "1 dhcp lease of running pods ended: 10.0.0.7 of c2 eth0"),
            (WARNING, f"1 damaged lease file: {os.path.basename(damaged)}")]
    assert os.path.exists(damaged)                          # doctor must change nothing


def test_uninstall_keeps_leases_of_running_pods_and_removes_the_others(sock, leased):
    running, gone, former = leased("c1"), leased("c2", running=False), leased("c3", boot="an earlier one")
    done = State()
    free = uninstall.sort_leases(done)
    assert (sorted(free), done.needed_files) == (sorted([gone, former]), [running])
    assert done.kept == ["1 dhcp lease of running pods, which nothing renews any more: delete these pods "
                         "(10.0.0.7 of c1 eth0)"]
    own_files.remove(free)
    leased("c1", running=False)                             # now the pod has ended
    done = State()
    assert own_files.remove(uninstall.sort_leases(done)) == [running] and done.kept == []


def test_uninstall_leaves_all_leases_to_a_daemon_that_runs(sock, leased, tmp_path):
    import fcntl

    leased("c1", running=False)
    done = State()
    with open(f"{sock}.lock", "w") as lock:                 # a running daemon holds this lock
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert uninstall.sort_leases(done) == []
    assert "1 dhcp lease" in done.kept[0] and f"listens at {sock}: stop the daemon" in done.kept[0]


# -- cluster -----------------------------------------------------------------------------------------------------------

STORE = {"type": "etcd", "endpoints": ["http://127.0.0.1:9"], "password": "secret"}


@pytest.fixture
def blocks():
    """Record two blocks of this node in the address space `shared`. Return the space's directory."""
    directory = f"{address_dirs.CLUSTER_DIR}/shared"
    os.makedirs(f"{directory}/.cluster")
    with open(f"{directory}/.cluster/blocks.json", "w") as file:
        json.dump({"node": "node-1", "store": json.dumps(STORE),
                   "blocks": [["10.0.0.0/26", 1, 1.0, 0], ["10.0.0.64/26", 1, 1.0, 64]]}, file)
    return directory


def test_blocks_of_a_space_that_no_network_uses_are_reported(node, blocks):
    (it,) = checks_cluster.cluster_addresses(node())
    assert it.what == ("this node, node-1, has 2 blocks of space shared of etcd http://127.0.0.1:9, "
                       "and no network here uses that space")
    assert "fastcni ipam forget-node node-1" in it.do and f"rm -r {blocks}" in it.do


def test_blocks_of_a_space_in_use_are_not_reported(node, directories, blocks):
    directories.configure({**LIST, "plugins": [{"type": "bridge", "ipam": {
        "type": "cluster", "range": "10.0.0.0/16", "network_name": "shared", "node_name": "node-1",
        "dataDir": os.path.dirname(blocks), "store": {"type": "local", "path": f"{blocks}/../store"}}}]})
    assert [*checks_cluster.cluster_addresses(node())] == []


def test_blocks_of_a_space_whose_pods_are_here_are_not_reported(node, blocks):
    """With Multus, no file configures the network. Once, doctor advised to remove the directory that holds its pods'
    addresses."""
    with open(f"{blocks}/10.0.0.7", "w", newline="") as file:
        file.write("c1\r\neth0\r\nnet\r\nns/web-0")
    assert [*checks_cluster.cluster_addresses(node())] == []


def test_a_damaged_file_of_blocks_is_noted(node, blocks):
    with open(f"{blocks}/.cluster/blocks.json", "w") as file:
        file.write("{")
    seen = node()
    assert [*checks_cluster.cluster_addresses(seen)] == []
    assert blocks in " ".join(seen.unseen)


def test_uninstall_says_why_the_directory_with_blocks_stays(directories, blocks):
    (text,) = uninstall.kept_blocks(directories.places)
    assert text.startswith(f"{blocks}, because node node-1 has 2 blocks of etcd http://127.0.0.1:9.")
    assert "secret" not in text and "fastcni ipam forget-node node-1" in text
