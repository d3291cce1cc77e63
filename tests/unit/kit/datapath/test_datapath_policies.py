"""A policy begins to restrict a pod while BPF programs redirect the pod's flows. Forbidden flows end, and allowed flows
continue."""

import errno
import os
import select
from contextlib import closing
from dataclasses import replace

import pytest
from lab.datapath_pods import Tcp, Udp, forwarded, kernel_flows, marks, pods_in_map
from lab.node import eventually, links, run

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ports import Port
from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kit.datapath import filters
from fastcni.kit.datapath.maps import RESTRICTED, u32
from fastcni.spec.address import read_ip

pytestmark = marks
QUIET_S = 0.3
ONE, TWO = (tuple(read_ip(text.format(number)) for text in ("10.22.0.{}", "fd00:22::{}")) for number in (2, 3))
INGRESS = {"metadata": {"name": "web"}, "spec": {
    "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": [{
        "from": [{"podSelector": {}}], "ports": [{"port": 80}, {"port": 5000, "protocol": "UDP"}]}]}}
EGRESS = {"metadata": {"name": "client"}, "spec": {
    "podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"], "egress": [{
        "to": [{"podSelector": {}}], "ports": [{"port": 80}, {"port": 5000, "protocol": "UDP"}]}]}}


@pytest.fixture
def engine(datapath_pods):
    """Return the agent's Engine for two pods that no policy restricts."""
    found = Engine(AttachedCompiler())
    found.compiler.put_namespace("default", {})
    for number, (name, addresses) in enumerate((("client", ONE), ("web", TWO))):
        found.compiler.attach(attachment(name, addresses, number))
    found.load()
    yield found
    found.rules.remove()
    found.close()


def attachment(name, addresses, number=0):
    return Attachment(("net-a", name, "eth0"), f"default/{name}", {"app": name}, addresses, number)


def enforce(engine, policy):
    engine.compiler.put_policy(read_policy(policy))
    engine.commit()
    engine.begin_cut()
    engine.end_cut()


def restricted():
    """Return the addresses that the kernel's map marks as restricted."""
    return {packed for packed, value in pods_in_map().items() if u32(value, 4) & RESTRICTED}


def arrives(sender, receiver):
    """Return whether bytes from one socket arrive at another socket within QUIET_S."""
    sender.send(b"still there?")
    found = bool(select.select([receiver], [], [], QUIET_S)[0])
    if found:
        receiver.recv(100)
    return found


@pytest.mark.parametrize("address", ["10.22.0.3", "fd00:22::3"])
@pytest.mark.parametrize(("policy", "whose"), [(INGRESS, TWO), (EGRESS, ONE)], ids=["ingress", "egress"])
def test_forbidden_flows_end_and_allowed_ones_go_on(engine, datapath_pods, policy, whose, address):
    with (Tcp(*datapath_pods, address, 80) as allowed, Tcp(*datapath_pods, address, 81) as forbidden,
          Udp(*datapath_pods, address, 5000) as allowed_udp, Udp(*datapath_pods, address, 5001) as forbidden_udp):
        for each in (allowed, forbidden, allowed_udp, forbidden_udp):
            each.there_and_back(2)
        assert {flow.ports[1] for flow in kernel_flows()} >= {80, 81, 5000, 5001} and not restricted()
        enforce(engine, policy)
        assert restricted() == set(whose) and not kernel_flows()
        assert not arrives(forbidden.client, forbidden.server) and not arrives(forbidden.server, forbidden.client)
        assert not arrives(forbidden_udp.client, forbidden_udp.server)
        before = forwarded()
        assert arrives(allowed.server, allowed.client)          # now the server sends first
        allowed.there_and_back(3, size=200_000)
        allowed_udp.there_and_back(3)
        assert forwarded() > before and not kernel_flows()


@pytest.mark.parametrize("address", ["10.22.0.3", "fd00:22::3"])
def test_forbidden_redirected_flows_end_before_the_list_of_all_flows(engine, datapath_pods, address):
    """The kernel needs 10 to 100 ms to list all flows, and after a search the agent pauses before the next."""
    with (Tcp(*datapath_pods, address, 80) as allowed, Tcp(*datapath_pods, address, 81) as forbidden,
          Udp(*datapath_pods, address, 5001) as forbidden_udp):
        for each in (allowed, forbidden, forbidden_udp):
            each.there_and_back(2)
        engine.compiler.put_policy(read_policy(INGRESS))
        engine.commit()
        assert not engine.flows.begun
        assert not arrives(forbidden.client, forbidden.server) and not arrives(forbidden.server, forbidden.client)
        assert not arrives(forbidden_udp.client, forbidden_udp.server)
        assert arrives(allowed.server, allowed.client)
        engine.begin_cut()
        assert engine.end_cut() >= 2                # the count includes the flows that commit() has ended
        engine.begin_cut()
        assert engine.end_cut() == 0


def test_a_connection_that_goes_on_can_be_closed(engine, datapath_pods):
    with Tcp(*datapath_pods, "10.22.0.3", 80) as tcp:
        tcp.there_and_back()
        enforce(engine, INGRESS)
        tcp.client.shutdown(1)
        assert tcp.server.recv(1) == b""
        tcp.server.sendall(b"the last words")
        assert tcp.client.recv(100) == b"the last words"
        tcp.server.close()
        assert tcp.client.recv(1) == b""


