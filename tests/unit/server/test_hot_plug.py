"""Hot plug without an API server and without a network. The tests cover when a pod is compared with its annotation, and
what follows a failure. The tests with networks are in tests/cluster/kubernetes/test_hot_plug.py."""

import json
import os
import socket
from time import monotonic
from types import SimpleNamespace

import pytest
from unit.server.flushed import Log

from fastcni.handle import UPDATE
from fastcni.kernel import netns
from fastcni.kit.networks.api_objects import Pod
from fastcni.kit.networks.network import Network, define
from fastcni.kit.networks.selection import NETWORKS
from fastcni.kit.networks.state import State
from fastcni.server.networks import hot_plug as module
from fastcni.server.networks.containers import CachedAttachment, Containers
from fastcni.server.networks.hot_plug import HotPlug, state_of
from fastcni.server.requests import protocol
from fastcni.spec import errors
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError
from fastcni.testing.witnesses import eventually

WEB, DB = ("shop", "web"), ("shop", "db")


def pod(annotation="b", uid="uid-1"):
    return Pod({"metadata": {"uid": uid, "annotations": {NETWORKS: annotation}}})


def answer(status, body=b"", stderr=b""):
    return protocol.HEAD.pack(protocol.MAGIC, protocol.VERSION, status, len(stderr)) + stderr + body


class Acceptor:
    """An Acceptor that takes each request and answers it with `reply`. awaited has the attachments for which another
    request waits."""

    def __init__(self):
        self.requests, self.awaited, self.reply = [], set(), answer(0)
        self.queue = SimpleNamespace(is_awaited=self.awaited.__contains__)

    def submit(self, plugin, env, stdin, home):
        self.requests.append((plugin, env, json.loads(stdin)))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self.reply:
            theirs.send(self.reply)
        theirs.close()
        return ours


@pytest.fixture
def hot(tmp_path):
    """Return a HotPlug whose thread is not started."""
    conf = {"name": "a", "type": "multus", "cniVersion": "1.1.0", "hotPlug": True, "cniDir": str(tmp_path),
            "delegates": [{"type": "bridge"}]}
    source = SimpleNamespace(pods=SimpleNamespace(found={WEB: pod()}, changed=None))
    return HotPlug(source, conf, Acceptor(), Log(), -1)


@pytest.fixture
def first(tmp_path):
    """Write the first attachment of a container of shop/web. The container's network namespace exists. Return the
    CachedAttachment."""
    return write_result(tmp_path, "c-1")


def write_result(directory, container, pod="web", uid="uid-1", netns=None, **more):
    """Write the file that libcni writes for an attachment. Return the CachedAttachment."""
    args = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod], ["K8S_POD_UID", uid]]
    document = {"containerId": container, "ifName": "eth0", "netns": str(directory) if netns is None else netns,
                "cniArgs": args, **more}
    (directory / "results").mkdir(exist_ok=True)
    (directory / "results" / f"a-{container}-eth0").write_text(json.dumps(document))
    return CachedAttachment(Section(document))


def logged(hot, event):
    return [values for name, values in hot.log.lines if name == event]


# -- when a pod is compared ----------------------------------------------------------------------------------------


def test_a_change_is_compared_soon_and_once(hot):
    before = monotonic()
    hot.note(WEB, pod("c"))
    assert before < hot.due[WEB] <= monotonic() + module.SETTLE_S and hot.wake.is_set()
    hot.due.clear()
    hot.handled[WEB] = state_of(pod("c"))
    hot.note(WEB, pod("c"))
    assert hot.due == {}
    hot.note(WEB, pod("c", uid="uid-2"))
    assert [*hot.due] == [WEB]


def test_an_ended_add_delays_no_comparison_of_another_pod(hot):
    """Otherwise, with an ADD every 0.1 s, no pod would ever be compared, and a failed change would be tried again after
    each ADD."""
    hot.due[WEB] = 5.0
    hot.source.pods.found[DB] = pod()
    hot.compare_all()
    assert hot.due[WEB] == 5.0 and hot.due[DB] > monotonic()
    hot.due.clear()
    hot.handled[WEB] = hot.handled[DB] = state_of(pod())
    hot.compare_all()
    assert hot.due == {}


def test_nothing_is_kept_of_a_pod_that_no_longer_exists(hot):
    hot.due[WEB], hot.delays[WEB], hot.handled[WEB] = 5.0, 1.0, state_of(pod())
    hot.note(WEB, None)
    assert (hot.due, hot.delays, hot.handled) == ({}, {}, {})


def test_only_pods_that_are_due_and_exist_are_compared(hot, monkeypatch):
    compared = []
    monkeypatch.setattr(hot, "_compare", lambda key, pod: compared.append(key))
    hot.due |= {WEB: 0.0, DB: 0.0, ("shop", "later"): monotonic() + 60}
    hot._compare_due()
    assert compared == [WEB] and [*hot.due] == [("shop", "later")]
    hot.due[WEB] = 0.0
    hot.stopping.set()
    hot._compare_due()
    assert compared == [WEB]


