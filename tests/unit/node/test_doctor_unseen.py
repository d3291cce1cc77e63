"""`fastcni doctor` gives one finding for each cause, and none about files that it cannot read."""

import os
from contextlib import contextmanager

import pytest
from unit.node.conftest import LIST, diagnosed

from fastcni.launcher.install import install
from fastcni.testing.namespaces import run

NOBODY = 65534
POLICY = {"type": "policy"}


@pytest.fixture
def own_bin_dir(tmp_path):
    """Return a directory of plugin files that the test may damage."""
    where = tmp_path / "bin"
    install(where, names=["bridge", "host-local", "portmap", "policy"])
    return where


@contextmanager
def as_nobody(*open_paths):
    """Run the block as the user nobody. The user may enter the parent directories of these paths."""
    above = {each for path in open_paths for each in path.parents if each.stat().st_mode & 0o777 == 0o700}
    for each in above:
        each.chmod(0o711)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        for each in above:
            each.chmod(0o700)


def test_one_chmod_is_one_finding_whose_command_mends_it(directories, host_netns, fastcni, own_bin_dir):
    """The plugin names are links to one file. Once, each name had a separate error."""
    directories.configure()
    (own_bin_dir / "bridge").chmod(0o644)
    status, found = diagnosed(fastcni, "--bin-dir", own_bin_dir)
    assert (status, list(found)) == (2, ["plugin-files"])
    assert found["plugin-files"]["what"].endswith("cannot be executed: bridge, host-local, policy and 1 more")
    assert found["plugin-files"]["do"] == f"chmod 755 {own_bin_dir}/bridge"
    run(*found["plugin-files"]["do"].split())
    assert diagnosed(fastcni, "--bin-dir", own_bin_dir) == (0, {})


def test_a_missing_plugin_of_many_networks_is_one_finding(directories, host_netns, fastcni, own_bin_dir):
    (own_bin_dir / "portmap").unlink()
    for number in range(5):
        document = {**LIST, "name": f"net{number}", "plugins": [{"type": "loopback"}, LIST["plugins"][1]]}
        directories.configure(document, f"1{number}-net.conflist")
    answer = fastcni("doctor", "--json", "--socket", "", "--bin-dir", own_bin_dir)
    missing = [it for it in answer.document["findings"] if 'failed to find plugin "portmap"' in it["what"]]
    assert len(missing) == 1 and " and 2 more: failed to find" in missing[0]["what"]


def test_damaged_address_files_are_one_finding(directories, fastcni):
    directories.configure()
    for number in range(2, 25):
        directories.hold(f"10.88.0.{number}", "")
    answer = fastcni("doctor", "--json", "--socket", "")
    (found,) = [it for it in answer.document["findings"] if it["check"] == "address-files"]
    assert found["do"].count("/10.88.0.") == 23 and " rm /" in found["do"]
    (directories.data / "net1" / "10.88.0.99").mkdir()
    answer = fastcni("doctor", "--json", "--socket", "")
    do = [it["do"] for it in answer.document["findings"] if it["check"] == "address-files"]
    assert [text for text in do if " rm -r /" in text and text.endswith("/10.88.0.99")], do


CLOSED = {
    "the configurations": lambda directories, plugins: directories.conf.chmod(0o700),
    "a configuration": lambda directories, plugins: (directories.conf / "10-net1.conflist").chmod(0o600),
    "the plugins": lambda directories, plugins: plugins.chmod(0o700),
    "a plugin": lambda directories, plugins: (plugins / "bridge").chmod(0o700),
    "the way to the plugins": lambda directories, plugins: plugins.chmod(0o744),
    "the result cache": lambda directories, plugins: (directories.cache / "results").chmod(0o700),
    "the address files": lambda directories, plugins: (directories.data / "net1").chmod(0o700),
}


@pytest.mark.parametrize("what", CLOSED)
def test_what_an_ordinary_user_cannot_read_is_no_finding(directories, host_netns, fastcni, own_bin_dir, tmp_path, what):
    """Once, doctor said that python_core.elf is of another build, because the user could not run the interpreter."""
    directories.configure({**LIST,
                           "plugins": [*LIST["plugins"], POLICY | {"agentSocketPath": str(tmp_path / "socket")}]})
    directories.cached("c1", netns="/run/netns/none", config={})
    directories.hold("10.88.0.2", "c1\r\neth0")
    os.symlink(tmp_path / "closed/socket", tmp_path / "socket")
    (tmp_path / "closed").mkdir(mode=0o700)
    # this call imports modules that the user may not read later
    fastcni("doctor", "--socket", "", "--bin-dir", own_bin_dir)
    CLOSED[what](directories, own_bin_dir)
    with as_nobody(directories.conf, own_bin_dir):
        answer = fastcni("doctor", "--json", "--socket", "", "--bin-dir", own_bin_dir)
    allowed = {"bridge-nf-call"}    # every user reads these sysctls
    assert [it["what"] for it in answer.document["findings"] if it["check"] not in allowed] == []
    assert answer.status == answer.document["status"] == 3
    unseen = "; ".join(answer.document["unseen"])
    assert "nftables" in unseen and "ermission denied" in unseen
    assert "network policies: the agent" in unseen or "configuration" in what


def test_the_status_says_that_findings_may_be_missing(directories, fastcni):
    """Once, doctor ended with status 0 if it could not read the node's state."""
    directories.configure()
    (directories.cache / "results").mkdir(parents=True)
    (directories.cache / "results/net1-c1-eth0").write_text('{"kind": "cniCacheV1", "containerId": 1')
    answer = fastcni("doctor", "--json", "--socket", "")
    assert answer.status == 3 and "net1-c1-eth0" in " ".join(answer.document["unseen"])
