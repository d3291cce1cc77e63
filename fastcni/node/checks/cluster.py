"""Check cluster-wide addresses: the store, dead nodes, ranges."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Sequence

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster import stores
from fastcni.kit.ipam.cluster.contract import DEAD
from fastcni.node import confs
from fastcni.node.attachments.address_dirs import cluster_dirs
from fastcni.node.checks.denied import denied
from fastcni.node.checks.findings import ERROR, NEARLY, WARNING, Finding, Node, plural
from fastcni.node.cluster.site import ClusterNetwork, ranges_of, stores_of
from fastcni.node.cluster.state import held
from fastcni.node.cluster.survey import Survey, node_views, survey
from fastcni.spec import address


def cluster_addresses(node: Node) -> Iterator[Finding]:
    """Stores of cluster-wide addresses answer, have no dead node, and their ranges have free addresses. This node has \
blocks only of spaces that a network here uses."""
    for networks in stores_of(node.networks):
        first = networks[0]
        store = stores.open_store(first.keys.store)
        try:
            found = survey(store)
        except Away as e:
            if denied(e):
                node.unseen.append(f"cluster-wide addresses: {first.where}: {e}")
                continue
            yield Finding(WARNING, f"the store of network {first.name} ({first.where}) does not answer: {e}",
                          "pods still get addresses of this node's blocks; ADD fails when these blocks are full",
                          "start the store, or correct `store` in the network's configuration")
            continue
        finally:
            store.close()
        yield from dead_nodes(found, first.keys.node)
        for network in networks:
            yield from full_ranges(network, found)
    yield from unused_spaces(node)


def unused_spaces(node: Node) -> Iterator[Finding]:
    """Yield a finding for each address space of which this node has blocks, but which no network and no pod here uses.
    """
    used = {(os.path.normpath(it.keys.data_dir), it.keys.space) for one in stores_of(node.networks) for it in one}
    for it in held(cluster_dirs(confs.values_of(node.networks)), node.unseen):
        if (os.path.dirname(it.directory), it.space) not in used and not it.addresses:
            yield Finding(WARNING, f"this node, {it.node}, has {plural(it.blocks, 'block')} of space {it.space} of "
                          f"{it.where}, and no network here uses that space", "no other node can give their addresses",
                          "put the network's file back, so that the server returns the blocks; or, if no pod here has "
                          f"such an address, fastcni ipam forget-node {it.node} on another node, then rm -r "
                          f"{it.directory}")


def dead_nodes(found: Survey, own: str) -> Iterator[Finding]:
    """Yield a finding for each node that was declared dead."""
    for view in node_views(found):
        if view.node.state != DEAD:
            continue
        name = view.node.name
        if name == own:
            yield Finding(ERROR, f"this node, {name}, was declared dead in the store", "this node gets no new block; "
                          "after `fastcni ipam forget-node`, other pods may get its addresses", "systemctl restart "
                          "fastcni.service lets the node join again, as does the next ADD; see `fastcni ipam nodes`")
        else:
            yield Finding(WARNING, f"node {name} is dead; {plural(view.blocks, 'block')} of it "
                          f"{'is' if view.blocks == 1 else 'are'} in quarantine", "no node gives these addresses",
                          f"if its pods have stopped: fastcni ipam forget-node {name}")


def full_ranges(network: ClusterNetwork, found: Survey) -> Iterator[Finding]:
    """Yield a finding for each range of a network that is full or nearly full. Addresses in quarantine count as
    held."""
    for one in ranges_of(network):
        held = count(found, network.keys.space, one.first, one.last, one.bits)
        total = one.size()
        if held >= total * NEARLY:
            full = held >= total
            yield Finding(ERROR if full else WARNING, f"range {one} of network {network.name} is "
                          f"{'' if full else 'nearly '}full: {held} of {total} addresses are held in the cluster",
                          "ADD fails without a free address",
                          "enlarge the range; `fastcni ipam list --addresses` shows the pods with these addresses")


def count(found: Survey, space: str, first: int, last: int, bits: int) -> int:
    """Return how many addresses of a space from `first` to `last` are held. bits: 32 or 128."""
    held: Sequence[str] = [holder.address for it in found.blocks if it.block.space == space
                           for holder in it.holders if holder.state != "refused"]
    return sum(first <= int(ipaddress.ip_address(ip)) <= last for ip in held
               if len(address.read_ip(ip)) * 8 == bits)
