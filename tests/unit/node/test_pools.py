"""Count held and free addresses, and attachments, by the names of files."""

import json
import os

import pytest

from fastcni.node.activity.pools import count
from fastcni.server.metrics.pools import Pool


@pytest.fixture
def confs(tmp_path):
    """Return a function confs(name, *ranges). It writes a network of host-local and returns the directory for the
    network's address files."""
    (tmp_path / "net.d").mkdir()

    def write(name, *ranges):
        ipam = {"type": "host-local", "dataDir": str(tmp_path / "data"), "ranges": [[one] for one in ranges]}
        conf = {"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "bridge", "ipam": ipam}]}
        (tmp_path / "net.d" / f"{name}.conflist").write_text(json.dumps(conf))
        directory = tmp_path / "data" / name
        directory.mkdir(parents=True)
        return directory
    return write


def counted(tmp_path):
    (tmp_path / "results").mkdir(exist_ok=True)
    return count(str(tmp_path / "net.d"), str(tmp_path / "results"))


def of(found, network):
    return [it for it in found.pools if it.network == network]


def test_addresses_are_counted_by_range(tmp_path, confs):
    directory = confs("net-a", {"subnet": "10.1.0.0/29"}, {"subnet": "fd00::/120", "rangeStart": "fd00::10",
                                                        "rangeEnd": "fd00::1f"})
    for name in ("10.1.0.2", "10.1.0.3", "fd00::11", "192.0.2.1", "last_reserved_ip.0", "lock", ".fastcni.index"):
        (directory / name).touch()
    assert of(counted(tmp_path), "net-a") == [
        Pool("host-local", "net-a", "10.1.0.1-10.1.0.6", 2, 3), Pool("host-local", "net-a", "fd00::10-fd00::1f", 1, 15),
        Pool("host-local", "net-a", "none", 1)]


def test_the_gateway_is_neither_held_nor_free(tmp_path, confs):
    directory = confs("net-a", {"subnet": "10.1.0.0/30"})
    for name in ("10.1.0.1", "10.1.0.2"):
        (directory / name).touch()
    assert of(counted(tmp_path), "net-a") == [Pool("host-local", "net-a", "10.1.0.1-10.1.0.2", 1, 0)]


def test_a_network_without_pods_and_one_without_a_configuration_are_counted(tmp_path, confs):
    confs("net-a", {"subnet": "10.1.0.0/29"}).rmdir()
    confs("net-b", {"subnet": "10.2.0.0/29"})
    (tmp_path / "data/gone").mkdir()
    (tmp_path / "data/gone/10.9.0.2").touch()
    found = counted(tmp_path)
    assert [(it.held, it.free) for it in of(found, "net-a") + of(found, "net-b")] == [(0, 5), (0, 5)]
    assert of(found, "gone") == [Pool("host-local", "gone", "none", 1)]


def test_directories_that_cannot_be_read_count_as_empty(tmp_path, confs):
    directory = confs("net-a", {"subnet": "10.1.0.0/29"})
    directory.rmdir()
    directory.write_text("no directory")
    (tmp_path / "net.d/broken.conflist").write_text("{")
    found = count(str(tmp_path / "net.d"), str(tmp_path / "nowhere"))
    assert [(it.held, it.free) for it in of(found, "net-a")] == [(0, 5)]
    assert count(str(tmp_path / "nowhere"), str(tmp_path / "nowhere")).moment > 0


def test_attachments_are_counted_by_the_longest_known_network(tmp_path, confs):
    confs("net", {"subnet": "10.1.0.0/29"})
    confs("net-a", {"subnet": "10.2.0.0/29"})
    (tmp_path / "results").mkdir()
    for name in ("net-0123-eth0", "net-a-0123-eth0", "net-a-4567-eth0", "net-b-eth0", "strange-0123-eth0", "x"):
        (tmp_path / "results" / name).touch()
    found = counted(tmp_path).attachments
    assert (found["net"], found["net-a"], found["other"]) == (2, 2, 2)


def test_many_addresses_are_counted(tmp_path, confs):
    directory = confs("net-a", {"subnet": "10.1.0.0/16"})
    where = os.open(directory, os.O_RDONLY)
    for n in range(2000):
        os.close(os.open(f"10.1.{2 + n // 250}.{n % 250}", os.O_CREAT, dir_fd=where))
    os.close(where)
    (one,) = of(counted(tmp_path), "net-a")
    assert (one.held, one.held + one.free) == (2000, 65533)
