"""The server removes stale ports of Open vSwitch when it starts. Stubs are in the place of the databases."""

import socket
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.server import stale_ports
from fastcni.spec.errors import CniError

ADDRESSES = stale_ports.cache.addresses
PORT = {"name": "veth1", "external_ids": ["map", [["contIface", "eth0"], ["contNetns", "/run/netns/a"]]]}


@pytest.fixture
def databases(monkeypatch):
    """Put stubs in the place of the databases. found is {address: the database's stale ports, or the exception that
    reading it raises}. opened lists the sockets."""
    found, opened = {}, []

    class Database:
        def __init__(self, address):
            self.address = address

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def remove_stale(db, sock):
        assert not sock.closed
        if isinstance(found[db.address], Exception):
            raise found[db.address]
        return found[db.address]

    class Socket:
        closed = False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.closed = True

    def open_socket():
        opened.append(Socket())
        return opened[-1]

    monkeypatch.setattr(stale_ports, "Database", Database)
    monkeypatch.setattr(stale_ports.collect, "remove_stale", remove_stale)
    monkeypatch.setattr(stale_ports.wire, "open_socket", open_socket)
    monkeypatch.setattr(stale_ports.cache, "addresses", lambda directory, _warn: found.keys() - {directory})
    return SimpleNamespace(found=found, opened=opened)


@pytest.mark.parametrize("error", [CniError(11, "away"), OSError(111, "Connection refused"), ValueError("no JSON")])
def test_a_database_that_cannot_be_read_keeps_no_other_from_its_removal(databases, error):
    databases.found |= {"unix:/a": error, "unix:/b": [], "unix:/c": [PORT]}
    stale_ports.remove_stale_ports(log := Log(), "directory", "unix:/nowhere")
    assert [event for event, _ in log.lines] == ["ovs_ports_unread", "ovs_ports_removed"]
    assert log.lines[0][1] == {"address": "unix:/a", "error": str(error)}
    assert {**log.lines[1][1], "owners": ""} == {"address": "unix:/c", "number": 1, "ports": "veth1", "owners": ""}
    assert len(databases.opened) == 3 and all(sock.closed for sock in databases.opened)


def test_the_usual_database_is_read_where_it_exists(databases, tmp_path):
    path = tmp_path / "db.sock"
    databases.found[f"unix:{path}"] = [PORT]
    stale_ports.remove_stale_ports(log := Log(), f"unix:{path}", f"unix:{path}")
    assert log.lines == [] and databases.opened == []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        stale_ports.remove_stale_ports(log, f"unix:{path}", f"unix:{path}")
    assert [event for event, _ in log.lines] == ["ovs_ports_removed"]


def test_a_database_at_a_port_has_no_file():
    assert not stale_ports.listens("tcp:127.0.0.1:6640")


def test_an_unreadable_cache_file_keeps_no_database_from_its_removal(databases, tmp_path, monkeypatch):
    """Once, an error ended the thread that removes the ports."""
    databases.found["unix:/a"] = [PORT]
    (tmp_path / "c1-eth0").mkdir()
    (tmp_path / "c2-eth0").write_text('{"Netconf": {"socket_file": "unix:/a"}}')
    monkeypatch.setattr(stale_ports.cache, "addresses", ADDRESSES)
    stale_ports.remove_stale_ports(log := Log(), str(tmp_path), "unix:/nowhere")
    assert [event for event, _ in log.lines] == ["ovs_ports_unread", "ovs_ports_removed"]
    assert log.lines[0][1] == {"address": "", "error": f"read {tmp_path}/c1-eth0: Is a directory (errno 21)"}
    stale_ports.remove_stale_ports(log, str(tmp_path / "c2-eth0"), "unix:/nowhere")
    assert log.lines[2:] == [
        ("ovs_ports_unread", {"address": "", "error": f"list {tmp_path}/c2-eth0: Not a directory (errno 20)"})]


def test_without_a_free_descriptor_the_log_names_each_database(databases, monkeypatch):
    def refuse():
        raise OSError(24, "Too many open files")

    databases.found |= {"unix:/a": [], "unix:/b": []}
    monkeypatch.setattr(stale_ports.wire, "open_socket", refuse)
    stale_ports.remove_stale_ports(log := Log(), "directory", "unix:/nowhere")
    assert [values["address"] for _, values in log.lines] == ["unix:/a", "unix:/b"]
