"""Frames whose MAC is another pod's than their IP address, new links with old names, and more pods than a set of fixed
size has room for, on the real kernel."""

import pytest
from unit.agent.policy import frames
from unit.agent.policy.frames import arrived, ipv4, ipv6, udp
from unit.agent.policy.pods import ADDRESSES, NODE, TCP, mac_of_pod
from unit.agent.policy.test_ports import MAC_A, MAC_B, MAC_C, NO_EGRESS, NO_INGRESS, elements, site  # noqa: F401

from fastcni.agent.policy import ruleset, state
from fastcni.agent.policy.ports import FAST
from fastcni.agent.policy.ruleset import BRIDGE_FAMILY, TABLE, family_of
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

FAST_SETS = [("bridge" if family_of(name) == BRIDGE_FAMILY else "inet", name) for name in FAST]


def test_frames_to_another_mac_show_no_pod_what_policies_forbid(site):  # noqa: F811
    """Once, the rules compared no MAC in an established connection, and none in packets that the sender's policies
    allow. Two pods with raw sockets exchanged data."""
    to_c = [{"to": [{"ipBlock": {"cidr": f"{address}/{32 if '.' in address else 128}"}} for address in ADDRESSES["c"]]}]
    site.write({**NO_EGRESS, "spec": {**NO_EGRESS["spec"], "egress": to_c}}, NO_INGRESS)
    macs = {"a pod's": MAC_B, "no pod's": "02:00:00:00:99:99", "all": frames.BROADCAST}
    for egress, app, passes in (("any", "web", True), ("none", "web", False), ("any", "db", False)):
        site.add("a", egress=egress)
        site.add("b", app=app)
        sent = {}
        for own, other, make in zip(ADDRESSES["a"], ADDRESSES["c"], (ipv4, ipv6), strict=True):
            for port in (6000, 6001):               # the connection from port 6001 is established
                flow = make(MAC_A, own, other, udp(source=port), to=MAC_C)
                answer = make(MAC_C, other, own, udp(source=80, destination=port), to=MAC_A)
                if port == 6001:
                    assert site.arrived({"flow": flow}, "a", "c", "b") == {"flow"}
                    assert site.arrived({"answer": answer}, "c", "a", "b") == {"answer"}
                for name, mac in macs.items():
                    sent[f"{own} from port {port} to {name}"] = make(MAC_A, own, other, udp(source=port), to=mac)
        assert arrived(sent, *site.names("a", "b"), frames.arp(MAC_A, MAC_A, ADDRESSES["a"][0])) == (
            {*sent} if passes else set())
        assert site.node.reached({("a", ADDRESSES["c"][0], TCP, 80)}, {("a", ADDRESSES["c"][0], TCP, 80)})
        for name in "ab":
            site.call("DEL", name)


def test_a_pod_without_restrictions_may_route_for_others(site):  # noqa: F811
    """For example, the pod is a gateway of other pods on the bridge."""
    site.write(NO_EGRESS)
    site.add("a")
    site.add("b")
    sent = {"IPv4": ipv4(MAC_A, ADDRESSES["a"][0], "8.8.8.8", udp(), to=MAC_B),
            "IPv6": ipv6(MAC_A, ADDRESSES["a"][1], "2001:db8::8", udp(), to=MAC_B)}
    assert site.arrived(sent, "a", "b", "c") == set(sent)


def test_a_routed_link_that_is_made_again_is_held_by_its_name(site):  # noqa: F811
    """A new link has another index, so the rules with the old index do not match. The rules with the link's name must
    match."""
    site.add("d")
    site.add("c")
    assert eventually(lambda: {("inet", "link-senders4"), ("inet", "link-senders6")} <= elements().keys())
    mac, route = mac_of_pod("d"), ("dev", "port-d")
    run("ip", "link", "del", "port-d")
    run("ip", "link", "add", "port-d", "type", "veth", "peer", "eth0", "address", mac, "netns", site.names("d")[0])
    run("ip", "link", "set", "port-d", "up")
    run("ip", "link", "set", "eth0", "up", netns=site.names("d")[0])
    for address in ADDRESSES["d"]:
        run("ip", "route", "add", address, *route)
    sent = {source: ipv4(mac, source, ADDRESSES["c"][0], udp(), to=site.gateway_mac("d"))
            for source in (ADDRESSES["d"][0], ADDRESSES["b"][0], "8.8.8.8")}
    assert site.arrived(sent, "d", "c", "b") == {ADDRESSES["d"][0]}


def test_a_link_that_is_made_again_is_held_by_its_name(site):  # noqa: F811
    """The rules compare a link's index first, and a new link has another index."""
    site.add("a")
    for name in "bc":
        site.add(name)
    assert eventually(lambda: {("bridge", "senders4"), ("bridge", "receivers6")} <= elements().keys())
    run("ip", "link", "del", "port-a")
    run("ip", "link", "add", "port-a", "master", "br0", "type", "veth", "peer", "eth0", "address", MAC_A, "netns",
        site.names("a")[0])
    run("ip", "link", "set", "port-a", "up")
    run("ip", "link", "set", "eth0", "up", netns=site.names("a")[0])
    pod = frames.Pod(MAC_A, ADDRESSES["a"], ADDRESSES["b"], NODE[0], MAC_C)
    own = pod.own()
    assert site.arrived({**pod.forged(), **own}, "a", "b", "c") == set(own)


# -- sets of fixed size ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("size", [1, 3])
def test_pods_that_do_not_fit_into_the_sets_of_fixed_size_are_held_and_reached(site, monkeypatch, size):  # noqa: F811
    """These sets only save time. If the agent added one element too many, the kernel would reject the transaction, and
    the ADD would fail."""
    site.stop()
    for module in (state, ruleset):
        monkeypatch.setattr(module, "MAX_FAST", size)
    site.start()
    site.write(NO_INGRESS)
    for name in "abcd":
        site.add(name)
    for _ in range(2):
        assert eventually(lambda: {each: len(elements().get(each, ())) for each in FAST_SETS} == {
            (family, name): min(size, (1 if family == "inet" else 3) * (2 if name.endswith("6") else 1))
            for family, name in FAST_SETS})     # only d has a routed link; each pod also has a link-local address
        for name, mac in (("a", MAC_A), ("b", MAC_B)):
            other = "b" if name == "a" else "a"
            pod = frames.Pod(mac, ADDRESSES[name], ADDRESSES[other], NODE[0], MAC_C)
            own = pod.own()
            assert site.arrived({**pod.forged(), **own}, name, other, "c") == set(own)
        asked = {(one, address, TCP, 80) for one in "abcd" for other in "abcd" if one != other
                 for address in ADDRESSES[other]}
        assert site.node.reached(asked, asked) == asked
        for name in "ba":               # elements of other pods take the free places in the sets
            site.call("DEL", name)
            site.add(name)
    assert not [event for event in site.events() if "fail" in event or "error" in event]
    site.stop()                         # the next agent makes sets of another size
    monkeypatch.undo()
    site.start()
    for family, name in FAST_SETS:
        listed = "nft", "list", "set", family, TABLE, name
        assert eventually(lambda listed=listed: f"size {state.MAX_FAST}\n" in run(*listed))
