"""The command `fastcni doctor`: find the faults of this node, why they matter, and the commands that repair them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console
from rich.text import Text

from fastcni.cli.options.node import agent_folder_option, node_command
from fastcni.cli.options.server import socket_option
from fastcni.cli.options.settings import bin_dir_option, plugin_dirs
from fastcni.cli.text.inventory import put, put_row
from fastcni.cli.text.output import printable, put_document, put_lines
from fastcni.node.attachments.inventory import Places
from fastcni.node.checks.doctor import CHECKS, Diagnosis, diagnose, node_of
from fastcni.node.checks.findings import ERROR, plural


@click.command()
@bin_dir_option
@socket_option
@click.option("--bundle", default=None, metavar="FILE", help="Also write a tar.gz for a bug report, without secrets.")
@agent_folder_option
@node_command
def doctor(places: Places, as_json: bool, bin_dir: Sequence[str], socket: str, bundle: str | None,
           agent_folder: str) -> int:
    """Find this node's faults, and the commands that repair them.

    The command checks the kernel, sysctls, configurations, plugin files, the server, and addresses and rules that pods
    left. It changes nothing. Each finding names a fault, why it matters, and the command that repairs it. Run the
    command as root. Otherwise the command cannot read everything, and lists the unread parts.

    The exit status is 0 if nothing was found, 1 for warnings, 2 for errors, and 3 if a part of the node could not be
    read, so that findings may be missing.
    """
    node = node_of(places, plugin_dirs(bin_dir), socket)
    node.agent_folder = agent_folder
    found = diagnose(node)
    written = []
    if bundle:
        from fastcni.node.checks.bundle import write

        written = write(bundle, node, found)
    if not as_json:
        print_diagnosis(found)
        if bundle:
            put_lines([f"\nwrote {bundle} (mode 0600). Read it before you send it; it has:",
                       *(f"  {name}" for name in written)])
    else:
        put_document({"status": found.status, "facts": dict(found.facts),
                      "findings": [asdict(it) for it in found.findings], "unseen": list(found.unseen),
                      "checks": list(CHECKS), "bundle": {"file": os.path.abspath(bundle), "contents": written}
                      if bundle else None})
    return found.status


def print_diagnosis(found: Diagnosis, console: Console | None = None) -> None:
    """Print the node's properties, then a paragraph for each finding."""
    console = console or Console()
    for name, text in found.facts:
        put_row(console, name, text)
    for it in found.findings:
        style = "bold red" if it.severity == ERROR else "bold yellow"
        console.print()
        console.print(Text.assemble((f"{it.severity.upper()}  ", style), (printable(it.what), "bold"),
                                    f"  [{it.check}]"))
        put(console, it.why, title="  why: ")
        console.print(Text(printable(f"  do:  {it.do}")), soft_wrap=True)
    console.print()
    for text in found.unseen:
        put(console, f"not seen: {text}", "yellow")
    errors = sum(it.severity == ERROR for it in found.findings)
    put(console, f"{plural(len(CHECKS), 'check')}: {plural(errors, 'error')}, "
        f"{plural(len(found.findings) - errors, 'warning')}")
