"""The server reads a plugin file of CNI_PATH once, and reads it again after the file has changed."""

import os
import shutil

import pytest
from modes import in_thread

from fastcni.kernel import netns
from fastcni.kit.call import search
from fastcni.server.requests import mode as modes
from fastcni.server.requests.facts import Facts
from fastcni.server.requests.grouped_deletes import GroupedDeletes


@pytest.fixture
def reads(monkeypatch):
    """Return a list that receives the path of each file that the server reads."""
    found = []
    read = search.read_file
    monkeypatch.setattr(search, "read_file", lambda path, *more: found.append(path) or read(path, *more))
    return found


@pytest.fixture
def find(tmp_path, plugins, reads):
    """Yield a function find() that calls WarmMode.find_plugin() for host-local. The first directory has a copy of
    fastcni's plugin file."""
    shutil.copy(f"{plugins}/host-local", tmp_path)
    home = netns.open_own()
    facts, deletes = Facts(), GroupedDeletes(in_thread)
    mode = modes.WarmMode(home, facts, deletes, in_thread, None, None)
    yield lambda: mode.find_plugin("host-local", [str(tmp_path), plugins], True)
    facts.close()
    deletes.close()
    os.close(home)


def test_a_plugin_file_is_read_once(find, reads, monkeypatch):
    monkeypatch.setattr(modes, "SETTLED_NS", -1)
    assert find() == find() == find() == ""
    assert len(reads) == 1


def test_a_plugin_file_that_has_just_changed_is_read_again(find, reads, monkeypatch):
    """A file that is changed twice within a short time can have the same time of change."""
    monkeypatch.setattr(modes, "SETTLED_NS", 1 << 62)
    assert find() == find() == ""
    assert len(reads) == 2


@pytest.mark.parametrize("replace", [True, False], ids=["replaced", "written"])
def test_a_plugin_file_that_another_program_replaces_is_not_taken_for_fastcnis(find, tmp_path, monkeypatch, replace):
    monkeypatch.setattr(modes, "SETTLED_NS", -1)
    assert find() == ""
    path = tmp_path / "host-local"
    written = tmp_path / "new" if replace else path
    written.write_bytes(b"#!/bin/sh\n")
    written.rename(path)
    assert find() == str(path)
    path.unlink()
    assert find() == ""         # the next directory has fastcni's plugin file
