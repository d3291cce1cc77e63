"""Fixtures of these tests. They make network namespaces: without root they are skipped, with a reason."""

import os

import pytest
from real_kernel.datapath_pods import COUNTER, Udp, bpffs  # noqa: F401 - a fixture
from real_kernel.firewalld import Firewalld
from real_kernel.networks import NETWORKS, define, multus, network
from real_kernel.node import Inside, Node, run, set_sysctl
from real_kernel.openvswitch import Switch
from real_kernel.traffic import add_external


@pytest.fixture(autouse=True)
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root: makes network namespaces")


@pytest.fixture
def node(tmp_path, host_netns):
    return Node(tmp_path, host_netns)


@pytest.fixture
def pod(pod_netns):
    """The name of one pod's namespace."""
    return pod_netns()


@pytest.fixture
def firewalld(tmp_path, host_netns):
    """A running firewalld in the host's namespace."""
    with Firewalld(tmp_path) as process:
        yield process


@pytest.fixture
def neighbor(node, pod_netns):
    """A network namespace on the network of the host's link up0."""
    name = pod_netns()
    node.uplink(name)
    return name


@pytest.fixture
def external(host_netns, pod_netns):
    """A network namespace outside the node, behind its link up0, without routes to the pods."""
    return add_external(pod_netns)


@pytest.fixture
def switch(host_netns):
    """A running Open vSwitch in the host's namespace, with the bridge br0."""
    with Switch("br0") as switch:
        yield switch


@pytest.fixture
def ovs_conf(node, switch, tmp_path):
    """Return a function that makes configurations of ovs, of layer 3 with `subnets`."""
    def make(*subnets, **keys):
        more = {} if subnets else {"ipam": None}
        return node.conf(*subnets, **{"type": "ovs", "bridge": "br0", "socket_file": switch.address,
                                      "dataDir": str(tmp_path / "cache"), **more, **keys})
    return make


@pytest.fixture
def kept(tmp_path):
    """Return a function that lists the files which the ovs plugin keeps."""
    return lambda: [path.name for path in (tmp_path / "cache").glob("*")]


@pytest.fixture
def abc(node):
    return [network(node, letter) for letter in "abc"]


@pytest.fixture
def selecting(node, abc):
    """selecting(annotation): a configuration whose pods have the network a, and select of files b and c."""
    define(node, *abc[1:])
    return lambda text="", **keys: multus(node, abc[0], annotations={NETWORKS: text} if text else {}, **keys)


@pytest.fixture
def datapath_conf(node, bpffs):  # noqa: F811
    """ptp with the datapath ebpf; no duplicate address detection delays the pods' IPv6."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf("10.22.0.0/24", "fd00:22::/64", type="ptp", routes=["0.0.0.0/0", "::/0"], datapath="ebpf")


@pytest.fixture
def datapath_pods(node, datapath_conf, pod_netns):
    """Two pods with addresses .2 and .3, and ::2 and ::3. Their links are up, and their neighbours known; the host's
    packets are counted from now on."""
    pods = pod_netns(), pod_netns()
    for pod in pods:
        with Inside(pod):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        node.add(datapath_conf, pod)
    for address in ("10.22.0.3", "fd00:22::3"):
        with Udp(*pods, address, 4999) as udp:
            udp.there()
    run("nft", COUNTER)
    return pods
