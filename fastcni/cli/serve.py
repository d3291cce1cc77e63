"""The command that runs the warm server."""

import os
from collections.abc import Sequence

import click

from fastcni.server.cpu_latency import DEFAULT_S
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@click.command()
@click.option("--socket", "path", default="/run/fastcni/fastcni.sock", show_default=True, envvar="FASTCNI_SOCKET",
              show_envvar=True, metavar="PATH", help="Where to listen; not used if systemd hands a socket over.")
@click.option("--workers", default=32, show_default=True, type=click.IntRange(1, 1024), metavar="N",
              help="Requests that run at once.")
@click.option("--queue-size", default=1024, show_default=True, type=click.IntRange(1), metavar="N",
              help="Requests that may wait in the queue; more are refused with code 11.")
@click.option("--queue-timeout", "queue_timeout_s", default=60.0, show_default=True,
              type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="How long a request may wait in the queue; then it is refused with code 11.")
@click.option("--allow-uid", "uids", multiple=True, type=click.IntRange(0), metavar="UID",
              help="Serve this user too; may be repeated. The server always serves root.")
@click.option("--latency-request", "latency_request_s", default=DEFAULT_S, show_default=True,
              type=click.FloatRange(0, 60), envvar="FASTCNI_LATENCY_REQUEST_S", show_envvar=True, metavar="SECONDS",
              help="Keep processors out of deep idle states until this long after a request; 0: never.")
@click.option("--cache-dir", default="", metavar="DIR",
              help="Where runtimes cache results; the server restores iptables rules from them [/var/lib/cni].")
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="info has a line for each request.")
@click.option("--log-format", default="logfmt", show_default=True, type=click.Choice(["logfmt", "json"]))
def serve(path: str, workers: int, queue_size: int, queue_timeout_s: float, uids: Sequence[int],
          latency_request_s: float, cache_dir: str, log_level: str, log_format: str) -> None:
    """Answer the installed plugins from one warm process.

    A plugin that finds no server does its work by itself. SIGTERM ends the server after its last answer.
    """
    from fastcni.runtime.cache import Cache
    from fastcni.runtime.restore import restore
    from fastcni.server.listening import ListenError
    from fastcni.server.service import serve as run

    try:
        status = run(path, workers=workers, queue_size=queue_size, queue_timeout_s=queue_timeout_s,
                     uids={0, os.geteuid(), *uids}, latency_request_s=latency_request_s, level=log_level,
                     fmt=log_format, replay=lambda deleted_at: restore(Cache(cache_dir), deleted_at=deleted_at))
    except ListenError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    raise SystemExit(status)
