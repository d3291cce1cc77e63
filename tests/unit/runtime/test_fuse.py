"""`fastcni fuse` and `fastcni unfuse`: which files they write, which lists they reject, and the commands in
docs/chain.md."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from fastcni.agent.files import CONFLISTS
from fastcni.cli import entry_point
from fastcni.kit.call.search import NOTE
from fastcni.node.attachments.attachment import RUNNING, Cached, NodeAttachment
from fastcni.node.attachments.caches import types_of
from fastcni.node.checks.state import IPV4, masqueraded
from fastcni.node.own import uninstall
from fastcni.node.ranges import ranges_of
from fastcni.runtime import discover, fusing, load_list_file
from fastcni.runtime.errors import ConfError
from fastcni.spec.errors import CniError

PAGE = Path(__file__).parents[3] / "docs" / "chain.md"
EXAMPLE = Path(__file__).parents[3] / "examples" / "net.d" / "30-kubernetes.conflist"
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path):
    """Return a directory with net.d, which has the example's list, and bin, which has fastcni's plugins."""
    (tmp_path / "net.d").mkdir()
    (tmp_path / "bin").mkdir()
    for kind in ("bridge", "host-local", "portmap", "bandwidth", "chain"):
        (tmp_path / "bin" / kind).write_bytes(b"\x7fELF" + NOTE)
    (tmp_path / "net.d" / "30-kubernetes.conflist").write_bytes(EXAMPLE.read_bytes())
    return tmp_path


@pytest.fixture
def conflist(directory):
    return directory / "net.d" / "30-kubernetes.conflist"


def fuse(path, **keys):
    return fusing.fuse(str(path), [str(path.parents[1] / "bin")], **keys)


def test_the_fused_list_has_one_plugin_that_declares_what_the_others_do(conflist):
    before = json.loads(conflist.read_bytes())
    done = fuse(conflist)
    after = json.loads(conflist.read_bytes())
    (chain,) = after.pop("plugins")
    assert chain == {"type": "chain", "capabilities": {"portMappings": True, "bandwidth": True},
                     "plugins": before.pop("plugins")}
    assert after == before
    assert done.plugins == ("bridge", "portmap", "bandwidth")


def test_unfuse_puts_the_same_file_back(conflist):
    conflist.chmod(0o640)
    os.utime(conflist, ns=(5, 7))
    raw, before = conflist.read_bytes(), conflist.stat()
    fuse(conflist)
    assert conflist.stat().st_mode == before.st_mode
    fusing.unfuse(str(conflist))
    after = conflist.stat()
    assert conflist.read_bytes() == raw
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert os.listdir(conflist.parent) == [conflist.name]


def test_runtimes_do_not_load_the_original(conflist):
    fuse(conflist)
    assert sorted(os.listdir(conflist.parent)) == [conflist.name, f"{conflist.name}.unfused"]
    assert discover.list_files(str(conflist.parent), (".conflist", ".conf", ".json")) == [str(conflist)]


def test_a_link_is_followed_and_stays(conflist, directory):
    link = directory / "net.d" / "link.conflist"
    link.symlink_to(conflist)
    assert fusing.fuse(str(link), [str(directory / "bin")]).path == str(conflist)
    assert link.is_symlink()
    fusing.unfuse(str(link))
    assert conflist.read_bytes() == EXAMPLE.read_bytes()


def test_a_dry_run_changes_nothing(conflist):
    assert b'"chain"' in fuse(conflist, dry_run=True).document
    assert os.listdir(conflist.parent) == [conflist.name] and conflist.read_bytes() == EXAMPLE.read_bytes()
    fuse(conflist)
    fused = conflist.read_bytes()
    assert fusing.unfuse(str(conflist), dry_run=True).document == EXAMPLE.read_bytes()
    assert conflist.read_bytes() == fused


def test_a_list_that_another_program_wrote_again_is_fused_again(conflist):
    fuse(conflist)
    newer = json.dumps({**json.loads(EXAMPLE.read_bytes()), "name": "newer"}).encode()
    conflist.write_bytes(newer)
    fuse(conflist)
    fusing.unfuse(str(conflist))
    assert conflist.read_bytes() == newer


def test_an_interrupt_after_the_rename_is_no_other_error(conflist, monkeypatch):
    """Once, Ctrl-C became "No such file or directory"."""
    rename = os.rename

    def interrupted(old, new):
        rename(old, new)
        if new == str(conflist):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fuse(conflist)


def test_fuse_works_after_one_that_was_killed_between_its_steps(conflist, monkeypatch):
    """After the kill, both file names belong to one file."""
    rename = os.rename
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda old, new: rename(old, new) if new.endswith(".unfused") else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fuse(conflist)
    assert conflist.read_bytes() == EXAMPLE.read_bytes()
    fuse(conflist)
    assert sorted(os.listdir(conflist.parent)) == [conflist.name, f"{conflist.name}.unfused"]
    fusing.unfuse(str(conflist))
    assert conflist.read_bytes() == EXAMPLE.read_bytes()


def test_unfuse_refuses_a_list_that_was_edited(conflist):
    fuse(conflist)
    edited = conflist.read_bytes().replace(b"10.85.", b"10.86.")
    conflist.write_bytes(edited)
    with pytest.raises(CniError, match="the file was changed since; --force replaces it by"):
        fusing.unfuse(str(conflist))
    assert conflist.read_bytes() == edited
    fusing.unfuse(str(conflist), force=True)
    assert conflist.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize("name, content, why", [
    ("a.conf", {"type": "bridge"}, "is not a network list: its name does not end with .conflist"),
    ("a.conflist", {"plugins": [{"type": "bridge"}]}, "with 1 plugin there is nothing to gain"),
    ("a.conflist", {}, "with 0 plugin there is nothing to gain"),
    ("a.conflist", {"plugins": [{"type": "bridge"}, {"type": "chain", "plugins": []}]}, "already has the plugin chain"),
    ("a.conflist", {"plugins": [{"type": "bridge"}, {"type": "acme"}]}, 'failed to find plugin "acme"'),
    ("a.conflist", {"plugins": [{"type": "bridge"}, {"type": "bandwidth"}], "cniVersion": "0.2.0"},
     "plugin bandwidth: incompatible CNI versions"),
    ("a.conflist", {"plugins": [{"type": "bridge"}, {"type": "portmap"}], "cniVersion": "9.9.9"},
     'fastcni does not know its cniVersion "9.9.9"'),
    ("a.conflist", {"plugins": [{"type": "bridge"}, {"typ": "portmap"}]}, "failed to parse plugin config 1"),
])
def test_what_cannot_be_fused_is_refused_with_the_reason(directory, name, content, why):
    path = directory / "net.d" / name
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", **content}))
    before = path.read_bytes(), os.listdir(path.parent)
    with pytest.raises(CniError, match=re.escape(why)):
        fuse(path)
    assert (path.read_bytes(), os.listdir(path.parent)) == before


def test_a_program_named_chain_that_is_not_fastcnis_is_refused(directory, conflist):
    (directory / "bin" / "chain").write_bytes(b"#!/bin/sh\n")
    with pytest.raises(CniError, match="is not fastcni's"):
        fuse(conflist)


def test_unfuse_without_an_original_is_refused(conflist):
    with pytest.raises(CniError, match=r"there is no .*\.unfused; `fastcni fuse` writes both"):
        fusing.unfuse(str(conflist))
    with pytest.raises(ConfError):
        fusing.unfuse(f"{conflist}.unfused")


def test_the_commands_of_the_page_run(directory, conflist, capfd):
    commands = re.findall(r"^    (fastcni .*)$", CODE.sub("", PAGE.read_text(encoding="utf-8")), re.MULTILINE)
    assert [shlex.split(line)[1] for line in commands] == ["fuse", "fuse", "unfuse"]
    for line in commands:
        words = shlex.split(line.replace("/etc/cni/net.d", str(directory / "net.d")))[1:]
        words += ["--bin-dir", str(directory / "bin")] * (words[0] == "fuse")
        assert entry_point.run([*words, "--json"]) == 0
        document = json.loads(capfd.readouterr().out)
        assert document["plugins"] == ["bridge", "portmap", "bandwidth"]
        fused = [it["type"] for it in document["list"]["plugins"]] == ["chain"]
        assert fused == (words[0] == "fuse")
        assert (b'"chain"' in conflist.read_bytes()) == (fused and not document["dryRun"])


def test_uninstall_refuses_while_a_list_has_the_plugin_chain(conflist):
    uninstall.check_lists(str(conflist.parent))
    fuse(conflist)
    with pytest.raises(CniError, match=rf"no pod of network k8s-pod-network could be added; fastcni unfuse {conflist}"):
        uninstall.check_lists(str(conflist.parent))


def test_uninstall_refuses_while_a_list_has_the_plugin_policy(tmp_path):
    (tmp_path / "10-flannel.conflist").write_text(CONFLISTS[False])
    uninstall.check_lists(str(tmp_path))
    (tmp_path / "10-flannel.conflist").write_text(CONFLISTS[True])
    with pytest.raises(CniError, match=r"has the plugin policy, .* of network cbr0 could be added; .*agent --leave"):
        uninstall.check_lists(str(tmp_path))


def test_the_inventory_sees_the_plugins_inside_a_chain(conflist):
    before = load_list_file(conflist)
    fuse(conflist)
    net, config = load_list_file(conflist), json.loads(conflist.read_bytes())
    assert types_of(config) == ("chain", "bridge", "host-local", "portmap", "bandwidth")
    assert [it.directory for it in ranges_of([net])] == [it.directory for it in ranges_of([before])] != []
    cached = Cached("/x", config=config, result={"ips": [{"address": "10.22.0.2/24"}]})
    pod = NodeAttachment("k8s-pod-network", "c1", "eth0", RUNNING, "", cached=cached)
    assert masqueraded(pod) == {IPV4}
