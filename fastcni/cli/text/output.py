"""Write the output of a command: text, or with --json a JSON document. Only terminals get colours."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, also for errors.")


class Group(click.Group):
    """A command that has subcommands. Its help, which it prints without an argument, shows the subcommands' summaries
    in full."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **{**keys, "invoke_without_command": True})

    def invoke(self, ctx: click.Context) -> Any:
        found = super().invoke(ctx)
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(500)) for name, command in self.commands.items()])


def cni_as_text(as_json: bool) -> bool:
    """Return whether a command of cnitool prints text instead of a CNI document: stdout is a terminal, and --json is
    not given.

    These commands are add, check, del and netconf. Without --json, all other commands print text, also into a pipe.
    """
    return not as_json and sys.stdout.isatty()


def printable(text: str) -> str:
    """Return the text with control characters replaced by U+FFFD. Newlines and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def put_lines(lines: Iterable[str]) -> None:
    """Print lines of text."""
    for line in lines:
        click.echo(printable(line))


def put_document(document: object) -> None:
    """Print a fastcni document as indented JSON. CNI documents are written by fastcni.spec.json instead."""
    import json

    put(json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def put(data: bytes) -> None:
    """Write the bytes to stdout. On a terminal, add a newline if the bytes do not end with one."""

    click.echo(data, nl=sys.stdout.isatty() and not data.endswith(b"\n"))
