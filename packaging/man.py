"""Write the manual pages, fastcni.1 and one for each command, from the command line's own help.

    python packaging/man.py FOLDER
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import fastcni
from fastcni.cli.commands import cli

NAME = "container networking (CNI) plugins, their server and runtime"
ENVIRONMENT = {
    "CNI_PATH": "The plugin directories, separated by colons.",
    "NETCONFPATH": "The directory of network configurations.",
    "CNI_ARGS, CAP_ARGS, CNI_IFNAME": "As for cnitool: CNI arguments, capability arguments, the pod's interface.",
    "FASTCNI_SOCKET": "The socket of the server.",
    "FASTCNI_WIRE": "1: print each netlink message to standard error.",
}
FILES = {
    "/opt/cni/bin": "The plugins.",
    "/etc/cni/net.d": "Network configurations.",
    "/run/fastcni/fastcni.sock": "The socket of the server.",
    "/var/lib/cni": "Cached results, and the addresses that host-local holds.",
}
STATUS = {"0": "Success.", "1": "A failure. Its text is on standard error, with --json on standard output."}


def pages() -> dict[str, str]:
    """Return {file name: text} of all manual pages."""
    top = click.Context(cli, info_name="fastcni", **cli.context_settings)
    return {f"{ctx.command_path.replace(' ', '-')}.1": page(ctx) for ctx in contexts(top)}


def contexts(ctx: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of the commands below it."""
    yield ctx
    for _, inner in inside(ctx):
        yield from contexts(inner)


def inside(ctx: click.Context) -> list[tuple[str, click.Context]]:
    """Return (name, context) of the visible commands of a group."""
    if not isinstance(ctx.command, click.Group):
        return []
    found = ((name, ctx.command.get_command(ctx, name)) for name in ctx.command.list_commands(ctx))
    return [(name, click.Context(command, parent=ctx, info_name=name))
            for name, command in found if command and not command.hidden]


def page(ctx: click.Context) -> str:
    """Return one page."""
    path, command = ctx.command_path, ctx.command
    title, is_top = path.replace(" ", "-"), ctx.parent is None
    summary = NAME if is_top else command.get_short_help_str(500).rstrip(".")
    pieces = " ".join(command.collect_usage_pieces(ctx))
    lines = [f'.TH "{title.upper()}" "1" "" "fastcni {fastcni.__version__}" "fastcni"',
             ".SH NAME", rf"{plain(title)} \- {plain(summary)}",
             ".SH SYNOPSIS", rf"\fB{plain(path)}\fR {plain(pieces)}",
             ".SH DESCRIPTION", *paragraphs(command.help or "")]
    lines += terms("OPTIONS", dict(filter(None, (option.get_help_record(ctx) for option in command.get_params(ctx)))))
    lines += terms("COMMANDS", {name: inner.command.get_short_help_str(500) for name, inner in inside(ctx)})
    if is_top:
        lines += terms("EXIT STATUS", STATUS) + terms("ENVIRONMENT", ENVIRONMENT) + terms("FILES", FILES)
    others = [f"{path} {name}" for name, _ in inside(ctx)] or [ctx.parent.command_path if ctx.parent else ""]
    also = ", ".join(rf"\fB{plain(other.replace(' ', '-'))}\fR(1)" for other in others)
    return "\n".join([*lines, ".SH SEE ALSO", also]) + "\n"


def terms(section: str, texts: dict[str, str]) -> list[str]:
    """Return a section of terms and their texts, nothing if there are none."""
    lines = [f".SH {section}"] if texts else []
    for term, text in texts.items():
        lines += [".TP", rf"\fB{plain(term)}\fR", plain(text) or r"\&"]
    return lines


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a help text; one that begins with \\b keeps its lines."""
    lines = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.split("\f", maxsplit=1)[0].strip())):
        lines += [".PP"] if number else []
        if paragraph.startswith("\b"):
            lines += [".nf", *(plain(line) for line in paragraph.splitlines()[1:]), ".fi"]
        else:
            lines.append(plain(" ".join(paragraph.split())))
    return lines


def plain(text: str) -> str:
    """Return a text as roff prints it: no escape, no control line, hyphens that can be copied."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + text if text.startswith(".") else text


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
