"""The command that lists the plugins, from what their modules say of themselves."""

from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fastcni import plugins
from fastcni.cli.output import for_people, put_document
from fastcni.spec import version

COLUMNS = ("plugin", "what it does", "ADD", "CHECK", "DEL", "GC", "STATUS", "IPv4", "IPv6", "capabilities", "CNI_ARGS",
           "CNI versions")
KINDS = {"interface": plugins.INTERFACE, "ipam": plugins.IPAM, "chained": plugins.CHAINED}


@click.command(name="plugins")
@click.option("--markdown", is_flag=True, help="A Markdown table, as in docs/plugins.md.")
@click.option("--json", "as_json", is_flag=True, help="JSON, also on a terminal.")
def list_plugins(markdown: bool, as_json: bool) -> None:
    """List the plugins and what each can: commands, capabilities, CNI_ARGS, CNI versions."""
    if markdown:
        click.echo(as_markdown())
    elif for_people(as_json):
        table = Table(box=SIMPLE_HEAD)
        for column in COLUMNS:
            table.add_column(column)
        for row in rows():
            table.add_row(*row)
        Console().print(table)
    else:
        put_document([features(kind, name) for kind, table in KINDS.items() for name in table])


def features(kind: str, name: str) -> dict[str, Any]:
    """What a plugin's module says: its first sentence, its functions, CAPABILITIES, ARGS, FAMILIES and VERSIONS."""
    module = plugins.load(name)
    about = (module.__doc__ or "").partition("\n\n")[0].replace("\n", " ").partition(": ")[2]
    return {
        "plugin": name, "kind": kind, "about": about.partition(". ")[0].rstrip("."),
        "gc": hasattr(module, "gc"), "status": hasattr(module, "status"),
        "families": list(getattr(module, "FAMILIES", (4, 6))),
        "capabilities": list(getattr(module, "CAPABILITIES", ())), "args": list(getattr(module, "ARGS", ())),
        "versions": list(getattr(module, "VERSIONS", version.ALL)),
    }


def rows() -> list[list[str]]:
    return [row_of(features(kind, name)) for kind, table in KINDS.items() for name in table]


def row_of(it: dict[str, Any]) -> list[str]:
    versions = "all" if it["versions"] == list(version.ALL) else f"from {it['versions'][0]}"
    families = ["yes" if family in it["families"] else "" for family in (4, 6)]
    there = ["yes" if it[command] else "nothing to do" for command in ("gc", "status")]
    return [it["plugin"], it["about"], "yes", "yes", "yes", *there, *families, ", ".join(it["capabilities"]),
            ", ".join(it["args"]), versions]


def as_markdown() -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([f"`{row[0]}`", *row[1:]] for row in rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
