"""After a pod's DEL, the agent enforces the pod's rules until the pod's link no longer exists. Needs root.

`policy` is the last plugin of a network, so its DEL comes first. The link still exists, and the DEL of `bridge` may
fail.
"""

import os
from time import monotonic

import pytest
from unit.agent.policy.frames import ipv4, udp
from unit.agent.policy.pods import ADDRESSES, batch, mac_of_pod
from unit.agent.policy.test_ports import FROM_C, NO_EGRESS, elements, site  # noqa: F401
from unit.agent.policy.test_service import WEB_ONLY, allowed

from fastcni.agent.policy import leaving
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually


@pytest.fixture
def it(site):                                                   # noqa: F811
    site.write(WEB_ONLY)
    assert eventually(lambda: site.it.ready)
    return site


def unlink(name):
    run("ip", "link", "del", f"port-{name}")


def files(it):
    return {name.split("@")[1] for name in os.listdir(it.settings.state)}


def policed():
    """Return the elements of the pods' sets, except the sets that count ICMP errors: packets add elements to these."""
    return {where: found for where, found in elements().items() if not where[1].startswith("errors")}


def forgotten(it, name):
    """Return whether the agent soon forgets the pod's attachment and deletes its file."""
    return eventually(lambda: ("net", f"c-{name}", "eth0") not in it.it.compiler.attachments
                      and f"c-{name}" not in files(it))


@pytest.mark.parametrize("name", "ad")
def test_a_pod_is_held_after_its_del_until_its_link_is_gone(site, name):      # noqa: F811
    """Once, the pod's forged packets passed, and packets that its policies forbid. If the DEL of `bridge` failed, they
    passed for ever."""
    site.write(FROM_C, NO_EGRESS)
    assert eventually(lambda: site.it.ready)
    before = policed()
    site.pod(name, runtimeConfig={"labels": {"egress": "none"}})
    gateway = site.gateway_mac(name)
    sent = {source: ipv4(mac_of_pod(name), source, ADDRESSES["c"][0], udp(), to=gateway)
            for source in (ADDRESSES["b"][0], "8.8.8.8", ADDRESSES[name][0])}
    site.call("DEL", name)
    site.call("DEL", name)
    site.call("GC")
    assert site.arrived(sent, name, "c", "b") == set()
    unlink(name)
    assert forgotten(site, name)
    assert eventually(lambda: policed() == before)


def test_nothing_more_reaches_a_pod_after_its_del(it):
    it.add("a", app="web")
    it.add("b", app="db")
    for name in "ab":
        it.call("DEL", name)
    assert allowed(it.node, "a")
    assert it.call("GC").released == []
    assert allowed(it.node, "a")


def test_a_pod_without_a_link_is_forgotten_when_its_del_answers(it):
    for name in "ac":
        it.add(name)
        unlink(name)
    it.call("DEL", "a")
    assert files(it) == {"c-c"} and len(it.it.compiler.attachments) == 1
    assert [each["what"] for each in it.call("GC").released] == ["policies of c-c eth0"]
    assert files(it) == set() and not it.it.compiler.attachments


def test_the_agent_looks_for_the_link_without_an_event(it, monkeypatch):
    monkeypatch.setattr(leaving, "MAX_LINK_WAIT_S", leaving.LINK_WAIT_S)
    it.add("a")
    it.call("DEL", "a")
    it.ended.set()
    it.thread.join()
    it.it.attend()
    assert it.it.due <= monotonic() + leaving.LINK_WAIT_S


def test_a_repeated_del_forgets_a_pod_whose_link_is_gone_when_it_answers(it, monkeypatch):
    """The first DEL of `bridge` failed, so the runtime repeats the pod's DEL."""
    monkeypatch.setattr(leaving, "LINK_WAIT_S", 60)
    it.add("a")
    it.call("DEL", "a")
    it.call("DEL", "a")
    assert files(it) == {"c-a"}
    unlink("a")
    it.call("DEL", "a")
    assert files(it) == set() and not it.it.compiler.attachments


def test_a_restarted_agent_holds_a_pod_whose_del_came_until_its_link_is_gone(it):
    it.add("b", app="db")
    it.add("a")
    it.call("DEL", "b")
    it.stop()
    it.start()
    assert eventually(lambda: it.it.ready)
    assert allowed(it.node)
    unlink("b")
    unlink("a")
    assert forgotten(it, "b")
    assert files(it) == {"c-a"}                                 # pod a had no DEL


def test_a_link_that_goes_while_no_agent_runs_is_seen_at_its_start(it):
    it.add("b", app="db")
    it.call("DEL", "b")
    it.stop()
    unlink("b")
    it.start()
    assert forgotten(it, "b")


def test_another_link_of_the_same_name_is_not_the_pods(it):
    it.add("a")
    it.call("DEL", "a")
    it.stop()
    batch(None, "link del port-a", "link add port-a type veth peer name peer-a")
    it.start()
    assert forgotten(it, "a")


@pytest.mark.parametrize("deleted", [True, False])
def test_the_port_of_a_pod_whose_address_another_pod_gets_is_closed_until_its_link_is_gone(it, deleted):
    """Once, the agent released the earlier pod's port. That pod could send any packet, from any address."""
    it.add("a")
    if deleted:
        it.call("DEL", "a")
    it.call("ADD", "d", prevResult={
        "cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24", "interface": 1}],
        "interfaces": [{"name": "port-d"}, {"name": "eth0", "sandbox": "/pod", "mac": mac_of_pod("d")}]})
    sent = {source: ipv4(mac_of_pod("a"), source, ADDRESSES["c"][0], udp(), to=it.gateway_mac("a"))
            for source in (ADDRESSES["a"][0], "8.8.8.8")}
    for _ in range(2):                                          # before and after a restart of the agent
        assert eventually(lambda: files(it) == {"c-a", "c-d"})
        assert it.arrived(sent, "a", "c", "b") == set()
        it.stop()
        it.start()
        assert eventually(lambda: it.it.ready)
    unlink("a")
    assert forgotten(it, "a")
    assert files(it) == {"c-d"} and len(it.it.compiler.attachments) == 1


def test_an_add_after_the_del_of_the_same_attachment_is_the_latest_of_its_pod(it):
    """Once, the ADD kept the attachment's earlier place in the order of ADDs, and its labels did not count."""
    for name, app in (("a", "db"), ("b", "web")):
        it.call("ADD", name, "K8S_POD_NAME=again", runtimeConfig={"labels": {"app": app}})
    it.call("DEL", "a")
    assert it.it.compiler.cluster.pods["default/again"].labels == {"app": "web"}
    it.call("ADD", "a", "K8S_POD_NAME=again", runtimeConfig={"labels": {"app": "db"}})
    assert it.it.compiler.cluster.pods["default/again"].labels == {"app": "db"}
    it.call("CHECK", "a", "K8S_POD_NAME=again")
    for name in "ab":
        unlink(name)
    it.call("DEL", "b")
    assert files(it) == {"c-a"}                                 # pod a has had a newer ADD since its DEL
