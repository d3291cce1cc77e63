"""The command `fastcni gc`: release those resources of a network that belong to no living attachment."""

import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from fastcni.cli.options.settings import Settings, network_command
from fastcni.cli.text import reports
from fastcni.cli.text.output import put_document, put_lines
from fastcni.node.attachments import inventory
from fastcni.node.attachments.attachment import RUNNING
from fastcni.node.attachments.cache_dirs import known_cache_dirs
from fastcni.runtime import CNI, GcReport, collect
from fastcni.runtime.records import Attachment
from fastcni.runtime.report import Judged
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError


@click.command()
@network_command(netns_required=False)
@click.option("--dry-run", is_flag=True, help="Show which attachments would be kept and deleted. Call no plugin.")
@click.option("--valid", multiple=True, metavar="CONTAINERID/IFNAME",
              help="Keep this attachment, even if it is not in the cache; may be repeated.")
@click.option("--all", "everything", is_flag=True,
              help="Also delete attachments whose network namespace exists. Asks first, or needs --yes.")
@click.option("--yes", "-y", is_flag=True, help="Confirm --all.")
def gc(settings: Settings, dry_run: bool, valid: Sequence[str], everything: bool, yes: bool) -> int:
    """Release the addresses, rules and files of deleted pods of NET. NETNS is not used.

    First, cached attachments whose network namespace no longer exists get DEL. Then each plugin gets the list of
    attachments to keep, and releases everything else: addresses, firewall rules, files. If the network's CNI version is
    below 1.1.0, the command calls only fastcni's own plugins.

    Start no container of NET while the command runs, because a running ADD is not in the list yet. The exit status is 1
    if anything failed.
    """
    pairs = [read_valid(text) for text in valid]
    report = collected(settings, pairs, dry_run, everything, yes)
    if not settings.as_json:
        put_lines(reports.gc_lines(settings.net, report))
    else:
        put_document(reports.gc_document(settings.net, report))
    return 1 if report.errors else 0


def collected(settings: Settings, pairs: Sequence[tuple[str, str]], dry_run: bool, everything: bool,
              yes: bool) -> GcReport:
    cni, net = settings.cni, settings.net
    if net.disable_gc:
        return GcReport(skipped="disableGC is true", dry_run=dry_run)
    remembered, directory = cni.attachments(), cni.cache.results()
    plan = collect.make_plan(remembered, net.name, pairs, everything, known_cache_dirs((), cni.conf_dir)[1:])
    if not everything:
        refuse_blind(net.name, plan, directory, collect.unread_files(directory, net.name, remembered))
        plan = replace(plan, kept=(*plan.kept, *without_result(cni, net.name)))
    if dry_run:
        return collect.rehearse(cni, net, plan)
    if everything and not yes:
        ask(net.name, plan, settings.as_json)
    return collect.run(cni, net, plan)


def without_result(cni: CNI, network: str) -> tuple[Judged, ...]:
    """Return the running attachments of a network whose cached result was lost."""
    own, *of_multus = known_cache_dirs((), cni.conf_dir)
    places = inventory.Places(cni.conf_dir, (cni.cache.directory or own, *of_multus))
    return tuple(Judged(Attachment(it.container_id, network, it.ifname), f"{it.why}; no result is cached")
                 for it in inventory.collect(places).attachments
                 if it.network == network and it.ifname and it.state == RUNNING and not it.cached)


def refuse_blind(network: str, plan: collect.Plan, directory: str, unread: Sequence[str]) -> None:
    """Raise CniError if the result cache does not show which attachments exist, because GC would then release too much.
    directory: the cache's directory. unread: cache files that cannot be read."""
    if unread:
        raise CniError(errors.IO_FAILURE, f"nothing was released: {unread[0]} cannot be read",
                       f"such files of network {network}: {len(unread)}; remove those of dead containers, "
                       "or release everything with --all --yes")
    if not (plan.kept or plan.stale or plan.valid):
        raise CniError(errors.INVALID_ENVIRONMENT, f"nothing was released: no attachment of network {network} is "
                       f"cached in {directory}",
                       "the runtime may have another cache (--cache-dir), or none; name living "
                       "attachments with --valid, or release everything with --all --yes")


def ask(network: str, plan: collect.Plan, as_json: bool) -> None:
    """Ask the user to confirm the GC. Raise click.Abort if the answer is no, CniError without a terminal."""
    if as_json or not sys.stdin.isatty():
        raise CniError(errors.INVALID_ENVIRONMENT, "--all also deletes attachments of running containers",
                       "confirm with --yes; --dry-run shows the attachments")
    click.confirm(f"Delete every attachment of network {network} ({len(plan.stale)} are cached), also of running "
                  "containers?", abort=True)


def read_valid(text: str) -> tuple[str, str]:
    """Return (container id, ifname) of the text of a --valid option. Raise CniError for another form."""
    container_id, slash, ifname = text.partition("/")
    if not (container_id and slash and ifname):
        raise CniError(errors.INVALID_ENVIRONMENT,
                       f"--valid: expected CONTAINERID/IFNAME, got {json.quote(text)}")
    return container_id, ifname
