"""A tightened policy ends the established connections that it forbids. Other connections continue. Needs root."""

import dataclasses
import errno
import socket
import subprocess

import pytest
from unit.agent.policy.frames import mac_bytes
from unit.agent.policy.pods import ADDRESSES, TCP, UDP, Node, mac_of_pod, pods

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ports import Port
from fastcni.agent.policy.ruleset import TABLE, see_bridged_traffic
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, run

WEB, LOCKED = {"podSelector": {"matchLabels": {"app": "web"}}}, {"podSelector": {}}
NEW_C = Attachment(("net", "new", "eth0"), "default/new", {"app": "new"}, tuple(map(read_ip, ADDRESSES["c"])))


class Session:
    """An established TCP connection from one pod (None: the node) to another."""

    def __init__(self, node, source, name, family=0):
        self.client = node.connect(source, ADDRESSES[name][family], 80)
        self.server = node.accept(name)
        assert self.is_alive(5)

    def is_alive(self, seconds=0.15):
        """Return whether a byte arrives in each direction within `seconds`."""
        return all(self._arrives(*ends, seconds) for ends in ((self.server, self.client), (self.client, self.server)))

    def _arrives(self, sender, receiver, seconds):
        try:
            sender.send(b"x")
        except BlockingIOError:
            return False
        receiver.settimeout(seconds)
        try:
            return receiver.recv(64) != b""
        except TimeoutError:
            return False
        finally:
            receiver.setblocking(False)


class Policed:
    def __init__(self, node):
        if not see_bridged_traffic():
            pytest.skip("needs br_netfilter in the kernel")
        self.node, self.engine = node, Engine(AttachedCompiler())
        self.set(labels={"a": {"app": "web"}, "d": {"app": "web"}})
        self.engine.load()

    def set(self, *specs, labels):
        for pod in pods(**labels):
            self.engine.compiler.put_pod(pod)
        for number, spec in enumerate(specs):
            self.engine.compiler.put_policy(read_policy({"metadata": {"name": f"p{number}"}, "spec": spec}))
        self.engine.commit()
        return self.cut()

    def disown(self):
        """Write tables without an owner, which any program may change, as on Linux before 6.9."""
        self.engine.rules.flags = 0
        self.engine.load()

    def cut(self):
        self.engine.begin_cut()
        return self.engine.end_cut()


@pytest.fixture
def policed(host_netns, pod_netns):
    node = Node(pod_netns)
    try:
        it = Policed(node)
        yield it
        it.engine.close()
    finally:
        node.close()


LABELS = {"a": {"app": "web"}, "d": {"app": "web"}}


def test_a_tightened_policy_cuts_what_it_no_longer_allows_and_nothing_else(policed):
    cut, kept, probe = (Session(policed.node, "b", "c"), Session(policed.node, "a", "c", 1),
                        Session(policed.node, None, "c"))
    assert policed.set({"podSelector": {}, "ingress": [{"from": [WEB]}]}, labels=LABELS) == 1
    assert (cut.is_alive(), kept.is_alive(5), probe.is_alive(5)) == (False, True, True)
    # This policy allows another port, so its other rules have changed.
    assert policed.set({"podSelector": {}, "ingress": [{"from": [WEB], "ports": [{"port": 81}]}]}, labels=LABELS) == 1
    assert (kept.is_alive(), probe.is_alive(5)) == (False, True)


def test_a_peer_that_loses_its_label_is_cut(policed):
    policed.set({"podSelector": {}, "ingress": [{"from": [WEB]}]}, labels=LABELS)
    near, far = Session(policed.node, "a", "c"), Session(policed.node, "d", "c")
    assert policed.set(labels={"a": {"app": "web"}}) == 1
    assert (near.is_alive(5), far.is_alive()) == (True, False)


def test_an_answer_does_not_open_a_cut_connection_again(policed):
    """The server of the ended connection sends first. Its pod is restricted for ingress only, so the pod may begin
    connections. For conntrack a packet within a connection begins a new connection."""
    session = Session(policed.node, "b", "c")
    assert policed.set({"podSelector": {}}, labels=LABELS) == 1
    session.server.send(b"x")
    assert not session.is_alive()


