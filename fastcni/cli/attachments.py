"""The commands that show attachments: `fastcni list`, `fastcni inspect` and `fastcni adopt`."""

from __future__ import annotations

from collections.abc import Iterable

import click

from fastcni.cli.options import completion
from fastcni.cli.options.node import node_command
from fastcni.cli.text import inventory
from fastcni.cli.text.output import printable, put_document
from fastcni.kit.call.similar import meant
from fastcni.node import confs
from fastcni.node.attachments import documents
from fastcni.node.attachments.adopt import FAILED
from fastcni.node.attachments.adopt import adopt as run_adopt
from fastcni.node.attachments.attachment import STATES, Inventory
from fastcni.node.attachments.inspect import find, inspect_one
from fastcni.node.attachments.inventory import Places, collect
from fastcni.runtime.records import LO_IFNAME


@click.command(name="list")
@click.option("--network", "networks", multiple=True, metavar="NET", shell_complete=completion.networks,
              help="Print only this network; may be repeated.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES),
              help="Print only this state; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Also print the loopback interfaces (lo) of pods.")
@node_command
def list_attachments(places: Places, as_json: bool, networks: tuple[str, ...], states: tuple[str, ...],
                     everything: bool) -> None:
    """List the attachments of this node, with their state.

    \b
    running   the network namespace exists
    gone      the network namespace does not exist any more
    orphaned  only address files or rules of an ADD exist
    unknown   this node does not show whether the pod runs
    """
    found = collect(places)
    warn_of_unknown(networks, found, places.conf_dir)
    chosen = [it for it in found.attachments if (everything or it.ifname != LO_IFNAME)
              and (not networks or it.network in networks) and (not states or it.state in states)]
    if not as_json:
        inventory.print_list(chosen, found, filtered=bool(networks or states))
    else:
        put_document({"attachments": [documents.attachment(it) for it in chosen],
                      "unowned": [documents.unowned(it) for it in found.unowned], "unseen": list(found.unseen)})


def warn_of_unknown(networks: Iterable[str], found: Inventory, conf_dir: str) -> None:
    """Print a warning for each network name that no configuration and no attachment has."""
    known = {it.name for it in confs.networks(confs.read_quietly(conf_dir, []))} | {
        it.network for it in found.attachments}
    for name in networks:
        if name not in known:
            hint = meant(name, known)
            click.echo(printable(f"no attachment or valid configuration has the network {name}"
                                 f"{'; ' if hint else ''}{hint}"), err=True)


@click.command(name="inspect")
@click.argument("attachment", shell_complete=completion.pods)
@click.option("--network", default="", metavar="NET", shell_complete=completion.networks,
              help="The attachment's network, needed if multus made the interface.")
@node_command
def inspect(places: Places, as_json: bool, attachment: str, network: str) -> None:
    """Show everything about one ATTACHMENT.

    The output has the attachment's result, configuration, files, rules, links and counters. ATTACHMENT is the beginning
    of a container id, CONTAINERID/IFNAME, or NAMESPACE/NAME of a pod. CONTAINERID/lo is a pod's loopback interface,
    which `fastcni list --all` shows.
    """
    found = collect(places)
    it = find(found, attachment, network)
    details = inspect_one(it)
    if not as_json:
        inventory.print_details(it, details, found.unseen)
    else:
        put_document({**documents.attachment(it), **details.as_document(), "unseen": list(found.unseen)})


@click.command()
@click.option("--dry-run", is_flag=True, help="Show the attachments, and build no index.")
@node_command
def adopt(places: Places, as_json: bool, dry_run: bool) -> int:
    """Show which attachments fastcni recognises, and build indexes.

    An index speeds up the search in a directory of host-local's files. Use the command after `fastcni install`, on a
    node with pods of the Go plugins. The command changes no pod: fastcni can check and delete these pods as they are.
    The exit status is 1 if fastcni could not build an index.
    """
    done = run_adopt(places, dry_run=dry_run)
    if not as_json:
        inventory.print_adoption(done)
    else:
        put_document({
            "dryRun": dry_run,
            "attachments": [{**documents.attachment(it.attachment), "recognised": it.owned, "note": it.why or None}
                            for it in done.verdicts],
            "indexes": [{"folder": it.path, "addresses": it.addresses, "state": it.state, "error": it.error or None}
                        for it in done.directories],
            "unowned": [documents.unowned(it) for it in done.inventory.unowned],
            "unseen": list(done.inventory.unseen)})
    return 1 if any(it.state == FAILED for it in done.directories) else 0
