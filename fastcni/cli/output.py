"""What a command prints: for people on a terminal, else JSON."""

import sys

import click


def for_people(as_json: bool) -> bool:
    return not as_json and sys.stdout.isatty()


def put_document(document: object) -> None:
    """Print a document of this command's own; CNI's documents have a dialect, and are written by fastcni.spec.json."""
    import orjson

    put(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def put(data: bytes) -> None:
    """Write to stdout as it is; a terminal gets the newline that a result lacks."""
    click.echo(data, nl=sys.stdout.isatty() and not data.endswith(b"\n"))
