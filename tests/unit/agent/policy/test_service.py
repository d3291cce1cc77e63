"""The plugin `policy` and the agent's service for policies, on the real kernel. Needs root."""

import json
import os
import select
import threading
from time import monotonic
from types import SimpleNamespace

import pytest
from lab.loggers import logger_to
from unit.agent.policy.pods import ADDRESSES, TCP, Node, mac_of_pod, port_of

from fastcni.agent.contract import ConfigurationError
from fastcni.agent.policy import answers, service
from fastcni.agent.policy.objects import Pod
from fastcni.agent.policy.ruleset import BRIDGED, see_bridged_traffic
from fastcni.agent.policy.service import Policies, Settings
from fastcni.clients.kubernetes import NoSuchKind
from fastcni.daemon.stamp import stamp
from fastcni.kernel import conntrack, sysctl
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.node import pod_policies
from fastcni.node.checks import policy as checks_policy
from fastcni.plugins import policy as plugin
from fastcni.runtime import parse
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

DB, WEB = ({"podSelector": {"matchLabels": {"app": name}}} for name in ("db", "web"))
WEB_ONLY = {"kind": "NetworkPolicy", "metadata": {"name": "web-only"}, "spec": {**DB, "ingress": [{"from": [WEB]}]}}


class Running:
    """The agent's Policies in a thread. addresses: the addresses of each pod in prevResult."""

    addresses = ADDRESSES

    def __init__(self, tmp_path, **settings):
        self.directory, self.log = tmp_path / "policies", []
        self.directory.mkdir(exist_ok=True)
        self.settings = Settings(**{"directory": str(self.directory), "state": str(tmp_path / "pods"),
                                    "socket": str(tmp_path / "policy.sock"), **settings})
        self.start()

    def start(self):
        self.it = Policies(self.settings, logger_to(self._note))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self):
        self.ended.set()
        self.thread.join()
        self.it.close()

    def _run(self):
        while not self.ended.is_set():
            select.select([self.it], [], [], 0.02)
            self.it.attend()

    def _note(self, event):
        self.log.append(event)

    def events(self):
        return [each["event"] for each in self.log]

    def write(self, *documents):
        """Write the policies' file. If an agent runs, wait until it has read the file."""
        (self.directory / "new").write_text(json.dumps({"kind": "List", "items": documents}))
        (self.directory / "new").rename(file := self.directory / "all.json")
        assert self.ended.is_set() or eventually(
            lambda: self.it.source._stamps.get(file.name) == stamp(file) and not self.it.source.busy)

    def request(self, command, name, cni_args, **keys):
        port = port_of(name) if command == "ADD" else f"port-{name}"
        previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "br0"}, {"name": port},
                                                          {"name": "eth0", "sandbox": "/pod", "mac": mac_of_pod(name)}],
                    "ips": [{"address": f"{text}/24", "interface": 2} for text in self.addresses[name]]}
        conf = {"cniVersion": "1.1.0", "name": "net", "type": "policy", "prevResult": previous,
                "agentSocketPath": self.settings.socket, **keys}
        return Request(Mode(), plugin="policy", command=command, conf=conf, version="1.1.0", name="net",
                       container_id=f"c-{name}", ifname="eth0", args=cni_args)

    def call(self, command, name="a", cni_args="", **keys):
        """Run a command of the plugin `policy`."""
        req = self.request(command, name, cni_args, **keys)
        conf = plugin.read(req)
        if command == "ADD":
            with Undo() as undo:
                return plugin.add(req, conf, undo)
        {"DEL": plugin.delete, "CHECK": plugin.check, "GC": plugin.gc, "STATUS": plugin.status,
         "RESTORE": plugin.restore}[command](req, conf)
        return req

    def add(self, name, **labels):
        self.call("ADD", name, f"K8S_POD_NAME={name}", runtimeConfig={"labels": labels})

    def delete(self, name):
        """Run DEL of the plugin, and delete the pod's link as the main plugin does."""
        self.call("DEL", name)
        run("ip", "link", "del", f"port-{name}")
        assert eventually(lambda: f"c-{name}" not in [id[1] for id in list(self.it.compiler.attachments)])


@pytest.fixture
def node(host_netns, pod_netns):
    found = Node(pod_netns)
    yield found
    found.close()


