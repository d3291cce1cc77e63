"""A program of the node renames the link of a pod's port, and the rules of the port follow. Needs root for the real
kernel."""

import sys
from types import SimpleNamespace

import pytest
from unit.agent.policy.pods import ADDRESSES, mac_of_pod
from unit.agent.policy.test_leaving import forgotten, policed
from unit.agent.policy.test_ports import FROM_C, elements, site, to  # noqa: F401

from fastcni.agent.policy import state
from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.ports import Port
from fastcni.kernel.nft_elements import read_ifname
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

ONE, TWO = read_ip("10.0.0.1"), read_ip("10.0.0.2")
HOST_MAC, OTHER_MAC = bytes((2, 0, 0, 0, 1, 1)), bytes((2, 0, 0, 0, 1, 2))


def rename(old, new):
    try:
        run("ip", "link", "set", old, "name", new)
    except AssertionError as e:
        if "busy" in str(e):
            pytest.skip("Linux before 6.2 renames no link that is up")
        raise


def sent(site, name, gateway):                                  # noqa: F811
    """Return {title: frame} of frames from the pod to b: one with its own address, two with other addresses."""
    own = ADDRESSES[name]
    return {source: to(ADDRESSES["b"][0], (source, ""), mac_of_pod(name), gateway)
            for source in (own[0], ADDRESSES["c"][0], "8.8.8.8")}


def held(port):
    """Return whether the kernel's sets contain a bridge port or a routed link of this name."""
    return any(port in elements().get(where, ()) for where in (("bridge", "ports"), ("inet", "links")))


@pytest.mark.parametrize("name", "ad")
@pytest.mark.parametrize("away", [False, True])
def test_a_pod_is_held_at_its_renamed_link(site, name, away):   # noqa: F811
    """Once, the elements kept the link's earlier name. The renamed link let all packets pass, and a DEL forgot the pod
    before its link was deleted."""
    assert eventually(lambda: site.it.ready)
    before = policed()
    site.add("b")
    site.add(name)
    frames = sent(site, name, site.gateway_mac(name) if name == "d" else mac_of_pod("b"))
    if away:
        site.stop()
    rename(f"port-{name}", "renamed")
    if away:
        site.start()
    assert eventually(lambda: held("renamed")) and not held(f"port-{name}")
    assert site.arrived(frames, name, "b", "c") == {ADDRESSES[name][0]}
    site.call("DEL", name)
    assert site.arrived(frames, name, "b", "c") == {ADDRESSES[name][0]}
    run("ip", "link", "del", "renamed")
    assert forgotten(site, name)
    site.delete("b")
    assert eventually(lambda: policed() == before)


# -- whose link it is --------------------------------------------------------------------------------------------------

def link(name, index, mac=HOST_MAC):
    return SimpleNamespace(name=name, index=index, address=mac)


def attachment(container, packed, name, index, mac=HOST_MAC, sequence=1):
    port = Port(name, True, bytes(6), index=index, link_mac=mac)
    return Attachment(("net", container, "eth0"), f"default/{container}", {}, (packed,), sequence, port)


def followed(links, *attachments):
    """Let the agent read the links. Return {container: (name, index) of its port, or None}. Assert that the kernel's
    set contains the ports' names."""
    it = AttachedCompiler()
    for each in attachments:
        it.attach(each)
    it.follow(links)
    assert it.follow(links) == []
    names = {read_ifname(key) for key in it.state.elements["ports"]}
    assert names == {each.port.name for each in it.attachments.values() if each.port}
    return {each.id[1]: each.port and (each.port.name, each.port.index) for each in it.attachments.values()}


def senders(it):
    """Return the link indexes in senders4, a set of fixed size."""
    return {int.from_bytes(key[:4], sys.byteorder) for key in it.state.elements["senders4"]}


def test_a_port_whose_index_changes_stays_in_a_full_set_and_a_port_that_leaves_makes_room(monkeypatch):
    """Once, the agent added the element of the new index before it removed the old element. A full set then lost
    both."""
    monkeypatch.setattr(state, "MAX_FAST", 1)
    it, indexes = AttachedCompiler(), {"veth1": 3, "veth2": 4}
    it.link_of = indexes.get
    it.attach(attachment("a", ONE, "veth1", 3))
    it.attach(attachment("b", TWO, "veth2", 4))
    assert senders(it) == {3}
    it.take()
    indexes["veth1"] = 7
    it.follow([link("veth1", 7), link("veth2", 4)])
    assert senders(it) == {7}
    change = it.take()
    assert len(change.added["senders4"]) == len(change.removed["senders4"]) == 1
    it.detach(("net", "a", "eth0"))
    assert senders(it) == {4}


def test_links_that_exchange_their_names_keep_their_pods():
    first, second = attachment("a", ONE, "veth1", 3), attachment("b", TWO, "veth2", 4, OTHER_MAC)
    assert followed([link("veth2", 3), link("veth1", 4, OTHER_MAC)], first, second) == {
        "a": ("veth2", 3), "b": ("veth1", 4)}


def test_a_link_with_the_index_of_a_deleted_link_is_not_the_pods():
    """After a reboot a new link may have the index, or a link from another namespace may get it."""
    assert followed([link("other", 3, OTHER_MAC)], attachment("a", ONE, "veth1", 3)) == {"a": ("veth1", 3)}


def test_a_link_that_was_made_again_is_found_by_its_name():
    assert followed([link("veth1", 9, OTHER_MAC)], attachment("a", ONE, "veth1", 3)) == {"a": ("veth1", 9)}
    assert followed([link("veth1", 9)], attachment("a", ONE, "veth1", 0, b"")) == {"a": ("veth1", 9)}


def test_a_pod_whose_link_is_gone_lends_its_addresses_to_no_link_that_got_the_name():
    gone, renamed = attachment("a", ONE, "veth1", 3), attachment("b", TWO, "veth2", 4, OTHER_MAC)
    assert followed([link("veth1", 4, OTHER_MAC)], gone, renamed) == {"a": None, "b": ("veth1", 4)}


def test_a_renamed_link_is_of_its_latest_pod():
    """An ADD used the link's new name before the agent saw the rename."""
    former, latest = attachment("b", ONE, "veth1", 3), attachment("a", TWO, "renamed", 3, sequence=2)
    assert followed([link("renamed", 3)], former, latest) == {"a": ("renamed", 3), "b": None}
