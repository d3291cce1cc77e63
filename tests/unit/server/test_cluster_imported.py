"""Addresses that were imported from another IPAM plugin. The server makes the files that an ADD would have made."""

import time

from fastcni.kit.ipam.cluster.contract import HELD, IMPORTED, IPClaim
from fastcni.testing.witnesses import eventually

BLOCK, ADDRESS = "10.0.0.16/28", "10.0.0.20"


def imported(node, address=ADDRESS, since=None, container="old"):
    """Import an address from whereabouts for a pod of this node. Return its IPClaim."""
    me = next(it for it in node.store.nodes() if it.name == node.name)
    node.store.share("default", BLOCK)
    return node.store.claim_address(me, IPClaim(
        space="default", address=address, block=BLOCK, state=HELD, container=container, ifname="eth0",
        pod="ns/old", network=IMPORTED, since=time.time() if since is None else since, sticky=False))


def test_an_imported_address_gets_a_file_and_del_releases_it(cluster_node):
    """The pods of whereabouts have no address file, and without one no DEL releases the address in the store."""
    node = cluster_node()
    node.add("c1")
    imported(node)
    assert eventually(lambda: node.held.get(ADDRESS) == "old")
    assert node.call("CHECK", "old", prevResult={"cniVersion": "1.1.0", "ips": [{"address": f"{ADDRESS}/24"}]})[0] == 0
    node.delete("old")
    assert node.store.ip_claims() == [] and ADDRESS not in node.held
    assert not eventually(lambda: ADDRESS in node.held, 0.3)


def test_the_file_of_an_imported_address_goes_with_its_ip_claim(cluster_node):
    node = cluster_node(list_s=0.05)
    node.add("c1")
    ip_claim = imported(node)
    assert eventually(lambda: ADDRESS in node.held)
    node.store.release_ip_claim(node.store.ip_claim("default", ip_claim.address))
    assert eventually(lambda: ADDRESS not in node.held)


def test_an_imported_address_of_before_the_reboot_is_released(cluster_node):
    node = cluster_node()
    node.add("c1")
    imported(node, since=1.0)
    assert eventually(lambda: node.store.ip_claims() == [])
    assert ADDRESS not in node.held


def test_a_clock_that_is_set_forward_releases_no_imported_address(cluster_node, monkeypatch):
    """A node without a battery-backed clock boots with an old time. By the later time, an import of this boot seems to
    be from before the boot."""
    node = cluster_node()
    node.add("c1")
    imported(node)
    assert eventually(lambda: node.held.get(ADDRESS) == "old")
    space = next(iter(next(iter(node.cluster.members.values())).spaces.values()))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 365 * 86400)
    space.ip_claims._take_imported(node.store.ip_claim("default", ADDRESS))
    monkeypatch.undo()
    assert node.store.ip_claim("default", ADDRESS) and node.held.get(ADDRESS) == "old"


def test_a_del_between_the_look_at_the_store_and_the_file_leaves_none(cluster_node, monkeypatch):
    """Once, the server made the file again after the DEL, and no later DEL removed it."""
    node = cluster_node()
    node.add("c1")
    ip_claim = imported(node)
    assert eventually(lambda: node.held.get(ADDRESS) == "old")
    space = next(iter(next(iter(node.cluster.members.values())).spaces.values()))
    ip_claim, take = node.store.ip_claim("default", ADDRESS), space.local.take_imported

    def late(one):
        node.delete("old")
        return take(one)

    monkeypatch.setattr(space.local, "take_imported", late)
    space.ip_claims._take_imported(ip_claim)
    assert node.store.ip_claims() == [] and ADDRESS not in node.held