@pytest.fixture
def running(host_netns, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = Running(tmp_path)
    yield it
    it.stop()


def allowed(node, *sources):
    """Return whether of the pods a, c and d exactly `sources` can connect to pod b."""
    asked = {source: (source, ADDRESSES["b"][0], TCP, 80) for source in "acd"}
    expected = {asked[source] for source in sources}
    return node.reached(set(asked.values()), expected) == expected


def test_a_pod_is_protected_when_its_add_answers(running, node):
    running.write(WEB_ONLY)
    running.add("a", app="web")
    running.add("b", app="db")
    assert allowed(node, "a")
    running.add("c", app="web")
    assert allowed(node, "a", "c")
    for name in "ccb":
        running.call("DEL", name)
        assert allowed(node, "a", "c")
    for name in "cb":
        running.delete(name)
    assert running.it.figures()["protected_pods"] == 1


def test_no_add_waits_for_the_search_for_connections(running, monkeypatch):
    """With many flows, the kernel takes long to list conntrack's entries."""
    listing, listed = threading.Event(), threading.Event()

    def list_flows(sock, ends):
        listing.set()
        assert listed.wait(20)
        return []

    monkeypatch.setattr(conntrack, "list_flows", list_flows)
    running.write(WEB_ONLY)
    running.add("b", app="db")
    assert listing.wait(20)
    running.add("a", app="web")
    assert running.it.engine.flows.begun and not running.it.engine.flows.ended
    listed.set()


def test_labels_come_from_the_conventions_and_from_cni_args_too(running, node):
    running.write(WEB_ONLY)
    running.call("ADD", "b", "K8S_POD_NAME=b;LABELS=app:db,tier:back")
    running.call("ADD", "a", "IgnoreUnknown=1;X=y", args={"cni": {"labels": [{"key": "app", "value": "web"}]}})
    pods = running.it.compiler.cluster.pods
    # the agent compiles the policies after its answer
    assert eventually(lambda: {"default/b", "default/c-a"} <= pods.keys())
    assert pods["default/b"].labels == {"app": "db", "tier": "back"}
    assert pods["default/c-a"].labels == {"app": "web"}
    assert allowed(node, "a")


def test_labels_of_a_file_count_before_those_of_the_runtime(running):
    running.write({"kind": "Pod", "metadata": {"name": "a", "labels": {"app": "file"}}})
    assert eventually(lambda: "default/a" in running.it.compiler.said)
    running.add("a", app="runtime")
    assert running.it.compiler.cluster.pods["default/a"].labels == {"app": "file"}


def test_check_gc_and_status(running):
    running.add("a")
    running.call("CHECK", "a", "K8S_POD_NAME=a")
    with pytest.raises(CniError, match="default/b is not protected"):
        running.call("CHECK", "b", "K8S_POD_NAME=b")
    valid = {"cni.dev/valid-attachments": [{"containerID": "c-a", "ifname": "eth0"}]}
    assert running.call("GC", **valid).released == []
    run("ip", "link", "del", "port-a")
    assert [each["what"] for each in running.call("GC").released] == ["policies of c-a eth0"]
    running.call("STATUS")
    running.stop()
    with pytest.raises(CniError, match=r"connection refused|no such file") as caught:
        running.call("STATUS")
    assert caught.value.code == 50
    running.start()


def test_without_the_agent_no_pod_is_added_and_each_is_deleted(running, tmp_path):
    running.add("a")
    running.stop()
    with pytest.raises(CniError, match="no such file") as caught:
        running.add("b")
    assert caught.value.code == 11
    (warning,) = running.call("DEL", "a").warnings
    assert "forgets the pod when another pod gets the address" in warning
    running.start()
    assert len(running.it.compiler.attachments) == 1
    # the DEL did not reach the agent; another pod's ADD repeats the attachment
    running.call("ADD", "a", "K8S_POD_NAME=other")
    assert [each.pod for each in running.it.compiler.attachments.values()] == ["default/other"]
    assert len(list((tmp_path / "pods").iterdir())) == 1


def test_a_restarted_agent_knows_its_pods_and_they_stay_protected_meanwhile(running, node):
    running.write(WEB_ONLY)
    running.add("b", app="db")
    running.add("a", app="web")
    running.stop()
    assert allowed(node, "a")
    running.start()
    assert eventually(lambda: running.it.ready)
    assert allowed(node, "a")


# the latest pod's container ID sorts first or last
@pytest.mark.parametrize("former, latest", [("c", "a"), ("a", "c")])
def test_a_pod_that_was_added_again_has_its_new_labels(running, node, former, latest):
    """The earlier pod of this name had no DEL. Once, its labels counted: a policy for the new labels closed no pod."""
    running.write({"kind": "NetworkPolicy", "metadata": {"name": "closed"}, "spec": DB})
    assert eventually(lambda: running.it.figures()["policies"] == 1)

    def closed():
        return not node.reached({(source, ADDRESSES[latest][0], TCP, 80) for source in "bd"}, set())

    for name, app in ((former, "web"), (latest, "db")):
        running.call("ADD", name, "K8S_POD_NAME=again", runtimeConfig={"labels": {"app": app}})
    assert closed()
    running.stop()
    running.start()
    assert closed()
    running.call("DEL", former)
    assert closed()


def test_an_agent_whose_directory_is_removed_listens_again_and_keeps_its_records(running, tmp_path):
    """A user runs `rm -rf /run/fastcni`. Once, later requests did not reach the agent, and the next agent knew no
    pod."""
    running.stop()
    directory = tmp_path / "agent"
    running = Running(tmp_path, state=str(directory / "pods"), socket=str(directory / "policy.sock"))
    try:
        running.add("a", app="web")
        directory.rename(tmp_path / "removed")  # in one step: the agent already restores while rmtree() still deletes
        assert eventually(lambda: "agent_directory_restored" in running.events())
        running.add("b", app="db")
        running.stop()
        running.start()
        assert {id[1] for id in running.it.compiler.attachments} == {"c-a", "c-b"}
        assert running.events().count("agent_directory_restored") == 1
    finally:
        running.stop()


def test_traffic_between_two_pods_on_a_bridge_is_seen_again_after_a_request(running):
    """`sysctl --system` may set the sysctl to 0, and the kernel sends no notification."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    for name in BRIDGED:
        sysctl.write(name, "0")
        running.call("CHECK", "b", "K8S_POD_NAME=b")
        assert eventually(lambda name=name: sysctl.read(name) == "1")
    assert eventually(lambda: running.events().count("bridge_filter_restored") == len(BRIDGED))


@pytest.mark.parametrize("name", BRIDGED)
def test_traffic_between_two_pods_on_a_bridge_is_seen_again_without_a_request(running, name):
    """Once, the traffic bypassed the policies until the next ADD or DEL."""
    sysctl.write(name, "0")
    assert eventually(lambda: sysctl.read(name) == "1")
    assert eventually(lambda: running.events().count("bridge_filter_restored") == 1)
    assert eventually(lambda: running.it.due <= monotonic() + service.BRIDGED_S)


def test_a_filter_of_bridges_that_cannot_be_switched_on_is_told_once(running, monkeypatch):
    """Once, the agent wrote the table again after each failed check, although this does not help."""
    assert eventually(lambda: running.it.ready)
    looks = []

    def look():
        looks.append(True)
        raise OSError("no such file")

    monkeypatch.setattr(service, "BRIDGED_S", 0.01)
    monkeypatch.setattr(service, "sees_bridged_traffic", look)
    assert eventually(lambda: len(looks) > 3)
    monkeypatch.setattr(service, "sees_bridged_traffic", lambda: True)
    assert eventually(lambda: not running.it.bypassed)
    monkeypatch.setattr(service, "sees_bridged_traffic", look)
    assert eventually(lambda: running.events().count("bridge_filter_off") == 2)
    assert "policies_restored" not in running.events()


def test_explain_names_the_policies_of_an_address(running):
    running.write(WEB_ONLY)
    running.add("a", app="web")
    running.add("b", app="db")
    network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())
    (text,), (other,) = (list(pod_policies.texts_on([network], ADDRESSES[name][0])) for name in "ba")
    assert text == "10.0.0.2 is of pod default/b: ingress only as default/web-only allows; no policy restricts egress"
    assert other == "10.0.0.1 is of pod default/a: no policy restricts ingress; no policy restricts egress"
    assert list(pod_policies.texts_on([network], "192.0.2.7")) == []
    assert list(checks_policy.agent(SimpleNamespace(networks=[network], agent_folder=""))) == []
    running.stop()
    (text,) = pod_policies.texts_on([network], ADDRESSES["b"][0])
    assert "are not known: the agent at" in text
    (finding,) = checks_policy.agent(SimpleNamespace(networks=[network], agent_folder=""))
    assert finding.what.startswith(f"network policies: no agent answers at {running.settings.socket}: ")
    running.start()


def test_a_network_whose_traffic_passes_the_node_by_is_refused(running):
    with pytest.raises(CniError, match="does not pass the node") as caught:
        running.call("ADD", prevResult={"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/pod"}],
                                        "ips": [{"address": "10.0.0.1/24", "interface": 0}]})
    assert caught.value.code == 7


def test_a_file_that_cannot_be_read_is_named_once(running):
    (running.directory / "new").write_text('{"kind": "NetworkPolicy", "metadata": {"name": "x"}}')
    (running.directory / "new").rename(running.directory / "bad.json")
    assert eventually(lambda: "policy_unreadable" in running.events())
    running.write(WEB_ONLY)
    assert eventually(lambda: running.it.figures()["policies"] == 1)
    assert running.events().count("policy_unreadable") == 1


def test_policies_stay_while_their_directory_is_away(running):
    """Once, the missing directory ended the agent. The next agent created an empty directory, and opened all pods."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    assert eventually(lambda: running.it.figures()["policies"] == 1)
    running.directory.rename(running.directory.with_name("away"))
    assert eventually(lambda: "policy_unreadable" in running.events())
    running.call("CHECK", "b", "K8S_POD_NAME=b")
    assert running.it.figures()["policies"] == 1
    running.directory.mkdir()
    running.write(WEB_ONLY, {"kind": "NetworkPolicy", "metadata": {"name": "two"}, "spec": DB})
    assert eventually(lambda: running.it.figures()["policies"] == 2)
    assert running.events().count("policy_unreadable") == 1


def test_an_attempt_to_start_that_fails_leaves_nothing_open(running):
    """Another agent has the socket. Once, each try, one every five seconds, left descriptors and threads that watch the
    API server."""
    def attempt():
        with pytest.raises(ConfigurationError):
            Policies(Settings(api=Api, socket=running.settings.socket, state=running.settings.state), running.it.log)
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    first = attempt()
    assert eventually(lambda: attempt() <= first, 5), (first, attempt())
    assert attempt() <= first


def test_a_bad_request_is_answered(running):
    from fastcni.kit import policies

    protect = {"do": "protect", "id": ["net", "c", "eth0"], "pod": "default/a", "uid": "", "addresses": ["10.0.0.1"]}
    for request in ({"do": "protect", "id": [1]}, {"do": "nonsense"}, {}, [], {**protect, "labels": []},
                    {**protect, "labels": {}, "pod": []}, {"do": "check", "id": [[]]}):
        with pytest.raises(CniError, match="cannot be read"):
            policies.ask(running.settings.socket, request)


# -- pods of the API ---------------------------------------------------------------------------------------------------

class Api:
    """An API of pods. The test sets the objects."""

    def __init__(self):
        self.more = threading.Event()
        self.objects, self.listed = [], threading.Event()

    def get(self, path):
        raise NoSuchKind("404")

    def list_with_revision(self, path, selector="", metadata=False):
        self.listed.wait(20)
        return ([WEB_ONLY | {"metadata": {"name": "web-only", "resourceVersion": "1"}}]
                if path.endswith("networkpolicies") else []), "1"

    def list_each(self, path, tell, stop, selector="", metadata=False):
        documents, revision = self.list_with_revision(path)
        for document in documents:
            tell(document)
        return revision

    def watch(self, path, revision, stop, selector="", metadata=False):
        if path.endswith("pods"):
            while not stop() and not self.more.wait(0.02):
                pass
            for document in self.objects:
                yield "ADDED", document
            self.more.clear()
        while not stop() and not self.more.wait(0.02):
            pass

    def close(self):
        self.listed.set()


def test_an_add_waits_for_the_pods_object_and_takes_its_labels(node, tmp_path, monkeypatch):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    monkeypatch.setattr(answers, "POD_WAIT_S", 0.5)
    monkeypatch.setattr(service, "LOOK_S", 0.05)
    api = Api()
    running = Running(tmp_path, directory="", api=lambda: api, node="here")
    try:
        with pytest.raises(CniError, match="policies are not known yet") as caught:
            running.add("b")
        assert caught.value.code == 11
        api.listed.set()
        assert eventually(lambda: running.it.ready)
        with pytest.raises(CniError, match="has not shown the pod default/b so far"):
            running.add("b", app="db")  # without the pod's object, labels from the runtime do not count
        monkeypatch.setattr(answers, "POD_WAIT_S", 30)
        added = threading.Thread(target=running.call, args=("ADD", "b", "K8S_POD_NAME=b;K8S_POD_UID=new"))
        added.start()
        api.objects = [{"metadata": {"name": "b", "resourceVersion": "2", "uid": "old", "labels": {"app": "other"}}},
                       {"metadata": {"name": "b", "resourceVersion": "3", "uid": "new", "labels": {"app": "db"}},
                        "spec": {"nodeName": "here"}}]
        api.more.set()
        added.join()
        assert allowed(node)
        assert running.it.compiler.cluster.pods["default/b"].labels == {"app": "db"}
        running.it.compiler.delete_pod("default/b")         # the object is deleted before the DEL
        assert running.it.compiler.cluster.pods["default/b"] == Pod(
            "default", "b", {"app": "db"}, running.it.compiler.cluster.pods["default/b"].addresses, "here")
        running.delete("b")
        assert "default/b" not in running.it.compiler.cluster.pods
    finally:
        running.stop()
