"""Policies from a directory of JSON and YAML documents, and changes of the directory."""

import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from time import monotonic

import pytest

from fastcni.agent.policy import child
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import PolicyError
from fastcni.agent.policy.sources import files as files_module
from fastcni.agent.policy.sources import lease
from fastcni.agent.policy.sources.content import Content
from fastcni.agent.policy.sources.documents import encode, reduced
from fastcni.agent.policy.sources.files import RETRY_S, Files, read_cluster, run
from fastcni.agent.policy.sources.lease import is_written
from fastcni.agent.policy.sources.reader import read_file
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
def directory(tmp_path):
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [
        POD, {"kind": "Namespace", "metadata": {"name": "shop"}}]}))
    (tmp_path / "policies.yaml").write_text(POLICIES)
    (tmp_path / "notes.txt").write_text("not read")
    return tmp_path


def test_documents_of_all_files_are_read(directory):
    it = read_cluster(str(directory))
    assert (list(it.pods), list(it.namespaces), list(it.policies)) == (["default/a"], ["shop"], ["default/closed"])


@pytest.mark.parametrize("text, said", [("{", "bad.json: "), ("[]", "expected a mapping"),
                                        ('{"kind": "Pod"}', "Pod: metadata: is missing"),
                                        ('{"kind": "List", "items": 5}', "items: expected a list"),
                                        ("[" * 100_000, "nested too deep")])
def test_an_error_names_the_file(directory, text, said):
    (directory / "bad.json").write_text(text)
    with pytest.raises(PolicyError, match=f"bad.json: .*|{said}") as raised:
        read_cluster(str(directory))
    assert said in str(raised.value)


def test_a_directory_that_is_made_again_is_watched_again(directory):
    it = Compiler()
    files = Files(str(directory), it)
    try:
        shutil.rmtree(directory)
        files.attend()
        assert files.errors == {
            str(directory): [f"{directory}: No such file or directory; the policies stay as they were"]}
        assert files.due < float("inf")
        assert it.state.elements["in4"], "the policies stay meanwhile"
        directory.mkdir()
        settle(files)
        assert not files.errors
        assert not it.state.elements["in4"]
        assert not select.select([files], [], [], 0)[0]
        (directory / "policies.yaml").write_text(POLICIES)
        assert select.select([files], [], [], 1)[0]
    finally:
        files.close()


@pytest.mark.parametrize("version, kind, converted", [
    ("projectcalico.org/v3", "NetworkPolicy", True), ("crd.projectcalico.org/v1", "GlobalNetworkPolicy", True),
    ("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", True),
    ("cilium.io/v2", "CiliumClusterwideNetworkPolicy", False),
    ("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", False)])
def test_policies_of_other_programs_are_not_enforced_and_the_operator_is_told(directory, version, kind, converted):
    """Calico also has a NetworkPolicy, with other keys. Once, the agent skipped such a document without an error."""
    (directory / "other.yaml").write_text(POLICIES.replace("networking.k8s.io/v1", version).replace(
        "kind: NetworkPolicy", f"kind: {kind}").replace("name: closed", "name: other, namespace: shop"))
    assert list(read_cluster(str(directory)).policies) == ["default/closed"]
    files = Files(str(directory), it := Compiler())
    try:
        ((path, (text,)),) = files.errors.items()
        assert text.startswith(f"{path}: {kind} shop/other of {version} is not enforced")
        assert ("fastcni policy convert" in text) is converted
        assert files.complete and list(it.cluster.policies) == ["default/closed"]
        (directory / "other.yaml").unlink()
        settle(files)
        assert not files.errors
    finally:
        files.close()


@pytest.mark.parametrize("kind, version", [("NetworkPolicies", "networking.k8s.io/v1"),
                                           ("NetworkPolcy", "networking.k8s.io/v1"),
                                           ("ClusterNetworkPolicys", "policy.networking.k8s.io/v1alpha2")])
