"""Records of pods on disk that are damaged: the agent starts, names them, and closes pods whose addresses they name.
Needs root."""

import json
import os
from types import SimpleNamespace

import pytest
from agent.policy.pods import ADDRESSES, TCP, UDP
from agent.policy.test_service import WEB_ONLY, allowed, node, running  # noqa: F401

from fastcni.node.checks import policy as checks_policy
from fastcni.runtime import parse
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")


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
    """The pod was open from the next start of the agent on, and nothing was said."""
    running.write(WEB_ONLY)
    running.add("b", app="db")
    running.stop()
    (file,) = (running.folder.parent / "pods").glob("*.json")
    file.write_text(file.read_text()[:50])
    running.start()
    assert "pod_record_damaged" in running.events()
    network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())

    def found():
        return list(checks_policy.agent(SimpleNamespace(networks=[network])))
    (finding,) = found()
    assert f"{file}.damaged" in finding.what and "fastcni restore" in finding.do
    running.call(mend, "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "db"}},
                 **({"cni.dev/valid-attachments": []} if mend == "GC" else {}))
    assert found() == [] and (mend != "RESTORE" or allowed(node))
    running.stop()
    running.start()
    assert found() == [] and not list(file.parent.glob("*.damaged"))


def truncated_behind(key):
    return lambda text: text[:text.index("]", text.index(key)) + 1]


@pytest.mark.parametrize("damage", [
    lambda text: text.replace('"labels": {"app": "db"}', '"labels": {"app": '), truncated_behind('"addresses"'),
    lambda text: text.replace('"sequence": 1', '"sequence": "')])
def test_a_pod_whose_damaged_record_names_its_addresses_is_closed(running, node, damage):        # noqa: F811
    """The pod was open until `fastcni restore`."""
    running.add("b", app="db")
    running.stop()
    (file,) = (running.folder.parent / "pods").glob("*.json")
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    asked = {(source, address, protocol, 80) for protocol in (TCP, UDP) for number in (0, 1)
             for source, address in (("a", ADDRESSES["b"][number]), ("b", ADDRESSES["c"][number]))}
    for _ in range(2):                                      # also after the next restart
        running.start()
        assert eventually(lambda: running.it.ready)
        assert node.reached(asked, set()) == set()
        network = parse.parse_list(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [
            {"type": "bridge"}, {"type": "policy", "agentSocketPath": running.settings.socket}]}).encode())
        (finding,) = checks_policy.agent(SimpleNamespace(networks=[network]))
        assert "closed in both directions" in finding.why
        running.stop()
    running.start()
    running.call("RESTORE", "b", "K8S_POD_NAME=b", runtimeConfig={"labels": {"app": "db"}})
    assert eventually(lambda: node.reached(asked, asked) == asked)
