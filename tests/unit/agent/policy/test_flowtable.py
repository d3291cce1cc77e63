"""Packets of established connections pass through an nftables flowtable until a policy forbids the connection."""

import contextlib
import json
import select
import threading
from dataclasses import replace

import pytest
from lab.datapath_pods import COUNTER, Tcp, Udp, forwarded
from lab.node import Inside, eventually, run, set_sysctl

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ports import Pair, Port
from fastcni.agent.policy.ruleset import FLOWTABLE
from fastcni.agent.run import remove_policies
from fastcni.kernel import nft_flowtables
from fastcni.kernel.nft_elements import service
from fastcni.spec.address import read_ip

needs_flowtable = pytest.mark.needs("nft-flowtable")
QUIET_S = 0.3
ONE, TWO = (tuple(read_ip(text.format(number)) for text in ("10.23.0.{}", "fd00:23::{}")) for number in (2, 3))
OF_TWO = ("10.23.0.3", "fd00:23::3")
RULE = {"from": [{"podSelector": {}}]}
BOTH = [{"port": 80}, {"port": 81}, {"port": 5000, "protocol": "UDP"}, {"port": 5001, "protocol": "UDP"}]


def policy(*ports):
    """Return a policy that allows connections only to these ports of both pods."""
    return {"metadata": {"name": "all"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{**RULE, "ports": list(ports)}] if ports else [], "egress": [{}]}}


class World:
    """Two pods of ptp under a policy, and an Engine that writes the policies. offload: an argument of Engine."""

    def __init__(self, node, make_netns):
        for name in ("net/ipv6/conf/default/accept_dad", "net/ipv6/conf/all/accept_dad"):
            set_sysctl(name, "0")
        self.node, self.conf = node, node.conf("10.23.0.0/24", "fd00:23::/64", type="ptp",
                                               routes=["0.0.0.0/0", "::/0"])
        self.pods = [make_netns(), make_netns()]
        self.attachments = []
        for number, pod in enumerate(self.pods):
            self.attachments.append(self.add(pod, number))
        for address in OF_TWO:
            with Udp(*self.pods, address, 4999) as udp:
                udp.there()
        run("nft", COUNTER)
        self.engine = None
        self.start()

    def add(self, pod, number, conf=None):
        with Inside(pod):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        host, inside = self.node.add(conf or self.conf, pod)["interfaces"]
        port = Port(host["name"], False, bytes.fromhex(inside["mac"].replace(":", "")))
        return Attachment(("net", pod, "eth0"), f"default/pod{number}", {}, (ONE, TWO)[number], number, port)

    def start(self, *, offload=True):
        """Start an agent, in place of an agent that was killed."""
        self.stop()
        self.engine = Engine(AttachedCompiler(), offload=offload)
        self.engine.compiler.put_namespace("default", {})
        for each in self.attachments:
            self.engine.compiler.attach(each)
        self.engine.compiler.put_policy(read_policy(policy(*BOTH)))
        self.engine.load()
        self.commit()

    def stop(self):
        if self.engine:
            self.engine.close()
        self.engine = None

    def commit(self):
        self.engine.commit()
        self.engine.begin_cut()
        return self.engine.end_cut()

    def enforce(self, *ports):
        self.engine.compiler.put_policy(read_policy(policy(*ports)))
        return self.commit()

    def flow(self, kind, address, port):
        return kind(*self.pods, address, port)


@pytest.fixture
def world(node, pod_netns):
    it = World(node, pod_netns)
    yield it
    it.stop()
    remove_policies()


def skips_rules(flow):
    """Wait until the connection is established. Return whether its next packets skip the rules."""
    flow.there_and_back(5)
    before = forwarded()
    flow.there_and_back(20)
    return forwarded() == before


def offloaded(flow):
    """Return whether the connection soon passes through the flowtable. A deleted flowtable still has the connection
    until the kernel has freed the flowtable."""
    return eventually(lambda: skips_rules(flow))


def arrives(sender, receiver):
    """Return whether a new byte arrives from one socket at another. The function first discards earlier bytes."""
    while select.select([receiver], [], [], 0)[0]:
        receiver.recv(1 << 16)
    sender.send(b"still there?")
    return bool(select.select([receiver], [], [], QUIET_S)[0])


def devices():
    """Return (the links in the flowtable, the links in the set of the flowtable's table)."""
    found = json.loads(run("nft", "-j", "list", "table", "inet", FLOWTABLE))["nftables"]
    flowtable, names = (next(item[kind] for item in found if kind in item) for kind in ("flowtable", "set"))
    devices = flowtable.get("dev", [])
    return {*([devices] if isinstance(devices, str) else devices)}, {*names.get("elem", [])}


def has_table():
    return f"inet {FLOWTABLE}" in run("nft", "list", "tables")


@contextlib.contextmanager
def ceaseless(udp):
    """Send datagrams without a pause from the client of a Udp flow."""
    ended = threading.Event()

    def send():
        while not ended.wait(0.001):
            with contextlib.suppress(OSError):
                udp.client.send(b"again")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@needs_flowtable