def test_files_that_cannot_be_read_are_logged_and_change_no_pod(hot, monkeypatch):
    def refuse():
        raise CniError(errors.IO_FAILURE, "read /x: Input/output error")

    monkeypatch.setattr(hot.containers, "read", refuse)
    monkeypatch.setattr(hot, "_compare", None)
    hot.due[WEB] = 0.0
    hot._compare_due()
    assert logged(hot, "networks_unchanged") == [{"why": "read /x: Input/output error"}] and hot.due == {}


# -- the comparison ------------------------------------------------------------------------------------------------


def test_a_pod_without_a_container_is_compared_again_after_its_add(hot):
    hot._compare(WEB, pod())
    assert hot.handled == {}


@pytest.mark.parametrize("failing", ["c-1", "c-2"])
def test_a_pod_is_done_when_all_its_containers_are(hot, tmp_path, monkeypatch, failing):
    """While a runtime replaces the sandbox, the pod has two sandboxes."""
    for container in ("c-1", "c-2"):
        write_result(tmp_path, container)
    hot.containers.read()
    monkeypatch.setattr(hot, "_first", lambda container, *_: SimpleNamespace(container_id=container))
    monkeypatch.setattr(hot, "_update", lambda key, pod, first: first.container_id != failing)
    hot._compare(WEB, pod())
    assert hot.handled == {}
    hot.delays[WEB] = 4.0
    monkeypatch.setattr(hot, "_update", lambda *_: True)
    hot._compare(WEB, pod())
    assert (hot.handled, hot.delays) == ({WEB: state_of(pod())}, {})


def test_a_list_that_cannot_be_read_is_a_failure_of_its_container(hot, first, monkeypatch):
    def refuse(*_):
        raise CniError(errors.IO_FAILURE, "/x is damaged")

    hot.containers.read()
    monkeypatch.setattr(hot, "_first", refuse)
    hot._compare(WEB, pod())
    assert logged(hot, "networks_unchanged") == [
        {"pod": "shop/web", "container": "c-1", "error": "/x is damaged", "retry_s": 1.0}]
    assert hot.handled == {} and WEB in hot.due


def test_the_pauses_after_failures_grow_up_to_a_minute(hot):
    before = monotonic()
    assert not any(hot._failed(WEB, "c-1", "no") for _ in range(8))
    assert [values["retry_s"] for values in logged(hot, "networks_unchanged")] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert before + 60 <= hot.due[WEB] <= monotonic() + 60


@pytest.fixture
def listed(tmp_path, first):
    """Write the pod's list of networks, which has only the first network of the configuration."""
    state, document = State(str(tmp_path), "c-1"), {"name": "a", "cniVersion": "1.1.0", "type": "bridge"}
    state.write([Network(define(document, "a", "1.1.0", "here"), "eth0")])
    return state


@pytest.mark.parametrize("annotation, differs", [("", False), ("b", True)])
def test_the_pods_list_is_compared_with_its_annotation(hot, first, listed, annotation, differs):
    hot.source.pods.found[WEB] = pod(annotation)
    hot.due[WEB] = 0.0
    hot._compare_due()
    assert [env["CNI_IFNAME"] for _, env, _ in hot.acceptor.requests] == ["eth0"] * differs
    assert hot.handled == {WEB: state_of(pod(annotation))}


def test_a_pod_whose_first_attachment_was_deleted_is_not_changed(hot, tmp_path, first, listed):
    """A DEL removes the results one by one. At this moment, only the result of net1 remains."""
    network = listed.listed("eth0")[0][1]
    listed.write([network, Network(network.definition, "net1")])
    result = tmp_path / "results" / "a-c-1-eth0"
    result.with_name("a-c-1-net1").write_text(result.read_text().replace("eth0", "net1"))
    result.unlink()
    hot.due[WEB] = 0.0
    hot._compare_due()
    assert hot.acceptor.requests == [] and logged(hot, "networks_unchanged") == []


def test_a_missing_list_is_a_failure(hot, first):
    hot.due[WEB] = 0.0
    hot._compare_due()
    (values,) = logged(hot, "networks_unchanged")
    assert values["error"].startswith(f"{hot.containers.directory.removesuffix('/results')}/c-1 is missing")
    assert hot.acceptor.requests == [] and hot.handled == {}


# -- the thread ----------------------------------------------------------------------------------------------------


def test_the_thread_compares_each_pod_at_its_start_and_then_at_its_time(hot, monkeypatch):
    compared, faults = [], [ZeroDivisionError()]

    def compare(key, pod):
        compared.append(key)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(hot, "_compare", compare)
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.01)
    hot.home = netns.open_own()
    hot.start()
    thread = hot.thread
    assert eventually(lambda: compared == [WEB]) and eventually(lambda: logged(hot, "server_fault"))
    hot.start()
    assert hot.thread is thread
    hot.source.pods.found[DB] = pod()
    hot.note(DB, pod())
    assert eventually(lambda: compared == [WEB, DB])
    hot.stop()
    assert not thread.is_alive()
    hot.start()
    assert hot.thread is thread
    os.close(hot.home)


