"""The command that lists the plugins, from what their modules say of themselves."""

from __future__ import annotations

from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastcni import plugins, third_party
from fastcni.cli.output import for_people, put_document
from fastcni.cli.show import printable
from fastcni.spec import version

COLUMNS = ("plugin", "what it does", "ADD", "CHECK", "DEL", "GC", "STATUS", "IPv4", "IPv6", "capabilities", "CNI_ARGS",
           "CNI versions")
KINDS = {"interface": plugins.INTERFACE, "ipam": plugins.IPAM, "chained": plugins.CHAINED}


@click.command(name="plugins")
@click.option("--markdown", is_flag=True, help="A Markdown table, as in docs/plugins.md.")
@click.option("--json", "as_json", is_flag=True, help="JSON, also on a terminal.")
def list_plugins(markdown: bool, as_json: bool) -> None:
    """List the plugins and what each can: commands, capabilities, CNI_ARGS, CNI versions.

    Plugins of other Python distributions are listed with fastcni's own (docs/write-a-plugin.md); --markdown has
    fastcni's only.
    """
    if markdown:
        click.echo(as_markdown())
        return
    found = third_party.register()
    third_party.load(found)
    own = [features(kind, name) for kind, table in KINDS.items() for name in table]
    if for_people(as_json):
        print_table(own, found)
    else:
        put_document([*own, *map(third_party_features, found)])


def print_table(own: list[dict[str, Any]], found: list[third_party.ThirdParty]) -> None:
    """Print the table for people, and below it where plugins of other distributions come from, or what is wrong."""
    table = Table(box=SIMPLE_HEAD)
    for column in COLUMNS:
        table.add_column(column)
    for it in [*own, *(third_party_features(plugin) for plugin in found if not plugin.problem)]:
        table.add_row(*row_of(it))
    Console().print(table)
    for plugin in found:
        click.echo(printable(f"{plugin.kind}: {plugin.distribution}" + (
            f", cannot be used: {plugin.problem}" if plugin.problem else "")))


def third_party_features(plugin: third_party.ThirdParty) -> dict[str, Any]:
    """As features(), with the distribution; of a plugin that cannot be used the reason alone, as "problem"."""
    if plugin.problem:
        return {"plugin": plugin.kind, "distribution": plugin.distribution, "problem": plugin.problem}
    kind = getattr(plugins.load(plugin.kind), "KIND", "interface")
    return {**features(kind, plugin.kind), "distribution": plugin.distribution}


def features(kind: str, name: str) -> dict[str, Any]:
    """What a plugin's module says: its first sentence, its functions, CAPABILITIES, ARGS, FAMILIES and VERSIONS."""
    module = plugins.load(name)
    about = (module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    about = about.removeprefix(f"{name}: ")
    return {
        "plugin": name, "kind": kind, "about": about.partition(". ")[0].rstrip("."),
        "gc": hasattr(module, "gc"), "status": hasattr(module, "status"),
        "families": list(getattr(module, "FAMILIES", (4, 6))),
        "capabilities": list(getattr(module, "CAPABILITIES", ())), "args": list(getattr(module, "ARGS", ())),
        "versions": list(getattr(module, "VERSIONS", version.ALL)),
    }


def rows() -> list[list[str]]:
    """The rows of fastcni's own plugins."""
    return [row_of(features(kind, name)) for kind, table in KINDS.items() for name in table]


def row_of(it: dict[str, Any]) -> list[str]:
    """What features() says as texts, one for each of COLUMNS."""
    versions = "all" if it["versions"] == list(version.ALL) else f"from {it['versions'][0]}"
    families = ["yes" if family in it["families"] else "" for family in (4, 6)]
    there = ["yes" if it[command] else "nothing to do" for command in ("gc", "status")]
    return [it["plugin"], it["about"], "yes", "yes", "yes", *there, *families, ", ".join(it["capabilities"]),
            ", ".join(it["args"]), versions]


def as_markdown() -> str:
    """The table of fastcni's own plugins, as in docs/plugins.md."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([f"`{row[0]}`", *row[1:]] for row in rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
