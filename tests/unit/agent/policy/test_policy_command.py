"""`fastcni policy test`: whether the policies allow a connection, and which rule decides."""

import json

import pytest
from click.testing import CliRunner

from fastcni.agent.policy import attached
from fastcni.agent.policy.in_kernel import decisions
from fastcni.cli.commands import cli
from fastcni.spec.address import read_ip

DOCUMENTS = {"kind": "List", "items": [
    {"kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
     "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}},
    {"kind": "Pod", "metadata": {"name": "db", "namespace": "shop", "labels": {"app": "db"}},
     "spec": {"containers": [{"ports": [{"name": "sql", "containerPort": 5432}]}]}, "status": {"podIP": "10.0.0.2"}},
    {"kind": "NetworkPolicy", "metadata": {"name": "db", "namespace": "shop"}, "spec": {
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": "sql"}]}]}}]}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps(DOCUMENTS))
    return lambda *words: CliRunner().invoke(cli, ["policy", "test", *words, "--json", "--folder", str(tmp_path),
                                                   "--agent-folder", str(tmp_path / "agent")])


@pytest.mark.parametrize("words, status, text", [
    (("shop/web", "shop/db", "sql"), 0, "allowed by shop/db ingress[0]"),
    (("shop/web", "shop/db", "5432"), 0, "allowed by shop/db ingress[0]"),
    (("shop/web", "shop/db", "5432/udp"), 1, "denied: no rule of shop/db allows it"),
    (("192.0.2.1", "10.0.0.2", "5432"), 1, "denied: no rule of shop/db allows it"),
    (("shop/db", "shop/web", "80"), 0, "allowed: no policy selects the pod")])
def test_the_verdict_and_its_reason(run, words, status, text):
    done = run(*words)
    assert done.exit_code == status, done.output
    (found,) = json.loads(done.output)["connections"]
    assert found["ingress"]["text"] == text
    assert found["allowed"] is (status == 0)


@pytest.mark.parametrize("words, text", [
    (("nobody", "shop/db", "1"), "there is no pod default/nobody"), (("shop/web", "shop/db", "x"), "port x"),
    (("fd00::9", "shop/db", "80"), "same family")])
def test_what_is_asked_wrongly(run, words, text):
    done = run(*words)
    assert done.exit_code and text in str(done.exception)


def test_pods_of_this_node_that_are_in_no_file_are_known(run, tmp_path, monkeypatch):
    """With policies in files, the agent knows pods by their ADDs. Once, the command said that connections to such a pod
    are allowed."""
    monkeypatch.setattr(decisions, "read", list)        # the machine's kernel has no policy table
    pods = tmp_path / "agent" / "pods"
    pods.mkdir(parents=True)
    for name, pod, labels, address in (("c1", "shop/other", {"app": "db"}, "10.0.0.7"),
                                       ("c2", "shop/db", {"app": "web"}, "10.0.0.8")):
        attached.keep(str(pods), attached.Attachment(("net", name, "eth0"), pod, labels, (read_ip(address),)))
    (pods / "damaged.json").write_text("[]")
    for words, verdict in ((("shop/web", "shop/other", "80"), "denied: no rule of shop/db allows it"),
                           (("192.0.2.1", "10.0.0.7", "80"), "denied: no rule of shop/db allows it"),
                           # by the file of its ADD
                           (("192.0.2.1", "10.0.0.8", "80"), "denied: no rule of shop/db allows it")):
        done = run(*words)
        (found,) = json.loads(done.output)["connections"]
        assert (done.exit_code, found["answer"], found["ingress"]["text"]) == (3, "differs", verdict)
    assert (pods / "damaged.json").exists()
    done = CliRunner().invoke(cli, ["policy", "test", "shop/web", "shop/other", "80", "--folder", str(tmp_path),
                                    "--agent-folder", ""])
    assert "there is no pod shop/other" in str(done.exception)


@pytest.mark.parametrize("former, latest", [("c1", "c2"), ("c2", "c1")])
def test_the_labels_of_the_latest_add_count(run, tmp_path, monkeypatch, former, latest):
    """The command uses the labels that the agent uses, even if the earlier pod of this name had no DEL."""
    monkeypatch.setattr(decisions, "read", list)
    pods = tmp_path / "agent" / "pods"
    pods.mkdir(parents=True)
    for number, (name, app) in enumerate([(former, "web"), (latest, "db")]):
        attached.keep(str(pods), attached.Attachment(("net", name, "eth0"), "shop/again", {"app": app},
                                                     (read_ip(f"10.0.0.{7 + number}"),), number + 1))
    done = run("192.0.2.1", "10.0.0.8", "80")
    (found,) = json.loads(done.output)["connections"]
    assert (done.exit_code, found["ingress"]["text"]) == (3, "denied: no rule of shop/db allows it")
