"""bridge: a Linux bridge has at most 1,023 ports. On a full bridge, ADD fails and STATUS warns."""

import pytest
from lab.node import ip_json, links, run

WORDS = 'bridge "br0" is full: a Linux bridge has 1,023 ports'


def fill(ports):
    """Create the bridge br0 with this number of ports. The ports are deleted with the test's namespace."""
    run("ip", "link", "add", "br0", "address", "02:00:00:00:00:05", "type", "bridge")
    run("ip", "link", "set", "br0", "up")
    run("ip", "-batch", "-", stdin="".join(f"link add p{i} master br0 type ifb\n" for i in range(ports)))


@pytest.mark.parametrize("keys", [{}, {"ipam": None}], ids=["with IPAM", "layer 2"])
def test_full_bridge_is_an_error_of_add_and_a_warning_of_status_and_nothing_is_left(node, pod, keys):
    fill(1023)
    conf = node.conf(isGateway=True, macspoofchk=True, **keys)
    before = node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert (error["code"], error["msg"]) == (11, WORDS)
    assert "another bridge" in error["details"]
    assert node.left(pod) == before
    reply = node.call("STATUS", conf)
    assert reply.status == 0
    assert WORDS in reply.stderr.decode()
    node.delete(conf, pod)


def test_the_last_port_can_be_used_again_after_del(node, pod_netns):
    fill(1022)
    one, two = pod_netns(), pod_netns()
    conf = node.conf(isGateway=True)
    node.ok("STATUS", conf)
    node.add(conf, one)
    assert node.call("STATUS", conf).stderr
    assert node.refused("ADD", conf, two)["code"] == 11
    node.delete(conf, one)
    assert not node.call("STATUS", conf).stderr
    node.add(conf, two)
    assert len(ip_json("link", "show", "master", "br0")) == 1023


def test_status_succeeds_before_add_creates_the_bridge(node):
    node.ok("STATUS", node.conf())
    assert "br0" not in links()


def test_status_reports_a_link_of_another_kind_with_the_bridges_name(node):
    run("ip", "link", "add", "br0", "type", "ifb")
    error = node.refused("STATUS", node.conf())
    assert (error["code"], error["msg"]) == (50, '"br0" already exists but is not a bridge')