def test_a_policy_whose_kind_is_misspelled_is_a_mistake(directory, source, kind, version):
    """Once, the agent took the document for another program's document, and the policy did not apply."""
    changed = POLICIES.replace("kind: NetworkPolicy", f"kind: {kind}").replace("networking.k8s.io/v1", version)
    (directory / "policies.yaml").write_text(changed)
    settle(source)
    (text,) = source.errors[str(directory / "policies.yaml")]
    assert f"document 1: kind: expected {kind.partition('Pol')[0]}Policy, got '{kind}'" in text
    assert list(source.content.compiler.cluster.policies) == ["default/closed"]


OF_OTHERS = {
    "v1": "Binding ConfigMap Endpoints Event LimitRange PersistentVolume PersistentVolumeClaim PodTemplate "
          "ReplicationController ResourceQuota Secret Service ServiceAccount",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet", "batch/v1": "CronJob Job",
    "autoscaling/v2": "HorizontalPodAutoscaler", "policy/v1": "PodDisruptionBudget",
    "networking.k8s.io/v1": "Ingress IngressClass IPAddress ServiceCIDR",
    "cilium.io/v2": "CiliumNode CiliumEndpoint CiliumIdentity CiliumEgressGatewayPolicy CiliumLocalRedirectPolicy",
    "postgresql.cnpg.io/v1": "Cluster", "config.openshift.io/v1": "Network", "k8s.ovn.org/v1": "EgressIP",
    "crd.antrea.io/v1beta1": "Egress", "example.com/v1": "NetworkPolicies"}


def test_a_file_may_have_documents_of_other_kinds(directory, source):
    (directory / "policies.yaml").write_text("".join(f"kind: {kind}\napiVersion: {version}\n---\n" for version, kinds in
                                                  OF_OTHERS.items() for kind in kinds.split()))
    settle(source)
    assert not source.errors and not source.content.compiler.cluster.policies


LIST = {"items": [{"kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": {"podSelector": {}}}]}
NO_LISTS = [{**LIST, "kind": kind} for kind in ("list", "Lists", "LIST", "NetworkPolicyLists", "L", "Li", "Lis",
                                                "NetworkPolicyLis", "NetworkPolicy", "Foo")]
NO_KINDS = [{"kind": kind} for kind in (
    *("NetworkPolicy"[:end] for end in range(1, 13)), *("ClusterNetworkPolicy"[:end] for end in range(1, 20)),
    *("CiliumNetworkPolicy"[:end] for end in range(1, 19)), "EgressAddr", "L", "list", "NetworkPolicyLi", "Namespaces")]
NO_KINDS_OF_GROUPS = [{"kind": kind, "apiVersion": version} for kind, version in (
    ("Policy", "networking.k8s.io/v1"), ("Ingres", "networking.k8s.io/v1"), ("Network", "networking.k8s.io/v1"),
    ("GlobalNetworkPolicy", "networking.k8s.io/v1"), ("Policy", "policy.networking.k8s.io/v1alpha2"),
    ("Egress", "policy.fastcni.dev/v1alpha1"), ("EgressIP", "policy.fastcni.dev/v1alpha1"), ("C", "cilium.io/v2"),
    ("CiliumNetwor", "cilium.io/v2"), ("CiliumNetworkPolicies", "cilium.io/v2"))]
NO_GROUPS = [{**LIST["items"][0], "apiVersion": version} for version in (
    "network.k8s.io/v1", "networking.k8s.io", "networking.k8s.i/v1", "Networking.k8s.io/v1", "cilium.io/v2",
    "policy.networking.k8s.io/v1alpha2")]


@pytest.mark.parametrize("document", [*NO_LISTS, *NO_KINDS, *NO_KINDS_OF_GROUPS, *NO_GROUPS], ids=json.dumps)
def test_a_kind_or_group_that_is_misspelled_or_cut_off_opens_no_pod(tmp_path, document):
    """Once, the agent took each of these documents for another program's document, and the policy did not apply."""
    line, it = encode(reduced(LIST["items"][0])), Content(Compiler())
    run(it.replace("a.json", [("", line)]))
    (tmp_path / "a.json").write_text(json.dumps(document))
    read = read_file(str(tmp_path), "a.json")
    run(it.replace("a.json", read.documents, read.broken))
    assert line in it.places["a.json"].entries and "default/closed" in it.compiler.cluster.policies
    (text,) = it.errors["a.json"]
    assert "kind: expected " in text or "apiVersion: expected " in text


