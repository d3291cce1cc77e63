"""DEL with a bad value of each key of each plugin. DEL succeeds, and removes what ADD has made.

Once, DEL of bridge and ptp rejected bad values. After a typing error in the configuration, no pod could end.
"""

import copy

import pytest
from faults.cases import DUAL, PLUGINS
from unit.plugins.every_plugin import CASES, conf, pods  # noqa: F401 - the fixtures

from fastcni.plugins import CHAINED
from fastcni.spec.config import Section

BAD = (7, "\0 / .. no such thing", True, [7, None, {}], {"x": 1}, 1.5)
ENVELOPE = {"name", "cniVersion"}                               # a request needs these keys
# These keys lead to the record of the pod's address or port. With another value, DEL cannot find the record
RECORDS = {"ipam", "ipam.type", "ipam.dataDir", "dataDir", "cniDir", "delegates", "delegate.type", "plugins",
           "ipam.daemonSocketPath", "ipam.network_name", "ipam.node_name", "ipam.kubernetes",
           "ipam.kubernetes.kubeconfig", "ipam.kubernetes.k8s_api_root", "ipam.store", "ipam.store.type",
           "ipam.store.path", "configuration_path", "socket_file"}


def keys_read(node, conf, pod, monkeypatch):  # noqa: F811
    """Return the paths of all keys that the plugin and its IPAM plugin read in ADD and DEL."""
    found, raw = set(), Section.raw
    with monkeypatch.context() as patch:
        patch.setattr(Section, "raw", lambda self, key, default=None: (
            found.add(self.path(key)), raw(self, key, default))[1])
        node.call("ADD", conf, pod)
        node.call("DEL", conf, pod)
    return sorted(path for path in found if "[" not in path)


def with_value(conf, path, value):  # noqa: F811
    """Return a copy of the configuration with another value at a path. Return None if the path leads through a value
    that is no section."""
    changed = copy.deepcopy(conf)
    *sections, key = path.split(".")
    section = changed
    for name in sections:
        if not isinstance(section.setdefault(name, {}), dict):
            return None
        section = section[name]
    section[key] = value
    return changed


def asks_ipam(name):
    subnets, keys, *_ = PLUGINS[name]
    return subnets and keys.get("ipam", True) and keys.get("type") not in {*CHAINED, "host-local", "flannel"}


def variants(conf, paths):  # noqa: F811
    """Yield (path, value, configuration) for each bad value of each key."""
    for path in paths:
        for value in BAD:
            changed = with_value(conf, path, value)
            if changed:
                yield path, value, changed


@pytest.mark.parametrize("conf", CASES, indirect=True)
def test_del_fails_for_no_bad_value(node, pods, conf, monkeypatch):  # noqa: F811
    """The pod's namespace does not exist. DEL must still read each key, for each backend."""
    pod = pods[0]
    for path, value, changed in variants(conf, keys_read(node, conf, pod, monkeypatch)):
        if path in ENVELOPE or path in RECORDS:
            continue
        reply = node.call("DEL", changed, "/run/netns/gone", cid="never-added", plugin=conf.get("type"))
        assert reply.status == 0, (path, value, reply.stdout)


@pytest.mark.parametrize("conf", CASES, indirect=True)
def test_del_with_a_bad_value_removes_what_add_has_made(node, pods, conf, monkeypatch):  # noqa: F811
    pod = pods[0]
    chained = conf.get("type") in CHAINED
    behind = node.conf(*DUAL, isDefaultGateway=True)

    def connect():
        if chained:
            node.results.pop(pod, None)
            node.behind(behind, pod)

    def disconnect():
        if chained:
            prev = node.results.pop(pod)
            node.delete({**behind, "prevResult": prev}, pod)

    paths = keys_read(node, conf, pod, monkeypatch)
    if chained:
        disconnect()
    connect()
    node.add(conf, pod)
    node.delete(conf, pod)
    disconnect()
    before, tried = node.left(pod), 0
    for number, path in enumerate(paths):
        value = BAD[number % len(BAD)]
        changed = with_value(conf, path, value)
        if changed is None or path in ENVELOPE:
            continue
        connect()
        node.add(conf, pod)
        reply = node.call("DEL", changed, pod, plugin=conf.get("type"))
        if path in RECORDS:  # DEL rejects the value, or the value names another plugin or directory that exists
            node.delete(conf, pod)
        else:
            assert reply.status == 0, (path, value, reply.stdout)
        disconnect()
        assert node.left(pod) == before, (path, value, reply.stderr)
        tried += 1
    assert tried, paths


@pytest.mark.parametrize("ipam", [{"dataDir": 7}, {"type": "nobody-has-this"}], ids=["dataDir", "type"])
@pytest.mark.parametrize("conf", [case for case in CASES if asks_ipam(*case.values)], indirect=True)
def test_del_that_ipam_refuses_deletes_nothing(node, pods, conf, ipam):  # noqa: F811
    """Once, DEL deleted the link before it called IPAM. The pod lost its network, and its address stayed allocated."""
    node.add(conf, pods[0])
    before = node.left(pods[0])
    reply = node.call("DEL", {**conf, "ipam": {**conf["ipam"], **ipam}}, pods[0], plugin=conf.get("type"))
    assert reply.status == 1, reply.stdout
    assert node.left(pods[0]) == before, reply.stdout
    node.delete(conf, pods[0])