# -- the request ---------------------------------------------------------------------------------------------------


def test_an_update_has_the_attachment_and_the_annotation_of_the_networks_alone(hot, first):
    assert hot._update(WEB, pod("c"), first)
    ((plugin, env, conf),) = hot.acceptor.requests
    assert plugin == "multus" and env == {
        "CNI_COMMAND": UPDATE, "CNI_CONTAINERID": "c-1", "CNI_NETNS": first.netns, "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=uid-1"}
    assert conf == {**hot.conf, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {NETWORKS: "c"}}}
    assert logged(hot, "networks_changed") == [{"pod": "shop/web", "container": "c-1"}]


@pytest.mark.parametrize("reply, error", [
    (answer(1, b'{"code": 7, "msg": "no network", "details": "the API has none"}', b"warning"),
     "no network: the API has none"),
    (answer(1, b'{"code": 7, "msg": "no network"}'), "no network"),
    (answer(protocol.DECLINED), "the server declined the request"),
    (answer(1, b"[]"), "the server declined the request"),
    (b"", "the request has ended without an answer")])
def test_a_failed_update_is_logged_with_its_error(hot, first, reply, error):
    hot.acceptor.reply = reply
    assert not hot._update(WEB, pod("c"), first)
    assert [values["error"] for values in logged(hot, "networks_unchanged")] == [error]
    assert not logged(hot, "networks_changed") and WEB in hot.due


def test_an_update_that_the_queue_does_not_take_is_tried_again(hot, first, monkeypatch):
    def refuse(*_):
        raise OSError(16, "1024 requests wait already")

    monkeypatch.setattr(hot.acceptor, "submit", refuse)
    assert not hot._update(WEB, pod("c"), first)
    assert "1024 requests wait already" in logged(hot, "networks_unchanged")[0]["error"]


@pytest.mark.parametrize("what, error", [("del", "another request of the pod waits"), ("stop", "no answer in time"),
                                         ("limit", "no answer in time")])
def test_a_del_a_stop_and_the_limit_end_the_wait_for_an_answer(hot, monkeypatch, what, error):
    monkeypatch.setattr(module, "POLL_MS", 1)
    if what == "del":
        hot.acceptor.awaited.add(("c-1", "eth0"))
    elif what == "stop":
        hot.stopping.set()
    else:
        monkeypatch.setattr(module, "LIMIT_S", 0.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert hot._answer(ours, ("c-1", "eth0")) == error


# -- the containers of a pod ---------------------------------------------------------------------------------------


def test_containers_are_found_by_pod_and_only_while_their_namespace_exists(tmp_path):
    found = Containers(str(tmp_path))
    write_result(tmp_path, "c-1", cniArgs=[["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"], ["odd"]])
    write_result(tmp_path, "c-2", uid="uid-2")
    write_result(tmp_path, "c-3", netns="/nowhere/netns")
    write_result(tmp_path, "c-4", netns="")
    write_result(tmp_path, "c-5", pod="db")
    found.read()
    assert sorted(found.of(WEB, pod())) == ["c-1"] and sorted(found.of(DB, pod())) == ["c-5"]
    assert found.of(("shop", "none"), pod()) == {}


def test_containers_of_files_that_came_or_went_are_known_at_the_next_read(tmp_path, first):
    found = Containers(str(tmp_path))
    found.read()
    write_result(tmp_path, "c-2")
    (tmp_path / "results" / "a-c-1-eth0").unlink()
    assert [*found.of(WEB, pod())] == ["c-1"]
    found.read()
    assert [*found.of(WEB, pod())] == ["c-2"]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', '{"cniArgs": [{"a": 1, "b": 2}, 7, "xy"]}',
                                     '{"cniArgs": 7}', '{"netns": 7}'])
def test_a_file_that_is_not_libcnis_hides_no_other(tmp_path, first, content):
    """Once, a file with a JSON list caused a server_fault at each comparison, and the server no longer changed any
    pod's networks."""
    found = Containers(str(tmp_path))
    (tmp_path / "results" / "a-c-0-eth0").write_text(content)
    found.read()
    assert [*found.of(WEB, pod())] == ["c-1"]


def test_a_file_that_an_add_is_writing_is_read_again(tmp_path):
    """Once, the server regarded a file that it had read while empty as a file without a pod, and never read it
    again."""
    write_result(tmp_path, "c-1")
    path, found = tmp_path / "results" / "a-c-1-eth0", Containers(str(tmp_path))
    content = path.read_text()
    for part in ("", content[:40]):
        path.write_text(part)
        found.read()
        assert found.of(WEB, pod()) == {}
    path.write_text(content)
    found.read()
    assert [*found.of(WEB, pod())] == ["c-1"]
