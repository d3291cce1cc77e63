"""Read the addresses in the options --http (status page), --metrics, and --otlp (collector of traces)."""

from __future__ import annotations

import click


def http_address(_: click.Context, option: click.Parameter, text: str) -> str | tuple[str, int] | None:
    """Convert the address of --http or --metrics: a socket's path, (IP address, port), or None for "". Raises
    click.BadParameter."""
    if not text:
        return None
    from fastcni.server.web import address

    try:
        return address.read(text)
    except address.AddressError as e:
        raise click.BadParameter(str(e), param=option) from e


def otlp_url(_: click.Context, option: click.Parameter, text: str) -> str:
    """Check the URL of --otlp and return it, "" for "". Raises click.BadParameter."""
    if not text:
        return ""
    from fastcni.server.otel import traces

    try:
        return traces.read_url(text)
    except traces.UrlError as e:
        raise click.BadParameter(str(e), param=option) from e
