"""The commands `fastcni ipam`: show and repair cluster-wide addresses, which a store holds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from fastcni.cli.options.node import node_command
from fastcni.cli.text import inventory
from fastcni.cli.text import ipam as ipam_text
from fastcni.cli.text.output import Group, printable, put_document
from fastcni.node.attachments import explain as explanations
from fastcni.node.attachments.documents import attachment
from fastcni.node.attachments.inventory import Places, collect
from fastcni.node.cluster import documents
from fastcni.node.cluster import import_whereabouts as importing
from fastcni.node.cluster.repair import Forgetting, forget, plan_forget
from fastcni.node.cluster.repair import release as run_release
from fastcni.node.cluster.site import Site, grids, open_site
from fastcni.node.cluster.survey import HeldBlock, Place, node_views, places_of
from fastcni.node.cluster.whereabouts import ranges_of
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@click.group(cls=Group)
def ipam() -> None:
    """Show and repair cluster-wide addresses.

    These are the addresses of the IPAM types cluster and whereabouts. The commands ask the store that the node's
    network configurations name. If no configuration names a store, as with Multus, the commands ask the store of the
    address spaces that the node has joined, or the store in whereabouts' flat file. If several stores are left, choose
    one with --network.
    """


def site_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the store to a command. The command's function gets `site`, `places` and `as_json`
    instead of these options; the store is closed when the function has returned."""
    @click.option("--network", default="", metavar="NET", help="Use the store of this network; if no file configures a "
                  "network, the store of this address space. Needed if there are several stores.")
    @node_command
    @wraps(function)
    def command(places: Places, network: str, **options: Any) -> Any:
        with open_site(places.conf_dir, network) as site:
            return function(site=site, places=places, **options)
    return command


@ipam.command(name="list")
@click.option("--space", default="", metavar="SPACE", help="Print only this space.")
@click.option("--node", default="", metavar="NODE", help="Print only blocks and addresses of this node.")
@click.option("--addresses", is_flag=True, help="Print a row for each address, not for each block.")
@site_command
def list_blocks(site: Site, places: Places, as_json: bool, space: str, node: str, addresses: bool) -> None:
    """List spaces, their blocks, and with --addresses the holders.

    \b
    active       one node allocates the addresses of the block
    quarantine   the block of a dead node, until `forget-node` frees it
    shared       the block of no node: each address is claimed separately

    Nodes report the addresses of their blocks shortly after allocating them. JSON always has the addresses.
    """
    found = site.survey(space)
    chosen = [of_node(it, node) for it in found.blocks if not node or it.block.node == node
              or any(holder.node == node for holder in it.holders)]
    if not as_json:
        ipam_text.print_blocks(site.where, found, chosen, addresses)
    else:
        put_document(documents.blocks(site.where, found, chosen))


def of_node(held: HeldBlock, node: str) -> HeldBlock:
    """Return the block `held`; if the block is shared, only with the addresses that `node` holds."""
    if not node or held.block.node == node:
        return held
    return HeldBlock(held.block, tuple(it for it in held.holders if it.node == node))


@ipam.command()
@click.argument("address")
@click.option("--space", default="", metavar="SPACE", help="Print only this space.")
@site_command
def show(site: Site, places: Places, as_json: bool, address: str, space: str) -> None:
    """Say who has ADDRESS: pod, node, since when, block, epoch and state.

    The command also shows an address of host-local on this node. The exit status is 1 if nothing is known about the
    address.
    """
    found = places_at(site, address, space)
    here, seen = explanations.explain(places, address, ask_stores=False)
    if not found and not here:
        raise CniError(errors.INVALID_ENVIRONMENT, f"no block of {site.where} has {address}, and this node does not "
                       "know it", "`fastcni ipam list` shows the blocks; a block exists once a node has claimed it")
    if not as_json:
        for place in found:
            ipam_text.print_place(place)
        if found:
            ipam_text.print_here(here)
        else:
            inventory.print_explanations(here, seen)
    else:
        put_document({"asked": address, "found": [documents.place(it) for it in found],
                      "here": [explanations.document(it, attachment) for it in here], "unseen": list(seen.unseen)})


def places_at(site: Site, address: str, space: str) -> list[Place]:
    """Return a Place for each block of the store that contains the address. space: only this address space, "" for all.
    Raises CniError 4 for an invalid address."""
    try:
        return places_of(site.survey(space), address, space)
    except ValueError:
        raise CniError(errors.INVALID_ENVIRONMENT, f"{address} is not an IP address",
                       "give one address without a prefix length: 10.1.0.5 or fd00::5") from None


