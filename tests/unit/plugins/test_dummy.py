"""dummy requires IPAM, and gives its addresses to a link without a peer. test_devices.py has more tests."""

import pytest
from lab.node import links, run, source_seen

DUAL = ("10.22.0.0/24", "fd00:22::/64")
pytestmark = pytest.mark.needs("dummy")


@pytest.fixture
def conf(node):
    return node.conf(*DUAL, type="dummy", bridge=None)


def test_pod_reaches_its_addresses(node, pod, conf):
    node.add(conf, pod)
    run("ip", "link", "set", "lo", "up", netns=pod)
    assert source_seen(pod, pod, "10.22.0.2") == "10.22.0.2"
    assert source_seen(pod, pod, "fd00:22::2") == "fd00:22::2"


@pytest.mark.parametrize("command", ["ADD", "CHECK", "STATUS"])
def test_ipam_is_required(node, pod, conf, command):
    del conf["ipam"]
    error = node.refused(command, conf, pod)
    assert (error["code"], error["msg"]) == (7, "dummy interface requires an IPAM configuration")
    assert set(links(pod)) == {"lo"}


def test_del_does_not_require_ipam(node, pod, conf):
    """The reference plugin returns `no plugin name provided` and does not delete the link."""
    node.add(conf, pod)
    node.delete({key: value for key, value in conf.items() if key != "ipam"}, pod)
    assert set(links(pod)) == {"lo"}