def test_established_connections_pass_no_rule_until_a_policy_forbids_them(world):
    for address in OF_TWO:
        world.enforce(*BOTH)
        with (world.flow(Tcp, address, 80) as allowed, world.flow(Tcp, address, 81) as forbidden,
              world.flow(Udp, address, 5000) as allowed_udp, world.flow(Udp, address, 5001) as forbidden_udp):
            for each in (allowed, forbidden, allowed_udp, forbidden_udp):
                assert offloaded(each)
            with ceaseless(forbidden_udp):
                assert world.enforce(BOTH[0], BOTH[2]) == 2
                assert not arrives(forbidden_udp.client, forbidden_udp.server)
            assert not arrives(forbidden.client, forbidden.server) and not arrives(forbidden.server, forbidden.client)
            for each in (allowed, allowed_udp):
                assert offloaded(each)
            assert world.enforce(BOTH[0]) == 1
            assert not arrives(allowed_udp.client, allowed_udp.server)
            allowed.client.shutdown(1)
            assert allowed.server.recv(1) == b""
            allowed.server.sendall(b"the last words")
            assert allowed.client.recv(100) == b"the last words"


@needs_flowtable
def test_connections_go_on_when_the_agent_is_killed_and_the_next_agent_decides(world):
    with world.flow(Tcp, OF_TWO[0], 80) as tcp, world.flow(Udp, OF_TWO[0], 5000) as udp:
        assert offloaded(tcp) and offloaded(udp)
        world.stop()
        before = forwarded()
        for each in (tcp, udp):
            each.there_and_back(5)
        assert forwarded() == before
        world.start()
        assert offloaded(tcp) and offloaded(udp)
        assert world.enforce(BOTH[0]) == 1
        assert not arrives(udp.client, udp.server)
        assert offloaded(tcp) and has_table()
        world.start(offload=False)
        assert not has_table() and not skips_rules(tcp)


@needs_flowtable
def test_a_flow_of_a_deleted_pod_does_not_reach_the_next_pod_with_its_address(world, pod_netns):
    with world.flow(Udp, OF_TWO[0], 5000) as udp:
        assert offloaded(udp)
        with ceaseless(udp):
            world.node.delete(world.conf, world.pods[1])
            world.pods[1] = pod_netns()
            ipam = {"type": "static", "addresses": [{"address": "10.23.0.3/24", "gateway": "10.23.0.1"},
                                                    {"address": "fd00:23::3/64", "gateway": "fd00:23::1"}]}
            attachment = replace(world.add(world.pods[1], 1, {**world.conf, "ipam": ipam}), pod="shut/pod")
            world.engine.compiler.put_namespace("shut", {})
            world.engine.compiler.put_policy(read_policy({"metadata": {"name": "none", "namespace": "shut"}, "spec": {
                "podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}}))
            world.engine.protect(replace(attachment, sequence=9))
            world.commit()
            with world.flow(Udp, OF_TWO[0], 5000) as other:
                assert not arrives(udp.client, other.server)
        assert devices()[0] == devices()[1] == {world.attachments[0].port.name, attachment.port.name}


@needs_flowtable
def test_packets_whose_source_the_rules_forbid_now_do_not_go_by_the_flowtable(world):
    """The rules check the source of each packet, even within an established connection."""
    first = world.attachments[0]
    prefix = replace(first.port, pairs=(Pair(read_ip("10.99.0.0"), 24),))
    # without addresses, as after the pod's DEL
    for changed, sends, listed in ((replace(first, addresses=()), False, False),
                                   (replace(first, addresses=(read_ip("10.23.0.99"),)), False, True),
                                   (replace(first, port=prefix), True, False)):
        with world.flow(Udp, OF_TWO[0], 5000) as udp:
            assert offloaded(udp)
            world.engine.compiler.attach(replace(changed, sequence=9))
            world.engine.compiler.put_policy(read_policy(policy(*BOTH[:3])))
            world.engine.commit()               # commit() ends no flow; cut() would end a flow of a deleted pod
            assert arrives(udp.client, udp.server) == sends
            assert not sends or not skips_rules(udp)
        assert (first.port.name in devices()[0], first.port.name in devices()[1]) == (listed, listed)
        world.start()
    with world.flow(Udp, OF_TWO[0], 5000) as udp:
        assert offloaded(udp)
        world.engine.compiler.put_tunnels({("link-tunnel-ports", service(5000))})       # the node gets a tunnel
        world.engine.commit()
        assert not arrives(udp.client, udp.server)


@needs_flowtable
def test_more_links_than_one_message_takes_are_in_the_flowtable_and_nft_lists_them(world):
    names = [f"pod-link-{number}" for number in range(150)]
    run("ip", "-batch", "-", stdin="\n".join(f"link add {name} type veth peer peer-{name[9:]}" for name in names))
    first = world.attachments[0]
    for number, name in enumerate(names):
        world.engine.compiler.attach(replace(first, id=("net", name, "eth0"), sequence=9, addresses=(
            bytes((10, 98, 0, number)),), port=replace(first.port, name=name)))
    world.engine.commit()
    expected = {*names, *(each.port.name for each in world.attachments)}
    assert devices() == (expected, expected)
    run("ip", "link", "del", names[0])
    world.engine.compiler.detach(("net", names[0], "eth0"))
    world.engine.commit()
    assert devices() == (expected - {names[0]}, expected - {names[0]})


def test_a_kernel_without_flowtables_leaves_connections_to_the_rules(node, pod_netns, monkeypatch):
    monkeypatch.setattr(nft_flowtables, "flow_add", lambda name: ("no-flowtable", lambda batch: batch))
    it = World(node, pod_netns)
    try:
        assert "No such file or directory" in it.engine.not_offloaded and not has_table()
        with it.flow(Udp, OF_TWO[0], 5000) as udp:
            assert not skips_rules(udp)
            assert it.enforce() == 1
            assert not arrives(udp.client, udp.server)
        assert it.engine.not_offloaded
    finally:
        it.stop()
        remove_policies()
