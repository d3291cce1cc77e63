"""A JSON file as the registry of nodes."""

import json
import os
import threading
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from lab.loggers import logger_to

from fastcni.agent.contract import ConfigurationError, Node, SubnetLost
from fastcni.agent.registries import open_registry, static
from fastcni.clients.errors import Away
from fastcni.testing.witnesses import eventually

ONE = {"name": "one", "subnets": ["10.244.1.0/24"], "public": ["192.0.2.1"]}
TWO = {"name": "two", "subnets": ["10.244.2.0/24"], "public": ["192.0.2.2"]}
ME = Node("", {}, {4: ip_address("192.0.2.1")}, "vxlan", {})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nodes.json"

    def write(*nodes):
        new = tmp_path / "new"
        new.write_text(json.dumps({"network": {"Network": "10.244.0.0/16"}, "nodes": nodes}))
        os.replace(new, path)
        return str(path)

    return write


@pytest.fixture
def registry(file):
    log = logger_to()
    return open_registry("static", {"path": file(ONE, TWO), "name": "one"}, log, threading.Event().wait)


def test_a_node_has_the_subnet_in_the_file(registry):
    found = registry.join(registry.conf(), ME)
    assert (found.name, found.subnets, found.public) == ("one", {4: ip_network("10.244.1.0/24")}, ME.public)
    assert registry.keep(found) > 0
    assert found in registry.nodes()           # the agent finds its own record by this comparison


def test_a_change_of_the_file_is_noticed(registry, file):
    seen, stop = [], threading.Event()
    thread = threading.Thread(target=registry.watch, args=(lambda nodes: seen.append([it.name for it in nodes]),
                                                           stop.is_set))
    thread.start()
    assert eventually(lambda: seen == [["one", "two"]])
    file(ONE)
    assert eventually(lambda: seen[-1] == ["one"])
    stop.set()
    thread.join()


def test_another_subnet_in_the_file_is_a_lost_one(registry, file):
    me = registry.join(registry.conf(), ME)
    file({**ONE, "subnets": ["10.244.9.0/24"]}, TWO)
    with pytest.raises(SubnetLost, match="other subnets"):
        registry.keep(me)


@pytest.mark.parametrize(("content", "kind", "words"), [
    ("{", ConfigurationError, "nodes.json"), ("[" * 100000, ConfigurationError, "nodes.json"),
    ("[]", ConfigurationError, "not a JSON object"),
    ('{"network": {"Network": "10.244.0.0/16"}}', ConfigurationError, 'no node "one"'),
    ('{"network": {"Network": "10.244.0.0/16"}, "nodes": [{"name": "one"}]}', ConfigurationError,
     "nodes: number 1 has no key 'subnets'"),
    ('{"network": {"Network": "10.244.0.0/16"}, "nodes": {}}', ConfigurationError, "nodes: not a list")])
def test_an_error_names_the_file(registry, tmp_path, content, kind, words):
    (tmp_path / "nodes.json").write_text(content)
    with pytest.raises(kind, match=words):
        registry.join(registry.conf(), ME) if content[0] == "{" and "network" in content else registry.conf()


def test_without_the_file_the_registry_is_away(registry, tmp_path):
    (tmp_path / "nodes.json").unlink()
    with pytest.raises(Away, match="No such file"):
        registry.conf()


def test_only_the_nodes_that_have_changed_in_the_file_are_parsed(file, registry, monkeypatch):
    """Once, the agent parsed all records, and a change of one node among 5,000 took 44 ms of processor time. It takes 8
    ms now."""
    first, parsed = registry.nodes(), []
    original = static.read_node
    monkeypatch.setattr(static, "read_node", lambda document, backend: (
        parsed.append(document["name"]), original(document, backend))[1])
    file(ONE, {**TWO, "public": ["192.0.2.3"]})
    one, two = registry.nodes()
    assert parsed == ["two"]
    assert one is first[0] and two.public == {4: ip_address("192.0.2.3")}
    assert registry.nodes() == [one, two]


def test_another_backend_in_the_file_counts_for_every_node(file, registry):
    before = registry.nodes()
    path = Path(file(ONE, TWO))
    path.write_text(json.dumps({"network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
                                "nodes": [ONE, TWO]}))
    assert [node.backend for node in before + registry.nodes()] == ["vxlan", "vxlan", "host-gw", "host-gw"]


@pytest.mark.parametrize("name", [["one"], {"a": 1}])
def test_a_node_whose_name_is_no_text_is_an_error(file, registry, name):
    file(ONE, {**TWO, "name": name})
    with pytest.raises(ConfigurationError, match="nodes: number 2: a name is not a text"):
        registry.nodes()
