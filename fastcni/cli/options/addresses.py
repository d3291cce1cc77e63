"""Read addresses in options: those of the status page, of metrics and of a collector of traces."""

from __future__ import annotations

import click


def http_address(_: click.Context, option: click.Parameter, text: str) -> str | tuple[str, int] | None:
    """Read the address of --http or --metrics; None if it is empty. Raises click.BadParameter."""
    if not text:
        return None
    from fastcni.server.web import address

    try:
        return address.read(text)
    except address.AddressError as e:
        raise click.BadParameter(str(e), param=option) from e


def otlp_url(_: click.Context, option: click.Parameter, text: str) -> str:
    """Check the URL of --otlp, which may be empty. Raises click.BadParameter."""
    if not text:
        return ""
    from fastcni.server.otel import traces

    try:
        return traces.read_url(text)
    except traces.UrlError as e:
        raise click.BadParameter(str(e), param=option) from e
