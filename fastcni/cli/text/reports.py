"""Format a command's Report as text for a terminal, or as a JSON document for programs."""

from collections.abc import Iterable
from typing import Any

from fastcni.runtime import Collected, Deleted, GcReport, Judged, NetworkList, PluginConf, Report, RuntimeConf

Document = dict[str, Any]

SUCCESS = {                 # all plugins succeeded
    "CHECK": "{it} is as ADD made it; checked by {plugins}",
    "DEL": "{it} is deleted by {plugins}",
    "STATUS": "{it} is ready; checked by {plugins}",
}
UNCERTAIN = {               # texts if all plugins succeeded without a prevResult
    "CHECK": "{it}: {plugins} found no fault, but {unknown}",
    "DEL": "{it}: DEL of {plugins} succeeded, but {unknown}",
}
SKIPPED = {
    "CHECK": "{it} was not checked: {why}",
    "STATUS": "{it}: readiness unknown, no plugin was called: {why}",
}


def attachment(net: NetworkList, rt: RuntimeConf) -> str:
    return f"{rt.ifname} of container {rt.container_id} in network {net.name}"


def sentence(command: str, what: str, report: Report) -> str:
    """Return a line that reports a command. what: the network or attachment as text."""
    if report.skipped:
        return SKIPPED[command].format(it=what, why=report.skipped)
    form = (UNCERTAIN if report.unknown else SUCCESS)[command]
    return form.format(it=what, unknown=report.unknown, plugins=types(report.called))


def document(command: str, net: NetworkList, report: Report) -> Document:
    return {"command": command, "network": net.name, "cniVersion": net.version,
            "called": [plugin_document(plugin) for plugin in report.called],
            "skipped": report.skipped, "unknown": report.unknown}


def plugin_document(plugin: PluginConf) -> Document:
    return {"index": plugin.index, "type": plugin.type, "file": plugin.file}


def types(plugins: Iterable[PluginConf]) -> str:
    return ", ".join(plugin.type for plugin in plugins)


# GC ----------------------------------------------------------------------------------------------

def gc_lines(net: NetworkList, report: GcReport) -> list[str]:
    """Return lines that report a GC: a line for each attachment, each plugin and each released object, then the
    totals."""
    if report.skipped:
        return [f"network {net.name}: nothing was released: {report.skipped}"]
    lines = [f"kept          {name(it)}  ({it.why})" for it in report.kept]
    lines += [deleted_line(it, report.dry_run) for it in report.deleted]
    if report.dry_run:
        lines.append(f"would call    {types(it.plugin for it in report.plugins if not it.skipped) or 'no plugin'}"
                     "  (each would release all but the kept attachments)")
    for it in report.plugins:
        lines += plugin_lines(it, report.dry_run)
    if report.error:
        lines.append(f"FAILED        {report.error}")
    return [*lines, summary(net, report)]


def name(outcome: Judged | Deleted) -> str:
    return f"{outcome.attachment.container_id} {outcome.attachment.ifname}"


def deleted_line(deleted: Deleted, dry_run: bool) -> str:
    if deleted.error:
        return f"FAILED        {deleted.error}"
    return f"{'would delete' if dry_run else 'deleted'}{' ' * (2 if dry_run else 7)}{name(deleted)}  ({deleted.why})"


def plugin_lines(collected: Collected, dry_run: bool) -> list[str]:
    kind = collected.plugin.type
    if collected.error:
        return [f"FAILED        {collected.error}"]
    if collected.skipped:
        return [f"{'would skip  ' if dry_run else 'not called  '}  {kind}: {collected.skipped}"]
    if dry_run:
        return []
    if collected.released is None:
        return [f"called        {kind}: the plugin does not report what it released"]
    lines = [f"called        {kind}: released {len(collected.released) or 'nothing'}"]
    for one in collected.released:
        by = f"{one.plugin}: " if one.plugin != kind else ""
        lines.append(f"  released    {by}{one.what}{f'  ({one.of})' if one.of else ''}")
    return lines


def summary(net: NetworkList, report: GcReport) -> str:
    failed = len(report.errors)
    deleted = sum(not it.error for it in report.deleted)
    attachments = f"network {net.name}: attachments kept {len(report.kept)}, deleted {deleted}"
    if report.dry_run:
        return f"{attachments}; dry run, no plugin was called"

    released = sum(len(it.released or ()) for it in report.plugins)
    return f"{attachments}; other things released {released}; failed {failed}"


def gc_document(net: NetworkList, report: GcReport) -> Document:
    return {"command": "GC", "network": net.name, "cniVersion": net.version, "dryRun": report.dry_run,
            "skipped": report.skipped,
            "kept": [attachment_document(it) for it in report.kept],
            "deleted": [attachment_document(it) | error_document(it) for it in report.deleted],
            "plugins": [collected_document(it, report.dry_run) for it in report.plugins],
            **error_document(report)}


def attachment_document(outcome: Judged | Deleted) -> Document:
    return {"containerID": outcome.attachment.container_id, "ifname": outcome.attachment.ifname,
            "netns": outcome.attachment.netns,
            "why": outcome.why}


def collected_document(collected: Collected, dry_run: bool) -> Document:
    released = None if collected.released is None else [
        {"plugin": one.plugin, "what": one.what, "of": one.of} for one in collected.released]
    return {**plugin_document(collected.plugin), "called": not (collected.skipped or dry_run),
            "skipped": collected.skipped,
            "released": released, **error_document(collected)}


def error_document(outcome: Deleted | Collected | GcReport) -> Document:
    return {"error": outcome.error.as_document()} if outcome.error else {}
