"""`fastcni why`: how it finds the two ends of a connection if a pod has several networks."""

from fastcni.node.attachments.attachment import RUNNING, Cached, Inventory, NodeAttachment
from fastcni.why import ends

SHOP_WEB = (("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", "web"))


def test_networks_that_multus_has_added_have_the_namespace_and_the_name_of_the_pod():
    """The cached results of networks that multus added contain neither namespace nor name of the pod. Once, the command
    therefore reported that a packet through net1 ends at `pod namespace`."""
    own = NodeAttachment("many", "c0ffee", "eth0", RUNNING, "", netns="/run/netns/web",
                         cached=Cached("", args=SHOP_WEB))
    more = NodeAttachment("storage", "c0ffee", "net1", RUNNING, "", addresses=("10.9.0.2",), cached=Cached(""))
    other = NodeAttachment("many", "beef", "eth0", RUNNING, "", netns="/run/netns/db", cached=Cached(""))
    inventory = ends.with_namespaces(Inventory((own, more, other)))
    found = ends.pods_named(inventory, "shop/web")
    assert [(it.ifname, it.netns) for it in found] == [("eth0", "/run/netns/web"), ("net1", "/run/netns/web")]
    assert [it.ifname for it in ends.pods_named(inventory, "c0ffee/net1")] == ["net1"]


def test_of_two_pods_with_one_address_the_one_of_the_source_s_network_is_the_target():
    """Two networks can have the same subnet. Once, the command followed the packet to a pod of the network that is
    first in the inventory."""
    pods = tuple(NodeAttachment(network, f"c-{network}", "eth0", RUNNING, "", netns="/run/netns/none",
                                addresses=("10.9.0.2",)) for network in ("blue", "red"))
    for network in ("blue", "red"):
        found = ends.end_at(Inventory(pods), bytes((10, 9, 0, 2)), network)
        assert found.attachment and found.attachment.network == network


def test_the_network_that_multus_runs_is_the_pod_s_attachment_and_not_multus_itself():
    """Only the configuration of the network that multus runs names the bridge or the Open vSwitch bridge."""
    pods = tuple(NodeAttachment(network, "c0ffee", "eth0", RUNNING, "", netns="/run/netns/none",
                                addresses=("10.9.0.2",), plugins=(plugin,)) for network, plugin in (
        ("cluster", "multus"), ("inner", "ovs")))
    found = ends.end_at(Inventory(pods), bytes((10, 9, 0, 2)), "cluster")
    assert found.attachment and found.attachment.network == "inner"
    assert [it.network for it in ends.pods_named(Inventory(pods), "c0ffee")] == ["inner", "cluster"]
