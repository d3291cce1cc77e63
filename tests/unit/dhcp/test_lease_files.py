"""Lease files on disk. A write is complete or has no effect, and the daemon ignores damaged files."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.dhcp.clock import ADDRESS, MAC, SERVER, SERVER_MAC, owner

from fastcni.dhcp import lease_files
from fastcni.dhcp.lease import Lease
from fastcni.dhcp.lease_files import Damaged, LeaseFiles, decode, encode

LEASE = Lease(ADDRESS, 24, SERVER, SERVER_MAC, {51: b"\0\0\0\x64", 6: SERVER + ADDRESS}, MAC, 1234.5)
OWNER = owner(provide={12: b"web\xff", 61: b"\0x"}, priority=7)


def values(it):
    return {name: getattr(it, name) for name in type(it).__slots__}


@pytest.fixture
def files(tmp_path):
    return LeaseFiles(f"{tmp_path}/made/leases", boot="now")


def test_what_is_written_is_read_again(files):
    files.write(OWNER, LEASE, 99.5)
    (saved,) = files.read_all()
    assert values(saved.owner) == values(OWNER) and values(saved.lease) == values(LEASE)
    assert (saved.boot, saved.ends) == ("now", 99.5)
    files.write(OWNER, LEASE, float("inf"))
    (saved,) = files.read_all()
    assert saved.ends == float("inf")
    files.remove(OWNER.key)
    files.remove(OWNER.key)
    assert list(files.read_all()) == []


def test_only_root_may_read_leases(files):
    files.write(OWNER, LEASE, 99.5)
    (name,) = os.listdir(files.directory)
    assert os.stat(files.directory).st_mode & 0o777 == 0o700
    assert os.stat(f"{files.directory}/{name}").st_mode & 0o777 == 0o600


@given(st.integers(0, 10000), st.integers(1, 255))
def test_every_changed_byte_is_noticed(at, change):
    data = bytearray(encode(OWNER, LEASE, "now", 99.5))
    data[at % len(data)] ^= change
    with pytest.raises(Damaged):
        decode(bytes(data))


@given(st.integers(0, 10000))
def test_a_file_cut_short_is_noticed(size):
    data = encode(OWNER, LEASE, "now", 99.5)
    with pytest.raises(Damaged):
        decode(data[:size % len(data)])


def test_a_valid_file_of_another_shape_is_damaged():
    import hashlib

    for body in (b"[]\n", b"{}\n", b'{"key": 5}\n'):
        with pytest.raises(Damaged):
            decode(f"{lease_files.MAGIC} {hashlib.sha256(body).hexdigest()}\n".encode() + body)


def test_a_damaged_file_is_put_aside_and_reported_once(files):
    files.write(OWNER, LEASE, 99.5)
    (name,) = os.listdir(files.directory)
    os.truncate(f"{files.directory}/{name}", 30)
    (found,) = files.read_all()
    assert found[0].endswith(name)
    assert list(files.read_all()) == [] and len(os.listdir(files.directory)) == 1


def test_a_file_under_the_name_of_another_lease_is_damaged(files):
    files.write(OWNER, LEASE, 99.5)
    (name,) = os.listdir(files.directory)
    os.rename(f"{files.directory}/{name}", f"{files.directory}/{'0' * 32}.lease")
    ((_, why),) = files.read_all()
    assert why == "the file has the name of another lease's file"


def test_a_daemon_killed_while_it_writes_leaves_the_former_lease(files, monkeypatch):
    files.write(OWNER, LEASE, 99.5)
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.write(OWNER, LEASE, 200.0)
    monkeypatch.undo()
    (saved,) = files.read_all()
    assert saved.ends == 99.5 and len(os.listdir(files.directory)) == 1