@pytest.mark.parametrize("text", ["", "\n", "# closed\n", "\0" * 600, "apiVersion: v1\n", "kind: List\nitems:\n",
                                  "kind: NetworkPolicyList\nitems:\n-"])
def test_a_file_that_was_cut_off_takes_no_policy_away(directory, source, text):
    """Once, the agent reported no error for an empty file, and the pods of the file's policies were open."""
    it = source.content.compiler
    (directory / "policies.yaml").write_text(text)
    settle(source)
    assert list(it.cluster.policies) == ["default/closed"] and [*source.errors] == [str(directory / "policies.yaml")]
    (directory / "policies.yaml").write_text("---\n")
    settle(source)
    assert not it.cluster.policies and not source.errors


def settle(files):
    """Call attend() until the source has read all earlier changes."""
    files.attend()
    while files.busy:
        select.select([files], [], [], 0 if files.due == 0 else 10)
        files.attend()


@pytest.fixture
def source(directory):
    found = Files(str(directory), Compiler())
    yield found
    found.close()


def test_a_policy_that_was_never_read_isolates_its_pods(directory):
    """The agent cannot read the policy and has no earlier version of it."""
    (directory / "policies.yaml").write_text(POLICIES + POLICIES.replace("closed", "wrong").replace(
        "podSelector: {}", "podSelector: {}, ingress: [{form: []}]"))
    it = Compiler()
    files = Files(str(directory), it)
    try:
        assert files.errors
        assert [policy.ingress for policy in it.cluster.policies.values()] == [(), ()]
        (directory / "policies.yaml").write_text(POLICIES + "kind: Pod\n")         # the file has another mistake now
        settle(files)
        assert list(it.cluster.policies) == ["default/closed"] and files.errors
    finally:
        files.close()


def test_a_change_of_a_file_changes_the_compiler_and_a_mistake_opens_nothing(directory, source):
    it = source.content.compiler
    assert read_ip("10.0.0.1") in it.state.elements["in4"]
    (directory / "policies.yaml").write_text("kind: NetworkPolicy\nmetadata: {name: closed}\nspec: 1\n")
    assert select.select([source], [], [], 10)[0]
    settle(source)
    assert read_ip("10.0.0.1") in it.state.elements["in4"]
    assert [os.path.basename(path) for path in source.errors] == ["policies.yaml"]
    (directory / "policies.yaml").unlink()
    settle(source)
    assert not it.state.elements["in4"] and not source.errors


def test_only_files_that_have_changed_are_read(directory, source, monkeypatch):
    """Once, a changed label in one of 2,000 files made the agent parse all files."""
    asked = []
    monkeypatch.setattr(source._reader, "ask", asked.extend)
    (directory / "pods.json").write_text(json.dumps(POD))
    source.attend()
    assert asked == ["pods.json"]
    (directory / "notes.yaml.new").write_text("")
    (directory / ".hidden.yaml").write_text("")
    source.attend()
    assert asked == ["pods.json"]
    source._lost = True                         # as after notifications that the kernel dropped
    (directory / "policies.yaml").write_text(POLICIES)
    source._changes.take()
    source.attend()
    assert asked == ["pods.json", "policies.yaml"]


def test_files_of_a_config_map_are_read_again_when_it_changes(tmp_path):
    for name, policy in (("one", POLICIES), ("two", POLICIES.replace("closed", "other"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.yaml").write_text(policy)
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "..data").symlink_to(tmp_path / "one")
    (directory / "p.yaml").symlink_to("..data/p.yaml")
    files = Files(str(directory), it := Compiler())
    try:
        assert list(it.cluster.policies) == ["default/closed"]
        (directory / "..new").symlink_to(tmp_path / "two")
        (directory / "..new").rename(directory / "..data")
        settle(files)
        assert list(it.cluster.policies) == ["default/other"]
        (tmp_path / "two" / "p.yaml").unlink()  # a symbolic link without a target is a mistake, not a deleted file
        (directory / "p.yaml").unlink()
        (directory / "p.yaml").symlink_to("..data/p.yaml")
        settle(files)
        assert list(it.cluster.policies) == ["default/other"] and "No such file" in str(files.errors)
        (tmp_path / "two" / "p.yaml").write_text(POLICIES)
        files._again = dict.fromkeys(files._again, 0)   # the time of the next try, 10 s later, has come
        settle(files)
        assert list(it.cluster.policies) == ["default/closed"] and not files.errors
    finally:
        files.close()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir,
                                  lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)])
