"""The records of pods on disk are damaged. The agent starts, reports the files, and closes the pods whose addresses it
can still read. Needs root."""

import json
from types import SimpleNamespace

import pytest
from unit.agent.policy.pods import ADDRESSES, TCP, UDP
from unit.agent.policy.test_service import WEB_ONLY, allowed, node, running  # noqa: F401

from fastcni.node.checks import policy as checks_policy
from fastcni.runtime import parse
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually


def test_a_damaged_file_of_a_pod_is_no_obstacle(running, tmp_path):        # noqa: F811
    running.add("a")
    running.stop()
    (tmp_path / "pods" / "net@x@eth0.json").write_text('{"id": ["net"')
    (tmp_path / "pods" / "net@y@eth0.json").write_text(
        '{"id": ["net", "y", "eth0"], "pod": "default/y", "labels": [], "addresses": []}')
    running.start()
    assert len(running.it.compiler.attachments) == 1


@pytest.mark.parametrize("mend", ["RESTORE", "DEL", "GC"])
def test_a_pod_whose_record_was_damaged_is_named_until_its_request_comes_again(running, node, mend):        # noqa: F811
    """Once, the pod was open from the agent's next start on, and no message said so."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    running.stop()
    (file,) = (running.directory.parent / "pods").glob("*.json")
    file.write_text(file.read_text()[:50])
    running.start()
    assert "pod_record_damaged" in running.events()
    (finding,) = findings(running)
    assert f"{file}.damaged" in finding.what and "fastcni restore" in finding.do
    running.call(mend, "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "db"}},
                 **({"cni.dev/valid-attachments": []} if mend == "GC" else {}))
    assert findings(running) == [] and (mend != "RESTORE" or allowed(node))
    running.stop()
    running.start()
    assert findings(running) == [] and not list(file.parent.glob("*.damaged"))


def truncated_behind(key):
    return lambda text: text[:text.index("]", text.index(key)) + 1]


@pytest.mark.parametrize("damage", [
    lambda text: text.replace('"labels": {"app": "db"}', '"labels": {"app": '), truncated_behind('"addresses"'),
    lambda text: text.replace('"sequence": 1', '"sequence": "')])
def test_a_pod_whose_damaged_record_names_its_addresses_is_closed(running, node, damage):        # noqa: F811
    """Once, the pod was open until `fastcni restore`."""
    running.add("b", app="db")
    running.stop()
    (file,) = (running.directory.parent / "pods").glob("*.json")
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    asked = assert_closed(running, node)
    running.start()
    running.call("RESTORE", "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "db"}})
    assert eventually(lambda: node.reached(asked, asked) == asked)


@pytest.mark.parametrize("damage", ["", '{"id": ["net"', None], ids=["empty", "no address", "no file"])
@pytest.mark.parametrize("end", ["RESTORE", "DEL", "another pod's RESTORE"])
def test_a_pod_whose_record_names_nothing_is_closed_at_its_port(running, node, damage, end):        # noqa: F811
    """Once, the pod was open from the agent's next start on."""
    running.add("a", app="web")
    running.add("b", app="db")
    running.stop()
    (file,) = (running.directory.parent / "pods").glob("*c-b*.json")
    if damage is None:
        file.unlink()
    else:
        file.write_text(damage)
    asked = assert_closed(running, node)
    running.start()
    if end == "DEL":
        running.delete("b") if damage is not None else delete_without_record(running)
        assert eventually(lambda: [it.port.name for it in list(running.it.compiler.attachments.values())] == ["port-a"])
    elif end == "RESTORE":
        running.call("RESTORE", "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "db"}})
        assert eventually(lambda: node.reached(asked, asked) == asked)
    else:
        running.call("RESTORE", "a", "K8S_POD_NAME=a", runtimeConfig={"labels": {"app": "web"}})
        assert node.reached(asked, set()) == set()
    assert len(findings(running)) == (end == "another pod's RESTORE")


def assert_closed(running, node):        # noqa: F811
    """Start and stop the agent twice, and check each time that pod b is closed. Return the connections from and to pod
    b."""
    asked = {(source, address, protocol, 80) for protocol in (TCP, UDP) for number in (0, 1)
             for source, address in (("a", ADDRESSES["b"][number]), ("b", ADDRESSES["c"][number]))}
    for _ in range(2):
        running.start()
        assert eventually(lambda: running.it.ready)
        assert node.reached(asked, set()) == set()
        (finding,) = findings(running)
        assert "closed in both directions" in finding.why
        running.stop()
    return asked


def delete_without_record(running):        # noqa: F811
    running.call("DEL", "b")
    run("ip", "link", "del", "port-b")


def findings(running):        # noqa: F811
    """Return the findings of `fastcni doctor` on the agent."""
    network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())
    return list(checks_policy.agent(SimpleNamespace(networks=[network], agent_folder="")))


def test_two_pods_without_records_are_closed_at_their_ports(running, node):        # noqa: F811
    for name in "abc":
        running.add(name, app=name)
    running.stop()
    for name in "bc":
        (running.directory.parent / "pods" / f"net@c-{name}@eth0.json").write_text("")
    running.start()
    assert eventually(lambda: running.it.ready)
    into = {("a", ADDRESSES[name][0], TCP, 80) for name in "bc"}
    assert node.reached(into, set()) == set()
    running.call("RESTORE", "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "b"}})
    opened = {("a", ADDRESSES["b"][0], TCP, 80)}
    assert eventually(lambda: node.reached(into, opened) == opened)


def test_a_port_without_a_record_whose_link_is_gone_is_not_held(running):        # noqa: F811
    running.add("b", app="db")
    running.stop()
    (running.directory.parent / "pods" / "net@c-b@eth0.json").unlink()
    run("ip", "link", "del", "port-b")
    running.start()
    assert not running.it.compiler.attachments and findings(running) == []


@pytest.mark.parametrize("former", [False, True], ids=["with a digest", "of an earlier version"])
def test_a_record_with_a_changed_label_is_damaged(running, node, former):        # noqa: F811
    """Once, a record with one changed byte was accepted as JSON, and the pod was open. A record of an earlier version
    has no digest; the agent reads it without a check."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    running.stop()
    (file,) = (running.directory.parent / "pods").glob("*.json")
    document = json.loads(file.read_text())
    if former:
        del document["digest"]
        file.write_text(json.dumps(document))
        running.start()
        assert allowed(node) and findings(running) == []
        return
    file.write_text(file.read_text().replace('"app": "db"', '"app": "dc"'))
    assert_closed(running, node)
    running.start()