def test_flows_are_redirected_again_when_no_policy_restricts_the_pod(engine, datapath_pods):
    enforce(engine, INGRESS)
    with Tcp(*datapath_pods, "10.22.0.3", 80) as tcp:
        tcp.there_and_back()
        assert not kernel_flows()
    engine.compiler.delete_policy("default/web")
    engine.commit()
    assert not restricted()
    with Tcp(*datapath_pods, "10.22.0.3", 80) as tcp:
        tcp.there_and_back()
        assert [flow.ports[1] for flow in kernel_flows() if flow.protocol == 6] == [80]


def test_a_pod_that_is_added_again_under_a_policy_is_restricted(engine, node, datapath_pods, datapath_conf):
    """ptp's ADD writes a new element without the mark RESTRICTED. The plugin policy comes after ptp and restricts the
    pod again."""
    enforce(engine, INGRESS)
    node.delete(datapath_conf, datapath_pods[1])
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.3/24", "gateway": "10.22.0.1"},
                                            {"address": "fd00:22::3/64", "gateway": "fd00:22::1"}]}
    node.add({**datapath_conf, "ipam": ipam}, datapath_pods[1])
    assert not restricted()
    engine.protect(attachment("web", TWO, 9))
    assert restricted() == set(TWO)
    engine.commit()
    assert restricted() == set(TWO)


def test_an_agent_that_starts_again_restricts_what_was_added_meanwhile(engine, node, datapath_pods, datapath_conf):
    enforce(engine, INGRESS)
    node.delete(datapath_conf, datapath_pods[1])
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.3/24", "gateway": "10.22.0.1"}]}
    node.add({**datapath_conf, "ipam": ipam, "routes": []}, datapath_pods[1])
    engine.load()
    assert eventually(lambda: restricted() == {TWO[0]})


def blind(monkeypatch, refused):
    """Hide the maps' pins from the agent, which gets the errno `refused` when it opens a pin."""
    def get(path):
        raise OSError(refused, os.strerror(refused), path)
    monkeypatch.setattr(objects, "get", get)


@pytest.mark.parametrize("refused", [errno.ENOENT, errno.EPERM])
def test_an_agent_that_cannot_end_redirected_flows_takes_the_links_out_of_the_datapath(engine, datapath_pods,
                                                                                      monkeypatch, refused):
    """Once, forbidden flows continued, and the agent reported no error."""
    pods = (*datapath_pods, "10.22.0.3")
    with Tcp(*pods, 81) as forbidden, Udp(*pods, 5000) as allowed_udp, Udp(*pods, 5001) as forbidden_udp:
        for each in (forbidden, allowed_udp, forbidden_udp):
            each.there_and_back(2)
        blind(monkeypatch, refused)
        assert engine.redirects.check(engine.rules.sock)
        enforce(engine, INGRESS)
        assert not arrives(forbidden.client, forbidden.server)
        assert not arrives(forbidden_udp.client, forbidden_udp.server)
        allowed_udp.there_and_back(3)
        with Tcp(*pods, 80) as allowed:
            allowed.there_and_back(3)
        assert engine.redirects.take_count() == 2 and engine.redirects.take_count() == 0
        assert engine.redirects.check(engine.rules.sock)


def test_an_agent_that_cannot_see_the_maps_takes_a_new_restricted_pod_out_and_no_other(engine, node, datapath_pods,
                                                                                      datapath_conf, monkeypatch):
    """The agent removes the filters of the pod's own link. Without filters, no program redirects the pod's flows in
    either direction."""
    enforce(engine, INGRESS)
    node.delete(datapath_conf, datapath_pods[1])
    ipam = {"type": "static", "addresses": [{"address": "10.22.0.3/24", "gateway": "10.22.0.1"},
                                            {"address": "fd00:22::3/64", "gateway": "fd00:22::1"}]}
    host, inside = node.add({**datapath_conf, "ipam": ipam}, datapath_pods[1])["interfaces"]
    blind(monkeypatch, errno.ENOENT)
    port = Port(host["name"], False, bytes.fromhex(inside["mac"].replace(":", "")))
    engine.protect(replace(attachment("web", TWO, 9), port=port))
    engine.commit()
    engine.redirects.put(engine.rules.sock, set(TWO))           # the agent also calls put() after a change of policies
    with closing(wire.open_socket()) as sock:
        assert links()[host["name"]]["ifindex"] not in filters.linked(sock)
        assert len(filters.linked(sock)) == engine.redirects.take_count() == 1


def test_an_agent_that_sees_no_maps_says_nothing_on_a_node_without_a_datapath(engine, datapath_pods, monkeypatch):
    for name in links():
        if name.startswith("veth"):
            run("tc", "qdisc", "del", "dev", name, "clsact")
    blind(monkeypatch, errno.ENOENT)
    enforce(engine, INGRESS)
    assert engine.redirects.check(engine.rules.sock) == "" and engine.redirects.take_count() == 0
