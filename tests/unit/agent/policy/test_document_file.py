"""The policies in force stay in force after a restart or a reboot, even if the agent cannot read their source. Needs
root."""

import json
import os
import shutil
from pathlib import Path

import pytest
from unit.agent.policy.clusters import make_pod
from unit.agent.policy.pods import ADDRESSES, TCP
from unit.agent.policy.test_service import DB, WEB_ONLY, Api, Running, allowed, node, running  # noqa: F401 - fixtures

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.ruleset import TABLE
from fastcni.agent.policy.sources import document_file as module
from fastcni.agent.policy.sources import reader
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.document_file import DocumentFile
from fastcni.agent.policy.sources.documents import encode, foreign
from fastcni.spec.address import read_ip
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

A, B = "default/a", "default/b"
LINES = [encode({"kind": "NetworkPolicy", "metadata": {"name": name}}) for name in "ab"]


class Log(list):
    def error(self, event, **fields):
        self.append((event, fields["error"]))


def content(**places):
    found = Content(Compiler())
    for place, lines in places.items():
        list(found.replace(place, [("", line) for line in lines]))
    return found


def write(path, found, source="x"):
    it = DocumentFile(str(path), source, Log())
    it.follow(found)
    it.close()
    return it.log


def test_what_was_kept_is_read_again(tmp_path):
    path = tmp_path / "new" / "directory" / "kept"
    assert write(path, content(a=LINES, b=LINES[:1])) == []
    assert DocumentFile(str(path), "x", Log()).read() == {"a": LINES, "b": LINES[:1]}
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    write(path, content())
    assert DocumentFile(str(path), "x", Log()).read() == {}
    assert [each.name for each in path.parent.iterdir()] == ["kept"]


def test_each_change_is_soon_in_the_file(tmp_path):
    found, path = content(), tmp_path / "kept"
    it = DocumentFile(str(path), "x", Log())
    found.changed = it.changed
    it.follow(found)
    try:
        for lines in (LINES, LINES[:1], []):
            list(found.replace("a", [("", line) for line in lines]))
            assert eventually(lambda lines=lines: DocumentFile(str(path), "x", Log()).read() == (
                {"a": lines} if lines else {}))
    finally:
        it.close()


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b'"a"', b'"c"', 1), lambda _: b"",
                                    lambda data: data + b"x\ty\n", lambda data: data[data.index(b"\n"):],
                                    lambda data: b"[" * 99 + data, lambda _: b"[" * 2_000_000,
                                    lambda data: b"[]" + data[data.index(b"\n"):]])