def test_udp_is_cut_too(policed):
    client = policed.node.connect("b", ADDRESSES["c"][0], 80, socket.SOCK_DGRAM)
    listener = policed.node.listeners["c", socket.SOCK_DGRAM, 80]
    listener.settimeout(5)
    assert listener.recv(64) == b"hello"
    policed.set({"podSelector": {}}, labels=LABELS)
    client.send(b"again")
    listener.settimeout(0.15)
    with pytest.raises(TimeoutError):
        listener.recv(64)


def test_a_lease_is_renewed_in_spite_of_a_change_of_policies(policed):
    """Once, the agent judged renewals by the policies alone, and dropped the server's answers for 120 s."""
    port = Port("port-a", True, mac_bytes(mac_of_pod("a")), dhcp=True)
    addresses = tuple(map(read_ip, ADDRESSES["a"]))
    policed.engine.protect(Attachment(("net", "a", "eth0"), "default/a", {}, addresses, port=port))
    policed.engine.commit()
    with datagrams(policed.node, "a", 68) as client, datagrams(policed.node, "a", 69) as other, datagrams(
            policed.node, "c", 67) as server:
        for sock in (client, other):
            sock.sendto(b"renew", (ADDRESSES["c"][0], 67))
            assert server.recv(64) == b"renew"
        # the connection of `other` has ended
        assert policed.set({"podSelector": {}, "policyTypes": ["Egress"]}, labels={}) == 1
        server.sendto(b"lease", (ADDRESSES["a"][0], 68))
        assert client.recv(64) == b"lease"


def datagrams(node, name, port):
    """Return a UDP socket that is bound to a port of a pod."""
    with Inside(node.names[name]):
        sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("", port))
    sock.settimeout(5)
    return sock


def test_a_table_that_another_program_has_removed_is_written_again(policed):
    policed.disown()
    subprocess.run(["nft", "delete", "table", "inet", "fastcni-policy"], check=True)
    policed.set({"podSelector": {}}, labels=LABELS)
    asked = {("a", ADDRESSES["c"][0], 6, 80)}
    assert policed.node.reached(asked, set()) == set()


def test_an_add_does_not_hide_a_change_from_the_cut(policed):
    """The agent must commit the earlier change after the ADD, and end the connections that the change forbids."""
    session = Session(policed.node, "b", "c")
    policed.engine.compiler.put_policy(read_policy({"metadata": {"name": "p"}, "spec": LOCKED}))
    policed.engine.protect(Attachment(("net", "new", "eth0"), "default/new", {}, (read_ip("10.0.0.9"),)))
    policed.engine.commit()
    assert policed.cut() == 1
    assert not session.is_alive()


def test_flows_of_an_address_end_when_a_new_pod_has_it(policed):
    client = policed.node.connect("b", ADDRESSES["c"][0], 80, socket.SOCK_DGRAM)
    listener = policed.node.listeners["c", socket.SOCK_DGRAM, 80]
    listener.settimeout(5)
    data, address = listener.recvfrom(64)
    listener.sendto(data, address)          # an answer makes the flow established
    policed.engine.compiler.delete_pod("default/c")
    policed.engine.compiler.put_policy(read_policy({"metadata": {"name": "p"}, "spec": {
        "podSelector": {"matchLabels": {"app": "new"}}}}))
    policed.engine.commit()
    policed.cut()
    policed.engine.protect(NEW_C)
    policed.engine.commit()
    policed.cut()
    client.send(b"again")
    listener.settimeout(0.15)
    with pytest.raises(TimeoutError):
        listener.recv(64)


def test_after_a_failure_the_complete_table_is_written_and_the_connections_are_cut(policed, monkeypatch):
    session = Session(policed.node, "b", "c")

    def fail(*_):
        raise OSError(errno.ENOBUFS, "no memory")

    with monkeypatch.context() as patch:
        patch.setattr("fastcni.agent.policy.ruleset.NetlinkRequests.send", fail)
        with pytest.raises(OSError, match="no memory"):
            policed.set(LOCKED, labels=LABELS)
    policed.engine.commit()
    with monkeypatch.context() as patch:
        patch.setattr("fastcni.kernel.conntrack.list_flows", fail)
        with pytest.raises(OSError, match="no memory"):
            policed.cut()
    assert policed.cut() == 1
    assert not session.is_alive()
    asked = {("a", ADDRESSES["c"][0], 6, 80)}
    assert policed.node.reached(asked, set()) == set()


