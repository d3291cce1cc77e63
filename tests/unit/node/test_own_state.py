"""Uninstall and fastcni's own state. A table is deleted only if no ADD changes it meanwhile, and a file only if no pod
needs it."""

import os

import pytest

from fastcni.agent import masquerade
from fastcni.agent.policy import ruleset as policy_ruleset
from fastcni.kernel import deletions
from fastcni.node.attachments.attachment import GONE, RUNNING, NodeAttachment
from fastcni.node.attachments.inventory import Places
from fastcni.node.own import files as own_files
from fastcni.node.own import tables as own_tables
from fastcni.node.own import uninstall
from fastcni.node.own.state import OwnState
from fastcni.runtime.mode import SharedMode
from fastcni.testing.namespaces import run


@pytest.fixture
def mode(host_netns):
    mode = SharedMode()
    yield mode
    mode.close()


def ruleset():
    return run("nft", "list", "ruleset")


@pytest.mark.parametrize("then", ["an element of a pod", "another table"])
def test_the_kernel_refuses_to_delete_a_table_that_an_add_has_just_used(host, mode, pod_netns, monkeypatch, then):
    host.delete("c1", host.add("c1", pod := pod_netns()) and pod)
    assert "table inet fastcni" in ruleset()
    generation, asked = deletions.generation, []

    def come_between(sock):
        found = generation(sock)
        asked.append(found)
        if len(asked) == 1 and then == "another table":
            run("nft", "add", "table", "inet", "theirs")
        return found

    marked = own_tables.state.marked

    def look_and_add(mode):
        found = marked(mode)
        if then == "an element of a pod" and len(asked) == 1:
            host.add("c2", pod)             # this ADD comes between the check and the deletion
        return found

    monkeypatch.setattr(deletions, "generation", come_between)
    monkeypatch.setattr(own_tables.state, "marked", look_and_add)
    removed = own_tables.remove_tables(mode)
    assert len(asked) == 2
    if then == "another table":
        assert removed == ["nftables table inet fastcni"] and "fastcni" not in ruleset()
    else:
        assert removed == [] and "c2" in ruleset()
        monkeypatch.undo()
        host.delete("c2", pod)


def test_tables_of_the_agent_stay_and_are_named(mode, tmp_path):
    assert set(uninstall.AGENT_TABLES) == {masquerade.TABLE, policy_ruleset.TABLE}
    for name in uninstall.AGENT_TABLES:
        run("nft", "add", "table", "inet", name)
    places = Places(str(tmp_path), (str(tmp_path),))
    (first, second) = sorted(uninstall.remove_state(places).kept)
    assert "fastcni-agent" in first and "fastcni-policy" in second and "fastcni agent --leave" in first
    assert run("nft", "list", "tables").count("fastcni-") == 2


def test_backups_of_pods_stay_and_what_nobody_needs_goes(tmp_path, monkeypatch):
    tuning, devices = tmp_path / "tuning", tmp_path / "host-device"
    monkeypatch.setattr(own_files, "HOST_DEVICE", str(devices))
    for where in (tuning, devices):
        for name in ("alive_eth0.json", "dead_eth0.json", "deleted_eth0.json"):
            (where / ".fastcni" / "net").mkdir(parents=True, exist_ok=True)
            (where / ".fastcni" / "net" / name).symlink_to(f"../../{name}")
            if name != "deleted_eth0.json":
                (where / name).write_text("{}")
    (tmp_path / "networks" / "net").mkdir(parents=True)
    (tmp_path / "networks" / "net" / ".fastcni.index").touch()
    (tmp_path / "networks" / "net" / "10.1.0.2").touch()
    known = (NodeAttachment("net", "alive", "eth0", RUNNING, ""), NodeAttachment("net", "dead", "eth0", GONE, ""))
    directories = [str(tuning), str(devices)]
    free, needed = own_files.find(OwnState([], [str(tmp_path / "networks"), "/nowhere"], known, ()), directories)
    # tuning's files may stay: DEL of the reference plugin needs them, and does not know fastcni's marks
    assert needed == [f"{devices}/alive_eth0.json"]
    assert own_files.remove(free, directories) == free
    left = sorted(os.path.relpath(os.path.join(where, name), tmp_path)
                  for where, _, names in os.walk(tmp_path) for name in names)
    assert left == ["host-device/.fastcni/net/alive_eth0.json", "host-device/alive_eth0.json", "networks/net/10.1.0.2",
                    "tuning/alive_eth0.json", "tuning/dead_eth0.json"]
