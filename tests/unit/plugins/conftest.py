"""Fixtures for tests of plugins: Open vSwitch, firewalld, a neighbour of the node, several networks."""

import pytest
from lab.firewalld import Firewalld
from lab.networks import NETWORKS, define, multus, network
from lab.openvswitch import Switch


@pytest.fixture
def firewalld(tmp_path, host_netns):
    """Yield a running firewalld in the host's namespace."""
    with Firewalld(tmp_path) as process:
        yield process


@pytest.fixture
def neighbor(node, pod_netns):
    """Return a network namespace that is a neighbour of the host on the link up0."""
    name = pod_netns()
    node.uplink(name)
    return name


@pytest.fixture
def switch(host_netns):
    """Yield a running Open vSwitch in the host's namespace, with the bridge br0."""
    with Switch("br0") as switch:
        yield switch


@pytest.fixture
def ovs_conf(node, switch, tmp_path):
    """Return a function that makes configurations of ovs. Without subnets, a configuration has no IPAM."""
    def make(*subnets, **keys):
        more = {} if subnets else {"ipam": None}
        return node.conf(*subnets, **{"type": "ovs", "bridge": "br0", "socket_file": switch.address,
                                      "dataDir": str(tmp_path / "cache"), **more, **keys})
    return make


@pytest.fixture
def kept(tmp_path):
    """Return a function that lists the files that the ovs plugin keeps."""
    return lambda: [path.name for path in (tmp_path / "cache").glob("*")]


@pytest.fixture
def abc(node):
    return [network(node, letter) for letter in "abc"]


@pytest.fixture
def selecting(node, abc):
    """Return a function selecting(annotation) that returns a configuration of multus. Its pods have the network a, and
    the annotation selects from the files b and c."""
    define(node, *abc[1:])
    return lambda text="", **keys: multus(node, abc[0], annotations={NETWORKS: text} if text else {}, **keys)