def test_what_is_no_file_holds_up_nothing(directory, source, make):
    make(directory / "strange.yaml")
    (directory / "policies.yaml").write_text(POLICIES.replace("closed", "other"))
    settle(source)
    assert list(source.content.compiler.cluster.policies) == ["default/other"]
    ((place, (text,)),) = source.errors.items()
    assert place == str(directory / "strange.yaml") and text.startswith(f"{place}: ")


def test_a_document_of_two_files_counts_while_one_of_them_has_it(directory, source):
    (directory / "z.yaml").write_text(POLICIES.replace("podSelector: {}", "podSelector: {matchLabels: {app: x}}"))
    settle(source)
    it = source.content.compiler
    assert not it.state.elements["in4"]                 # the policy of the last file is in force
    first, last = directory / "policies.yaml", directory / "z.yaml"
    assert source.errors == {str(first): [f"{first}: NetworkPolicy default/closed is not in force: {last} has another "
                                          "NetworkPolicy of this name"]}
    last.write_text(POLICIES)                           # both files have the same policy
    settle(source)
    assert it.state.elements["in4"] and not source.errors
    last.unlink()
    settle(source)
    assert it.state.elements["in4"] and not source.errors
    (directory / "policies.yaml").unlink()
    settle(source)
    assert not it.cluster.policies


def test_requests_are_answered_between_the_steps_of_a_large_file(directory, source):
    pods = [{"metadata": {"name": f"p{number}"}, "status": {"podIP": f"10.1.{number >> 8}.{number & 255}"}}
            for number in range(3000)]
    (directory / "pods.json").write_text(json.dumps({"kind": "PodList", "items": pods}))
    sizes = set()
    while len(source.content.compiler.cluster.pods) < 3000:
        select.select([source], [], [], 0 if source.due == 0 else 10)
        source.attend()
        sizes.add(len(source.content.compiler.cluster.pods))
    assert len(sizes) > 5, sizes


def test_a_source_that_is_closed_leaves_nothing(directory, monkeypatch):
    """close() leaves neither a descriptor nor a process."""
    monkeypatch.setattr(child, "subprocess", subprocess)        # a fork is no child of this process

    def there():
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return len(os.listdir("/proc/self/fd")), children

    before = there()
    files = Files(str(directory), Compiler())
    (directory / "policies.yaml").write_text(POLICIES)
    files.attend()
    assert there() != before
    files.close()
    assert there() == before


@pytest.mark.parametrize("parent", ["directory is a link", "a directory above is a link"])
def test_a_link_that_leads_to_another_directory_is_followed(tmp_path, parent):
    """git-sync replaces the link in one step. Once, the agent read the previous directory until a restart."""
    above = parent != "directory is a link"
    for name, policy in (("one", POLICIES), ("two", POLICIES.replace("closed", "other"))):
        place = tmp_path / name / "in" if above else tmp_path / name
        place.mkdir(parents=True)
        (place / "p.yaml").write_text(policy)
    (link := tmp_path / "link").symlink_to("one")
    files = Files(str(link / "in" if above else link), it := Compiler())
    try:
        assert list(it.cluster.policies) == ["default/closed"]
        # inotify reports no change of such a link, so the agent checks it again
        assert files.due <= monotonic() + RETRY_S
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(link)
        settle(files)
        assert list(it.cluster.policies) == ["default/other"]
        select.select([files], [], [], 0.1)
        (tmp_path / "two" / ("in" if above else "") / "p.yaml").write_text(POLICIES)
        assert select.select([files], [], [], 10)[0]
        settle(files)
        assert list(it.cluster.policies) == ["default/closed"]
    finally:
        files.close()


