"""The output of a command: text on a terminal, else JSON."""

import json
import sys

import click


def for_people(as_json: bool) -> bool:
    """Whether to print text: stdout is a terminal, and --json is not given."""
    return not as_json and sys.stdout.isatty()


def put_document(document: object) -> None:
    """Print one of the command's own documents. CNI documents are written by fastcni.spec.json instead."""
    put(json.dumps(document, indent=2, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def put(data: bytes) -> None:
    """Write the bytes to stdout unchanged. On a terminal, add a newline if there is none."""

    click.echo(data, nl=sys.stdout.isatty() and not data.endswith(b"\n"))
