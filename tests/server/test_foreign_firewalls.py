"""A firewall that begins to drop forwarded packets after pods came cuts none of them off (real programs, by TCP)."""


import pytest
from real_kernel.node import elements, members, run, set_sysctl
from real_kernel.portmap_chain import DUAL, EXTERNAL, POD
from real_kernel.traffic import add_external, ask, listen
from server.foreign_firewalls import EACH
from server.test_replaying import remember

from fastcni.runtime.cache import Cache
from fastcni.runtime.restore import restore
from fastcni.testing.witnesses import eventually

SECOND = {4: "10.22.0.3", 6: "fd00:22::3"}
FIREWALL = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall"}


@pytest.fixture
def external(host_netns, pod_netns):
    name = add_external(pod_netns, has_default_route=True)
    with listen(name, 80):
        yield name


@pytest.fixture
def first(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return node.conf(*DUAL, isDefaultGateway=True)


class Remembered:
    """What remember() needs of a chain."""

    def __init__(self, first):
        self.first = first


def add(call, first, pod, tmp_path):
    """Add a pod by bridge and firewall; write the runtime's cache. Return firewall's configuration."""
    conf = {**FIREWALL, "prevResult": call("ADD", first, pod)}
    call("ADD", conf, pod)
    remember(tmp_path, Remembered(first), pod, conf)
    return conf


def reaches(pod, address, family=4, wait=5.0):
    return ask(pod, EXTERNAL[family], 80, wait=wait) == address


@pytest.mark.parametrize("begin, kind", EACH)
def test_a_server_brings_pods_into_a_firewall_that_begins_to_filter(
        start, node, first, external, pod, pod_netns, tmp_path, begin, kind):
    """`ufw enable` cut off each pod: nftables let them through, and iptables dropped their packets from then on."""
    conf = add(node.ok, first, pod, tmp_path)
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=start_replay_done"))
    assert reaches(pod, POD[4]) and reaches(pod, POD[6], 6)
    assert elements("forwarded4") == [POD[4]]
    with begin(tmp_path, kind):
        assert eventually(lambda: reaches(pod, POD[4], wait=0.3)), server.log_text()
        assert eventually(lambda: begin.__name__ == "docker" or reaches(pod, POD[6], 6, wait=0.3))
        assert eventually(lambda: server.lines("event=pods_let_through", "FORWARD", "failed=0")), server.log_text()
        server.ok("CHECK", conf, pod)
        late = pod_netns()
        after = add(server.ok, first, late, tmp_path)
        assert reaches(late, SECOND[4])
        for name, each in ((pod, conf), (late, after)):
            server.ok("DEL", each, name)
            assert not reaches(name, POD[4], wait=0.3)
        assert members("fastcni-forward4") == elements("iptables-forward4") == elements("forwarded4") == []


@pytest.mark.parametrize("begin, kind", EACH)
def test_without_a_server_check_names_the_command_that_lets_pods_through(node, first, external, pod, tmp_path, begin,
                                                                         kind):
    """CHECK asked whether the firewall was flushed. Nothing was flushed: iptables had begun to filter."""
    conf = add(node.ok, first, pod, tmp_path)
    with begin(tmp_path, kind):
        set_sysctl("net/ipv4/ip_forward", "1")
        assert not reaches(pod, POD[4], wait=0.3)
        error = node.refused("CHECK", conf, pod)
        assert error["msg"].endswith("expected FORWARD rule [-j CNI-FORWARD] not found")
        assert "began to filter after the pod was added" in error["details"] and "fastcni restore" in error["details"]
        assert restore(Cache(tmp_path / "cache")).failed == ()
        assert reaches(pod, POD[4])
        node.ok("CHECK", conf, pod)
        run("iptables" if kind == "nft" else "iptables-legacy", "-F", "FORWARD")
        assert node.refused("CHECK", conf, pod)["details"] == "was the firewall flushed?"
        node.ok("DEL", conf, pod)
    assert members("fastcni-forward4") == elements("forwarded4") == []