def test_a_file_that_is_to_be_read_again_stays_while_the_directory_is_missing(directory, source):
    source._again = {"policies.yaml": 0.0}
    directory.rename(directory.with_name("elsewhere"))
    settle(source)
    settle(source)
    assert source.errors and list(source.content.compiler.cluster.policies) == ["default/closed"]


OTHER = POLICIES.replace("closed", "other")
TOUCHES = [os.utime, lambda path: path.chmod(0o640),
           lambda path: os.chown(path, os.getuid(), os.getgid()), lambda path: path.open("a").close()]


@pytest.mark.parametrize("touch", TOUCHES, ids=["utime", "chmod", "chown", "another program"])
def test_a_file_is_not_read_while_a_program_has_it_open_for_writing(directory, source, touch):
    """Once, the agent read half of the file, and the policies of the other half did not apply."""
    it = source.content.compiler
    with (directory / "policies.yaml").open("w") as file:
        file.write(OTHER)
        file.flush()
        touch(directory / "policies.yaml")
        settle(source)
        assert list(it.cluster.policies) == ["default/closed"] and not source.errors
        file.write(POLICIES)
    assert select.select([source], [], [], 10)[0]
    settle(source)
    assert sorted(it.cluster.policies) == ["default/closed", "default/other"] and not source.errors


def test_a_new_file_is_read_when_its_program_closes_it(directory, source):
    """Once, the agent read a file right after its creation, and reported an empty file."""
    it = source.content.compiler
    with (directory / "new.yaml").open("w") as file:
        settle(source)
        assert not source.errors
        file.write(OTHER)
    settle(source)
    assert list(it.cluster.policies) == ["default/closed", "default/other"]
    (directory / "new.yaml").unlink()
    (directory / "elsewhere").write_text(OTHER)
    (directory / "link.yaml").hardlink_to(directory / "elsewhere")
    settle(source)
    assert list(it.cluster.policies) == ["default/closed", "default/other"], "a link is not closed"


def test_a_file_that_stays_open_for_writing_is_an_error_until_it_is_closed(directory, source, monkeypatch):
    with (directory / "policies.yaml").open("w"):
        os.utime(directory / "policies.yaml")
        settle(source)
        assert not source.errors
        monkeypatch.setattr(files_module, "WRITTEN_S", 0.0)
        source._again = dict.fromkeys(source._again, 0.0)
        settle(source)
        assert list(source.errors.values()) == [[f"{directory}/policies.yaml: a program has it open for writing"]]
        assert list(source.content.compiler.cluster.policies) == ["default/closed"]
        (directory / "policies.yaml").write_text(OTHER)
    settle(source)
    assert list(source.content.compiler.cluster.policies) == ["default/other"] and not source.errors


def test_an_agent_that_starts_while_a_file_is_written_does_not_know_the_policies(directory):
    with (directory / "policies.yaml").open("a"):
        files = Files(str(directory), it := Compiler())
        assert not files.complete and "open for writing" in str(files.errors) and "policies.yaml" in files.away
    try:
        settle(files)
        assert files.complete and not files.errors and list(it.cluster.policies) == ["default/closed"]
    finally:
        files.close()


def test_a_program_that_opens_a_file_while_it_is_read_waits_and_no_signal_ends_the_reader(directory):
    """The kernel sends SIGIO to the holder of a file lease. Without a handler, SIGIO ends the process."""
    with (directory / "policies.yaml").open("rb") as file:
        assert not is_written(file.fileno())
        with pytest.raises(BlockingIOError):
            os.open(directory / "policies.yaml", os.O_WRONLY | os.O_NONBLOCK)
    (directory / "policies.yaml").write_text(OTHER)


def test_where_each_lease_is_refused_a_file_is_read_nevertheless(directory, monkeypatch):
    """NFS 4 and CIFS reject each file lease, even for a file that no program has open."""
    with (directory / "policies.yaml").open("r+b") as file:
        assert is_written(file.fileno())
        monkeypatch.setattr(lease, "file_system", lambda fd: "nfs4")
        assert not is_written(file.fileno())
    with open("/proc/self/status", "rb") as file:
        monkeypatch.undo()
        assert lease.file_system(file.fileno()) == "proc"
