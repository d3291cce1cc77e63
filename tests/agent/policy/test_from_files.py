"""A folder of JSON and YAML documents, and its changes."""

import json
import os
import select
import shutil

import pytest

from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.from_files import Files, read_cluster
from fastcni.agent.policy.objects import PolicyError
from fastcni.spec.address import read_ip

POD = {"kind": "Pod", "metadata": {"name": "a"}, "status": {"podIP": "10.0.0.1"}}
POLICIES = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}}
---
kind: Service
metadata: {name: other}
---
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [
        POD, {"kind": "Namespace", "metadata": {"name": "shop"}}]}))
    (tmp_path / "policies.yaml").write_text(POLICIES)
    (tmp_path / "notes.txt").write_text("not read")
    return tmp_path


def test_documents_of_all_files_are_read(folder):
    it = read_cluster(str(folder))
    assert (list(it.pods), list(it.namespaces), list(it.policies)) == (["default/a"], ["shop"], ["default/closed"])


@pytest.mark.parametrize("text, said", [("{", "bad.json: "), ("[]", "expected a mapping"),
                                        ('{"kind": "Pod"}', "Pod: metadata: is missing"),
                                        ('{"kind": "List", "items": 5}', "items: expected a list"),
                                        ("[" * 100_000, "nested too deep")])
def test_an_error_names_the_file(folder, text, said):
    (folder / "bad.json").write_text(text)
    with pytest.raises(PolicyError, match=f"bad.json: .*|{said}") as raised:
        read_cluster(str(folder))
    assert said in str(raised.value)


def test_a_folder_that_is_made_again_is_watched_again(folder):
    it = Compiler()
    files = Files(str(folder), it)
    try:
        shutil.rmtree(folder)
        files.attend()
        assert files.errors == {
            str(folder): f"{folder}: No such file or directory; the policies stay as they were"}
        assert files.due < float("inf")
        assert it.state.elements["in4"], "the policies stay meanwhile"
        folder.mkdir()
        files.attend()
        assert not files.errors and files.due == float("inf")
        assert not it.state.elements["in4"]
        assert not select.select([files], [], [], 0)[0]
        (folder / "policies.yaml").write_text(POLICIES)
        assert select.select([files], [], [], 1)[0]
    finally:
        files.close()


def test_policies_of_other_programs_are_passed_over(folder):
    """Calico has a NetworkPolicy too, with other keys."""
    (folder / "calico.yaml").write_text(POLICIES.replace("networking.k8s.io/v1", "projectcalico.org/v3").replace(
        "name: closed", "name: other"))
    assert list(read_cluster(str(folder)).policies) == ["default/closed"]


def test_a_policy_that_was_never_read_isolates_its_pods(folder):
    """As after a restart of the agent: what was read before is not known."""
    (folder / "policies.yaml").write_text(POLICIES + POLICIES.replace("closed", "wrong").replace(
        "podSelector: {}", "podSelector: {}, ingress: [{form: []}]"))
    it = Compiler()
    files = Files(str(folder), it)
    try:
        assert files.errors
        assert [policy.ingress for policy in it.cluster.policies.values()] == [(), ()]
        (folder / "policies.yaml").write_text(POLICIES + "kind: Pod\n")         # another mistake
        files.attend()
        assert list(it.cluster.policies) == ["default/closed"] and files.errors
    finally:
        files.close()


def test_a_change_of_a_file_changes_the_compiler_and_a_mistake_opens_nothing(folder):
    it = Compiler()
    files = Files(str(folder), it)

    def changed():
        assert select.select([files], [], [], 10)[0]
        files.attend()

    try:
        assert read_ip("10.0.0.1") in it.state.elements["in4"]
        (folder / "policies.yaml").write_text("kind: NetworkPolicy\nmetadata: {name: closed}\nspec: 1\n")
        changed()
        assert read_ip("10.0.0.1") in it.state.elements["in4"]
        assert [os.path.basename(path) for path in files.errors] == ["policies.yaml"]
        (folder / "policies.yaml").unlink()
        changed()
        assert not it.state.elements["in4"] and not files.errors
    finally:
        files.close()
