"""ovs between two nodes: the CNI spec's example with vxlanID and dhcp, over a tunnel of the userspace datapath."""

import os

import pytest
from lab.node import Inside, eventually, run
from lab.openvswitch import Switch, host_of, needs_ovs
from unit.dhcp.process import Daemon
from unit.dhcp.server import SERVER, Network, Server, addresses

from fastcni.testing.namespaces import ip

pytestmark = needs_ovs
# the example in version 0.4.0 of the CNI spec, without comments
EXAMPLE = {"cniVersion": "0.4.0", "name": "pan", "type": "ovs", "bridge": "ovs0", "vxlanID": 42,
           "ipam": {"type": "dhcp", "routes": [{"dst": "10.3.0.0/16"}, {"dst": "10.4.0.0/16"}]},
           "args": {"labels": {"appVersion": "1.0"}}}


def connect(switch, own, other, uplink):
    """Put the node's uplink on a bridge, which gets the node's address. Make a tunnel to the other node."""
    switch.add_bridge("phy")
    switch.vsctl("add-port", "phy", uplink)
    for command in (f"addr add {own}/24 dev phy", "link set phy up", f"link set {uplink} up"):
        run("ip", *command.split())
    switch.vsctl("add-port", "ovs0", "tunnel", "tag=9", "--", "set", "interface", "tunnel", "type=vxlan",
                 "options:key=42", f"options:remote_ip={other}")


@pytest.fixture
def network():
    with Network() as network:
        yield network


@pytest.fixture
def near(host_netns, network):
    """Yield this node's switch. Its tunnel leads to another node, and that node's bridge has a DHCP server."""
    node = network.netns("node")
    ip("link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", node)
    ip("link", "add", "dhcp0", "type", "veth", "peer", "name", "b9", "netns", network.host, netns=node)
    ip("link", "set", "b9", "master", "br0", "up", netns=network.host)
    with Switch("ovs0") as switch:
        connect(switch, "192.0.2.1", "192.0.2.2", "up0")
        with Inside(node):
            far = Switch("ovs0").__enter__()
        try:
            with Inside(node):
                connect(far, "192.0.2.2", "192.0.2.1", "up1")
                run("ip", "link", "set", "dhcp0", "up")
                far.vsctl("add-port", "ovs0", "dhcp0", "tag=9")
            yield switch
        finally:
            far.__exit__()


def test_the_specs_example_leases_an_address_through_the_tunnel(node, near, network, tmp_path):
    pod = network.netns("pod")
    with Server(network) as server, Daemon(tmp_path) as daemon:
        conf = {**EXAMPLE, "socket_file": near.address, "dataDir": str(tmp_path / "cache"),
                "ipam": {**EXAMPLE["ipam"], "daemonSocketPath": daemon.path}}
        result = node.add(conf, pod)
        assert addresses(f"/run/netns/{pod}") == [result["ips"][0]["address"]]
        assert near.row("Port", host_of(result))["tag"] == 9
        assert eventually(lambda: os.system(f"ip netns exec {pod} ping -c1 -W1 {SERVER} > /dev/null") == 0)
        # The daemon sends RELEASE once. If DEL then deletes the port before the userspace datapath has read the packet,
        # the packet is lost. So release the address before DEL.
        node.delete({**conf, "type": "dhcp"}, pod)
        assert eventually(lambda: not server.leases)
        node.delete(conf, pod)
        assert host_of(result) not in near.ports("ovs0")
