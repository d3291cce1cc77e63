"""Fixtures: two pods of ptp with `"datapath": "ebpf"`."""

import pytest
from lab.datapath_pods import COUNTER, Udp, bpffs  # noqa: F401 - a fixture
from lab.node import Inside, run, set_sysctl


@pytest.fixture
def datapath_conf(node, bpffs):  # noqa: F811
    """Return a configuration of ptp with `"datapath": "ebpf"`. Without duplicate address detection, IPv6 works
    immediately."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf("10.22.0.0/24", "fd00:22::/64", type="ptp", routes=["0.0.0.0/0", "::/0"], datapath="ebpf")


@pytest.fixture
def datapath_pods(node, datapath_conf, pod_netns):
    """Return two pods with the addresses .2 and .3, ::2 and ::3. Both links are up and have neighbour entries. From now
    on nftables counts the host's packets."""
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