def test_a_restricted_pod_is_closed_until_its_rules_are_written(policed):
    """The pod's ADD waits only until the kernel has the elements that drop the pod's packets."""
    asked = {(source, address, protocol, 80) for protocol in (TCP, UDP) for number in (0, 1)
             for source, address in (("a", ADDRESSES["c"][number]), ("c", ADDRESSES["a"][number]),
                                     ("a", ADDRESSES["b"][number]))}
    untouched = {one for one in asked if one[0] != "c" and one[1] not in ADDRESSES["c"]}
    policed.set({"podSelector": {"matchLabels": {"app": "new"}}, "policyTypes": ["Ingress", "Egress"],
                 "ingress": [{}], "egress": [{}]}, labels={})
    policed.engine.compiler.delete_pod("default/c")
    policed.engine.commit()
    policed.engine.protect(NEW_C)
    policed.node.forget_flows()
    assert policed.node.reached(asked, untouched) == untouched
    policed.engine.commit()
    policed.node.forget_flows()
    assert policed.node.reached(asked, asked) == asked


@pytest.mark.parametrize("pods", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_the_first_restricted_pods_send_nothing_from_link_local_addresses_when_their_adds_answer(
        policed, monkeypatch, committed, pods):
    """Once, pods could send from link-local addresses until the agent had written the pods' rules. The ADD must not
    wait until the agent has written all tables, because that takes longer."""
    policed.set({"podSelector": {"matchLabels": {"app": "new"}}, "policyTypes": ["Egress"]}, labels={})
    policed.engine.compiler.delete_pod("default/c")
    policed.engine.commit()
    monkeypatch.setattr(policed.engine, "load", lambda: pytest.fail("all tables were written again"))

    def dropped():
        return "fe80::" in run("nft", "list", "set", "inet", TABLE, "link6")

    assert not dropped()
    added = [NEW_C, dataclasses.replace(NEW_C, id=("new", "eth1"), addresses=(bytes((10, 0, 0, 99)),))][:pods]
    for pod in added:
        policed.engine.protect(pod)
        assert dropped()
    if committed:
        policed.engine.commit()
        assert dropped()
    for pod in added:
        policed.engine.compiler.detach(pod.id)
    policed.engine.commit()
    assert not dropped()


@pytest.mark.parametrize("ended", ["detached", "added again", "table removed"])
def test_nothing_is_left_of_a_pod_that_was_closed(policed, ended):
    if ended == "table removed":
        policed.disown()
    policed.set({"podSelector": {"matchLabels": {"app": "new"}}}, labels={})
    policed.engine.compiler.delete_pod("default/c")
    policed.engine.commit()
    policed.engine.protect(NEW_C)
    if ended == "added again":
        policed.engine.protect(NEW_C)
    elif ended == "table removed":
        subprocess.run(["nft", "delete", "table", "inet", "fastcni-policy"], check=True)
    policed.engine.compiler.detach(NEW_C.id)
    policed.engine.commit()
    listed = subprocess.run(["nft", "list", "map", "inet", "fastcni-policy", "in4"], check=True, text=True,
                            capture_output=True).stdout
    assert "elements" not in listed


def test_an_add_before_the_first_load_leaves_the_table_of_the_former_agent(policed):
    """The new agent has not read the policies yet, so it keeps the previous agent's table."""
    policed.set(LOCKED, labels=LABELS)
    policed.engine.close()
    policed.engine = restarted = Engine(AttachedCompiler())
    restarted.protect(Attachment(("net", "new", "eth0"), "default/new", {}, (read_ip("10.0.0.9"),)))
    asked = {("a", ADDRESSES["c"][0], 6, 80)}
    assert policed.node.reached(asked, set()) == set()
    restarted.load()
    assert policed.node.reached(asked, asked) == asked