def test_a_file_that_is_damaged_is_not_used(tmp_path, damage):
    path = tmp_path / "kept"
    write(path, content(a=LINES))
    path.write_bytes(damage(path.read_bytes()))
    log = Log()
    assert DocumentFile(str(path), "x", log).read() is None
    assert [event for event, _ in log] == ["policies_not_kept"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_holds_up_nothing(tmp_path, make):
    """Once, a FIFO in place of the file, or a link to a device, kept the agent from starting."""
    for name in ("kept", ".kept.new"):
        make(path := tmp_path / name)
        log = Log()
        if name == "kept":
            assert DocumentFile(str(path), "x", log).read() is None
            assert [event for event, _ in log] == ["policies_not_kept"]
        else:
            assert [event for event, _ in write(tmp_path / "other" / ".." / "kept", content(a=LINES))] == [
                "policies_not_kept"]


def test_a_file_of_another_source_or_version_is_not_used(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    write(path, content(a=LINES))
    assert DocumentFile(str(path), "y", Log()).read() is None
    monkeypatch.setattr(module, "FORMAT", 99)
    assert DocumentFile(str(path), "x", Log()).read() is None
    assert DocumentFile(str(tmp_path / "none"), "x", log := Log()).read() is None and not log


def test_a_mount_point_of_another_source_does_not_count(tmp_path):
    it = DocumentFile(str(tmp_path / "kept"), "x", Log())
    it.mounted = True
    it.follow(content(a=LINES))
    it.close()
    for source in "xy":
        again = DocumentFile(str(it.path), source, Log())
        again.read()
        assert (again.mounted, again.lost) == (source == "x", False)
    it.path.write_bytes(it.path.read_bytes()[:-9])
    again = DocumentFile(str(it.path), "x", Log())
    assert again.read() is None and again.mounted and again.lost


def test_policies_of_other_programs_are_not_kept(tmp_path):
    """Once, an agent could not read its own file with such policies again."""
    line = encode(foreign({"kind": "AdminNetworkPolicy", "metadata": {"name": "x"}}))
    write(path := tmp_path / "kept", content(a=[*LINES, line], b=[line]))
    assert DocumentFile(str(path), "x", Log()).read() == {"a": LINES}


def test_a_disk_that_takes_nothing_is_told_once_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    (tmp_path / "file").write_text("")
    it = DocumentFile(str(tmp_path / "file" / "kept"), "x", Log())
    it.follow(content(a=LINES))
    try:
        assert eventually(lambda: it.log)
        (tmp_path / "file").unlink()
        assert eventually(lambda: it.read() == {"a": LINES})
        assert [event for event, _ in it.log if "ENOTDIR"] and len({text for _, text in it.log}) == len(it.log)
    finally:
        it.close()


def test_too_much_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 20)
    assert write(tmp_path / "kept", content(a=LINES)) == [("policies_not_kept", "more than 0 MB")]


def test_what_was_kept_before_is_not_used_when_the_disk_takes_no_more(tmp_path):
    """Otherwise a policy that the file lacks would not apply after the next start, if the agent cannot read its
    source."""
    write(path := tmp_path / "kept", content(a=LINES[:1]))
    (tmp_path / ".kept.new").mkdir()
    assert [event for event, _ in write(path, content(a=LINES))] == ["policies_not_kept"]
    assert DocumentFile(str(path), "x", log := Log()).read() is None and not log


@pytest.mark.needs("root")
def test_what_was_kept_before_is_not_used_if_it_could_not_be_removed(tmp_path):
    """Once, the older policies of a file on a read-only file system replaced the policies in the kernel."""
    (directory := tmp_path / "var").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(directory))
    try:
        def kept():
            return DocumentFile(str(directory / "kept"), "x", Log(), str(tmp_path / "outdated"))

        def follow(found):
            it = kept()
            it.follow(found)
            it.close()
            return it.log

        assert follow(content(a=LINES[:1])) == []
        run("mount", "-o", "remount,ro", str(directory))
        assert kept().read() == {"a": LINES[:1]}
        assert [event for event, _ in follow(content(a=LINES))] == ["policies_not_kept"]
        again = kept()
        assert again.read() is None and again.lost and "older than the policies" in again.log[0][1]
        run("mount", "-o", "remount,rw", str(directory))
        assert follow(content(a=LINES)) == [] and kept().read() == {"a": LINES}
    finally:
        run("umount", str(directory))


# -- restarts of the agent ---------------------------------------------------------------------------------------------

CLOSED = {"kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": {**DB, "ingress": [{"from": [
    {"podSelector": {"matchLabels": {"app": "web"}}}]}]}}
BREAK = {
    "no JSON": lambda it: it.write_text(it.read_text()[:-20]), "empty": lambda it: it.write_text(""),
    "binary": lambda it: it.write_bytes(b"\xff\0" * 99), "nested": lambda it: it.write_text("[" * 3000),
    "a directory": lambda it: (it.unlink(), it.mkdir()),
    "a dangling link": lambda it: (it.unlink(), it.symlink_to("no")),
    "no rules": lambda it: it.write_text(json.dumps({**CLOSED, "spec": {**CLOSED["spec"], "ingress": 5}})),
    "no namespace": lambda it: it.write_text(json.dumps({**CLOSED, "metadata": {"name": "closed", "namespace": 5}})),
    "no directory": lambda it: shutil.rmtree(it.parent)}


def mount(directory):
    run("mount", "-t", "tmpfs", "tmpfs", str(directory))


@pytest.fixture
def mounts(running):  # noqa: F811
    """Return a mount helper, for tests that mount something at the directory."""
    yield
    while os.path.ismount(running.directory):
        run("umount", "-l", str(running.directory))


@pytest.fixture
def protected(running, node):  # noqa: F811
    """Run an agent with a policy that lets only pod a connect to pod b."""
    running.write(CLOSED)
    running.add("a", app="web")
    running.add("b", app="db")
    assert eventually(lambda: allowed(node, "a"))
    path = running.settings.state.replace("pods", "policies.kept")
    assert eventually(lambda: DocumentFile(path, str(running.directory), Log()).read())
    return running


@pytest.mark.parametrize("rebooted", [False, True], ids=["restart", "reboot"])
@pytest.mark.parametrize("damage", BREAK.values(), ids=BREAK)
def test_a_file_that_was_broken_while_the_agent_was_down_opens_no_pod(protected, node, damage, rebooted):  # noqa: F811
    """Once, only the agent's memory had the file's last readable content."""
    protected.stop()
    damage(protected.directory / "all.json")
    if rebooted:
        run("nft", "delete", "table", "inet", TABLE)
    protected.start()
    assert protected.it.ready or eventually(lambda: protected.it.ready)
    assert eventually(lambda: "policy_unreadable" in protected.events())
    assert allowed(node, "a")
    assert protected.it.figures()["unreadable_documents"] == 1
    protected.add("d", app="other")
    assert allowed(node, "a")
    shutil.rmtree(protected.directory, ignore_errors=True)
    protected.directory.mkdir()
    protected.write()
    assert eventually(lambda: not protected.it.figures()["unreadable_documents"])
    assert allowed(node, "a", "c", "d")