@ipam.command()
@click.argument("address")
@click.option("--space", default="", metavar="SPACE", help="The space, if several have this address.")
@click.option("--force", is_flag=True, help="Release even if the pod runs, or may run. Then two pods can get one "
                                            "address.")
@site_command
def release(site: Site, places: Places, as_json: bool, address: str, space: str, force: bool) -> None:
    """Release ADDRESS for other pods. The command fails if the address's pod runs, or may run.

    An address of a node's block must be released on that node.
    """
    found = [it for it in places_at(site, address, space) if it.holder] or places_at(site, address, space)
    if not found:
        raise CniError(errors.INVALID_ENVIRONMENT, f"no block of {site.where} has {address}",
                       "`fastcni ipam list` shows the blocks")
    if len(found) > 1:
        raise CniError(errors.INVALID_ENVIRONMENT, f"several spaces have {address}: "
                       f"{', '.join(it.space for it in found)}", "choose one with --space")
    (place,) = found
    done = run_release(site.store, place, site.node, collect(places), site.release_here, force)
    if not as_json:
        click.echo(printable(done))
    else:
        put_document({"released": documents.place(place)})


@ipam.command()
@site_command
def nodes(site: Site, places: Places, as_json: bool) -> None:
    """List the nodes: state, epoch, last heartbeat, blocks, and how many of their addresses are held and free.

    \b
    alive   sent a heartbeat within the last minute
    lost    sent no heartbeat since; keeps its blocks
    dead    was declared dead; its blocks are in quarantine
    """
    views = node_views(site.survey())
    if not as_json:
        ipam_text.print_nodes(site.where, views)
    else:
        put_document({"store": site.where, "nodes": [documents.node_view(it) for it in views]})


@ipam.command(name="forget-node")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Confirm that no pod of the node runs.")
@click.option("--dry-run", is_flag=True, help="Show what would be freed, and change nothing.")
@site_command
def forget_node(site: Site, places: Places, as_json: bool, name: str, yes: bool, dry_run: bool) -> None:
    """Remove the node NAME, which is lost or dead, and free its blocks and addresses.

    With --yes you confirm that no pod of the node runs any more. If a pod still runs, another pod can get its address.
    """
    plan = plan_forget(site.survey(), name)
    if not as_json:
        ipam_text.print_forgetting(plan, dry_run)
    if not dry_run:
        if not yes:
            confirm(plan, as_json)
        forget(site.store, plan)
    if not as_json:
        click.echo("dry run: nothing was changed" if dry_run else printable(f"node {name} is forgotten"))
    else:
        put_document(documents.forgetting(plan, dry_run))


def confirm(plan: Forgetting, as_json: bool) -> None:
    """Ask the user to confirm that the node's pods have stopped. Raises click.Abort if the answer is no, CniError
    without a terminal."""
    if as_json or not sys.stdin.isatty():
        raise CniError(errors.INVALID_ENVIRONMENT, f"nothing was freed: pods of node {plan.node.name} may still run",
                       "stop these pods, and confirm with --yes that they have stopped; --dry-run shows what would be "
                       "freed")
    click.confirm(f"Have all pods of node {plan.node.name} stopped?", abort=True)


@ipam.command(name="import-whereabouts")
@click.option("--kubeconfig", default="", metavar="FILE", help="The kubeconfig of the API server with whereabouts' "
              "objects, if the configuration names another store.")
@click.option("--namespace", default="", metavar="NAME", help="The namespace of whereabouts' objects [of the "
              "kubeconfig, kube-system].")
@click.option("--headroom", default=1, show_default=True, type=click.IntRange(0), metavar="BLOCKS",
              help="Reserve this number of blocks after each used block, for addresses that whereabouts still gives.")
@click.option("--dry-run", is_flag=True, help="Show what would be taken over, and change nothing.")
@site_command
def import_whereabouts(site: Site, places: Places, as_json: bool, kubeconfig: str, namespace: str, headroom: int,
                       dry_run: bool) -> int:
    """Take over the addresses that whereabouts has given, so that no other pod gets them.

    The command reads IPPools and OverlappingRangeIPReservations, and does not change them. The blocks of these
    addresses become shared, and fastcni claims each address for its pod. A second run takes over the addresses that
    whereabouts has given since.

    The exit status is 1 if an address could not be taken over.
    """
    source = site.read_whereabouts(kubeconfig, namespace)
    found = site.survey()
    plan = importing.make_plan(source, found, grids(site.store, ranges_of(source), dry_run), time.time(), headroom)
    lost = [] if dry_run else importing.apply(site.store, plan)
    if not as_json:
        ipam_text.print_import(plan, lost, dry_run)
    else:
        put_document(documents.imported(plan, lost, dry_run))
    return int(bool(plan.conflicts or lost))
