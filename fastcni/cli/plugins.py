"""The command `fastcni plugins`: list the plugins and the features that the plugins' modules declare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastcni import plugins, third_party
from fastcni.cli.options import completion
from fastcni.cli.text.output import json_option, printable, put_document
from fastcni.kit.call.similar import meant
from fastcni.runtime import CniError
from fastcni.spec import errors, version

COLUMNS = ("plugin", "what it does", "ADD", "CHECK", "DEL", "GC", "STATUS", "IPv4", "IPv6", "capabilities", "CNI_ARGS",
           "CNI versions")
TITLES = {"interface": "interface", "ipam": "IPAM", "chained": "chained"}


@click.command(name="plugins")
@click.argument("types", metavar="[TYPE]...", nargs=-1, shell_complete=completion.plugin_types)
@click.option("--markdown", is_flag=True, help="Print a Markdown table, as in docs/plugins.md.")
@json_option
def list_plugins(types: Sequence[str], markdown: bool, as_json: bool) -> None:
    """List the plugins, or show the features of each plugin TYPE.

    With TYPE, the output has each plugin's commands, capabilities, CNI_ARGS and CNI versions. The list includes plugins
    of other Python distributions (docs/write-a-plugin.md); with --markdown only fastcni's own plugins.
    """
    if markdown:
        click.echo(as_markdown())
        return
    found = third_party.register()
    with redirect_stdout(sys.stderr):               # a module may print during its import
        third_party.load(found)
    known = [*map(features, plugins.BUILT_IN), *map(third_party_features, found)]
    for kind in types:
        if kind not in [it["plugin"] for it in known]:
            raise CniError(errors.INVALID_ENVIRONMENT, f'unknown plugin type "{kind}"',
                           meant(kind, [it["plugin"] for it in known]))
    chosen = [it for it in known if not types or it["plugin"] in types]
    if as_json:
        put_document(chosen)
    elif types:
        for it in chosen:
            print_one(it, Console())
    else:
        print_all(chosen, Console())


def print_all(known: Sequence[dict[str, Any]], console: Console) -> None:
    """Print a table for each kind of plugin, then the plugins that cannot be used."""
    for kind, title in TITLES.items():
        table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column(title, min_width=12, no_wrap=True)
        table.add_column("what it does")
        table.add_column("capabilities", min_width=12, overflow="fold")
        for it in known:
            if it.get("kind") == kind:
                table.add_row(it["plugin"], Text(printable(it["about"] + source(it))), "\n".join(it["capabilities"]))
        console.print(table)
    for it in known:
        if "problem" in it:
            console.print(Text(printable(f"{it['plugin']}{source(it)} cannot be used: {it['problem']}")))
    console.print("Commands, CNI_ARGS and CNI versions of a plugin: fastcni plugins TYPE")


def source(plugin: dict[str, Any]) -> str:
    """Return " (NAME)" with the Python distribution of a plugin, "" for fastcni's own plugins. plugin: a result of
    features()."""
    return f" ({plugin['distribution']})" if "distribution" in plugin else ""


def print_one(plugin: dict[str, Any], console: Console) -> None:
    """Print the features of one plugin, a line for each."""
    console.print(Text(printable(f"{plugin['plugin']}{source(plugin)}"), style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2))
    if "problem" in plugin:
        table.add_row("cannot be used", Text(printable(plugin["problem"])))
    else:
        more = [command for command in ("GC", "STATUS") if plugin[command.lower()]]
        table.add_row("kind", plugin["kind"])
        table.add_row("what it does", Text(printable(plugin["about"])))
        table.add_row("commands", " ".join(["ADD", "CHECK", "DEL", *more]))
        table.add_row("addresses", " ".join(f"IPv{family}" for family in plugin["families"]))
        for name, key in (("capabilities", "capabilities"), ("CNI_ARGS", "args"), ("CNI versions", "versions")):
            table.add_row(name, " ".join(plugin[key]) or "none")
    console.print(table)


def third_party_features(plugin: third_party.ThirdParty) -> dict[str, Any]:
    """Return features() of a plugin of another distribution, and the distribution. If the plugin cannot be used, return
    only the reason, as "problem"."""
    if plugin.problem:
        return {"plugin": plugin.kind, "distribution": plugin.distribution, "problem": plugin.problem}
    return {**features(plugin.kind), "distribution": plugin.distribution}


def features(name: str) -> dict[str, Any]:
    """Return the features of a plugin's module: the first sentence of its docstring, its functions, and its constants
    CAPABILITIES, ARGS, FAMILIES and VERSIONS."""
    module = plugins.load(name)
    about = (module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    about = about.removeprefix(f"{name}: ")
    return {
        "plugin": name, "kind": plugins.kind_of(name), "about": about.partition(". ")[0].rstrip("."),
        "gc": hasattr(module, "gc"), "status": hasattr(module, "status"),
        "families": list(getattr(module, "FAMILIES", (4, 6))),
        "capabilities": list(getattr(module, "CAPABILITIES", ())), "args": list(getattr(module, "ARGS", ())),
        "versions": list(getattr(module, "VERSIONS", version.ALL)),
    }


def rows() -> list[list[str]]:
    """Return a table row for each of fastcni's own plugins."""
    return [row_of(features(name)) for name in plugins.BUILT_IN]


def row_of(plugin: dict[str, Any]) -> list[str]:
    """Return a table row, with a text for each of COLUMNS. plugin: a result of features()."""
    versions = "all" if plugin["versions"] == list(version.ALL) else f"from {plugin['versions'][0]}"
    families = ["yes" if family in plugin["families"] else "" for family in (4, 6)]
    there = ["yes" if plugin[command] else "nothing to do" for command in ("gc", "status")]
    return [plugin["plugin"], plugin["about"], "yes", "yes", "yes", *there, *families,
            ", ".join(plugin["capabilities"]), ", ".join(plugin["args"]), versions]


def as_markdown() -> str:
    """Return the table of fastcni's own plugins in Markdown, as docs/plugins.md has it."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([f"`{row[0]}`", *row[1:]] for row in rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