KEPT = {"damaged": lambda it: it.write_bytes(it.read_bytes()[:-9]),
        "gone": Path.unlink, "a directory": lambda it: (it.unlink(), it.mkdir()),
        "of a later version": lambda it: it.write_bytes(it.read_bytes().replace(b'"format": 2', b'"format": 3'))}


@pytest.mark.parametrize("lost, damage", [*[(lost, "no JSON") for lost in KEPT], ("gone", "a dangling link"),
                                          ("damaged", "no namespace")])
def test_what_nobody_can_read_any_longer_stays_in_the_kernel(protected, node, damage, lost):  # noqa: F811
    """Once, without kept policies, an unreadable file counted as a file without policies."""
    protected.stop()
    BREAK[damage](path := protected.directory / "all.json")
    KEPT[lost](kept := Path(protected.settings.state.replace("pods", "policies.kept")))
    protected.start()
    assert eventually(lambda: "policy_unreadable" in protected.events())
    assert ("policies_not_kept" in protected.events()) is (lost != "gone")
    assert f"{path}: the previous version is not known; no pod is added" in str(protected.it.errors)
    with pytest.raises(CniError, match=f"policies are not known yet: {path}: the previous version is not known") as e:
        protected.add("d", app="web")
    assert e.value.code == 11 and not protected.it.ready and allowed(node, "a")
    protected.call("DEL", "c")
    assert allowed(node, "a")
    if kept.is_dir():
        kept.rmdir()
    path.unlink()
    protected.write(CLOSED)
    assert eventually(lambda: protected.it.ready) and not protected.it.errors
    protected.add("d", app="web")
    assert allowed(node, "a", "d")
    assert eventually(lambda: DocumentFile(str(kept), str(protected.directory), Log()).read())


def test_a_directory_without_policies_opens_no_pod_while_what_was_kept_cannot_be_read(protected, node):  # noqa: F811
    """The directory may be another directory, for example the one below a mount point."""
    protected.stop()
    (protected.directory / "all.json").unlink()
    kept = Path(protected.settings.state.replace("pods", "policies.kept"))
    KEPT["damaged"](kept)
    protected.start()
    said = f"{protected.directory}: has no policy, and {kept} cannot be read"
    assert eventually(lambda: said in str(protected.it.errors)) and allowed(node, "a")
    protected.stop()
    kept.unlink()
    protected.start()
    assert eventually(lambda: protected.it.ready) and allowed(node, "a", "c", "d")


def test_a_file_that_goes_is_in_the_log(protected, node):  # noqa: F811
    """For example, an editor or a backup renames the file."""
    (protected.directory / "all.json").rename(protected.directory / "all.json.bak")
    gone = {"event": "policy_file_gone", "path": str(protected.directory / "all.json")}
    assert eventually(lambda: gone in protected.log) and allowed(node, "a", "c", "d")


def test_a_killed_agent_has_kept_what_it_enforced(protected, node):  # noqa: F811
    path = protected.settings.state.replace("pods", "policies.kept")
    with open(path, "rb") as file:
        data = file.read()                  # the content after a kill: a stopped agent may write the file
    protected.stop()
    with open(path, "wb") as file:
        file.write(data)
    (protected.directory / "all.json").write_text("{")
    run("nft", "delete", "table", "inet", TABLE)
    protected.start()
    assert eventually(lambda: protected.it.ready) and allowed(node, "a")


@pytest.mark.parametrize("fate", ["import os; os.kill(os.getpid(), 9);", "import time; time.sleep(999);"],
                         ids=["ends", "hangs"])
def test_without_the_process_that_reads_files_what_was_kept_is_enforced(protected, node, fate, monkeypatch):  # noqa: F811
    """Once, the death of this process ended the agent at its start. After a reboot, all pods were open."""
    protected.stop()
    run("nft", "delete", "table", "inet", TABLE)
    monkeypatch.setattr(reader, "MAIN", f"{fate} {reader.MAIN}")
    monkeypatch.setattr(reader, "START_S", 3.0)
    protected.start()
    assert eventually(lambda: "policies_kept" in protected.events()) and allowed(node, "a")
    assert eventually(lambda: "policy_unreadable" in protected.events())
    with pytest.raises(CniError, match=r"policies are not known yet: .* reads files .* is started again") as e:
        protected.add("d", app="other")
    assert e.value.code == 11
    monkeypatch.undo()
    assert eventually(lambda: protected.it.ready, 30) and not protected.it.errors and allowed(node, "a")
    protected.add("d", app="other")


def test_a_file_that_was_deleted_while_the_agent_was_down_counts_no_more(protected, node):  # noqa: F811
    protected.stop()
    (protected.directory / "all.json").unlink()
    protected.start()
    assert eventually(lambda: protected.it.ready)
    assert allowed(node, "a", "c", "d") and not protected.it.errors


def test_without_the_directory_the_first_agent_adds_no_pod(running, node):  # noqa: F811
    """Once, the agent created an empty directory. After a typing error in its name, pods could make any connection."""
    running.stop()
    for name in ("policies", "pods", "policies.kept"):
        it = running.directory.parent / name
        shutil.rmtree(it) if it.is_dir() else it.unlink()
    running.start()
    assert eventually(lambda: "policy_unreadable" in running.events())
    with pytest.raises(CniError,
                       match=f"policies are not known yet: {running.directory}: No such file or directory") as e:
        running.add("b", app="db")
    assert e.value.code == 11 and not running.directory.exists()
    running.directory.mkdir()
    running.write(CLOSED)
    assert eventually(lambda: running.it.ready)
    running.add("b", app="db")
    assert allowed(node)


def test_an_api_server_that_is_away_after_a_reboot_opens_no_pod(node, tmp_path):  # noqa: F811
    """Until the agent has a complete list from the API server, it enforces all kept policies and adds no pod."""
    api = Api()
    api.listed.set()
    again = Running(tmp_path, directory="", api=lambda: api, node="here")
    try:
        assert eventually(lambda: again.it.ready)
        api.objects = [{"metadata": {"name": "b", "resourceVersion": "2", "uid": "u", "labels": {"app": "db"}},
                        "spec": {"nodeName": "here"}, "status": {"podIP": ADDRESSES["b"][0]}}]
        api.more.set()
        assert eventually(lambda: not allowed(node, "a", "c", "d"))
        again.stop()
        run("nft", "delete", "table", "inet", TABLE)
        api = Api()
        again.start()
        assert eventually(lambda: "policies_kept" in again.events())
        assert node.reached({("a", ADDRESSES["b"][0], TCP, 80)}, set()) == set()
        assert not again.it.ready
        with pytest.raises(CniError, match="policies are not known yet"):
            again.call("ADD", "b", "K8S_POD_NAME=b;K8S_POD_UID=u")
        run("nft", "flush", "ruleset")
        assert node.reached({("c", ADDRESSES["b"][0], TCP, 80)}, set()) == set()
        api.listed.set()                    # the list has no pods and no policies
        assert eventually(lambda: again.it.ready)
        assert eventually(lambda: allowed(node, "a", "c", "d"))
    finally:
        again.stop()


def test_a_directory_that_is_no_longer_mounted_opens_no_pod(running, node, mounts):  # noqa: F811
    """After the unmount, the directory below the mount point is empty."""
    mount(running.directory)
    running.write(CLOSED)
    running.add("a", app="web")
    running.add("b", app="db")
    path = running.settings.state.replace("pods", "policies.kept")
    assert eventually(lambda: (it := DocumentFile(path, str(running.directory), Log())).read() and it.mounted)
    run("umount", str(running.directory))
    said = f"{running.directory}: no longer a mount point: mount the directory again"
    assert eventually(lambda: said in str(running.it.errors)) and allowed(node, "a")
    for rebooted in (False, True):
        running.stop()
        if rebooted:
            run("nft", "delete", "table", "inet", TABLE)
        running.start()
        assert eventually(lambda: running.it.ready) and said in str(running.it.errors) and allowed(node, "a")
    assert "policies_gone" not in running.events()
    mount(running.directory)
    running.write()
    assert eventually(lambda: not running.it.errors and not running.it.figures()["policies"])
    assert allowed(node, "a", "c", "d") and eventually(lambda: "policies_gone" in running.events())


def test_a_directory_that_is_mounted_over_another_one_counts(protected, node, mounts):  # noqa: F811
    mount(protected.directory)
    assert eventually(lambda: "policies_gone" in protected.events()) and allowed(node, "a", "c", "d")
    protected.write(CLOSED)
    assert allowed(node, "a")


def test_records_of_pods_are_kept_too():
    """The agent needs these records after a reboot to know the pods that are peers."""
    found = content(a=[encode({"kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}},
                               "status": {"podIP": "10.0.0.1"}})])
    again = content(a=list(found.places["a"].entries))
    assert again.compiler.cluster.pods == found.compiler.cluster.pods == {
        A: make_pod("a", "10.0.0.1", labels={"app": "x"}, node="")}
    assert read_ip("10.0.0.1") in again.compiler.cluster.pods[A].addresses
