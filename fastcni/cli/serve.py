"""The command that runs the warm server."""

import os
from collections.abc import Sequence

import click

from fastcni.server.cpu_latency import DEFAULT_SECONDS
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@click.command()
@click.option("--socket", "path", default="/run/fastcni/fastcni.sock", show_default=True, envvar="FASTCNI_SOCKET",
              show_envvar=True, metavar="PATH", help="Where to listen; not used when systemd hands a socket over.")
@click.option("--workers", default=32, show_default=True, type=click.IntRange(1, 1024), metavar="N",
              help="Requests that run at once.")
@click.option("--room", default=1024, show_default=True, type=click.IntRange(1), metavar="N",
              help="Requests that may wait; more are refused with code 11.")
@click.option("--patience", default=60.0, show_default=True, type=click.FloatRange(0, min_open=True),
              metavar="SECONDS", help="How long each may wait.")
@click.option("--allow-uid", "uids", multiple=True, type=click.IntRange(0), metavar="UID",
              help="Serve this user too; may be repeated. Root always is.")
@click.option("--awake", default=DEFAULT_SECONDS, show_default=True, type=click.FloatRange(0, 60),
              envvar="FASTCNI_AWAKE", show_envvar=True, metavar="SECONDS",
              help="After a request keep processors from sleeping for so long; 0: never.")
@click.option("--cache-dir", default="", metavar="DIR",
              help="Where runtimes remember results; the server restores iptables rules from these [/var/lib/cni].")
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="info has a line for each request.")
@click.option("--log-format", default="logfmt", show_default=True, type=click.Choice(["logfmt", "json"]))
def serve(path: str, workers: int, room: int, patience: float, uids: Sequence[int], awake: float,
          cache_dir: str, log_level: str, log_format: str) -> None:
    """Answer the installed plugins from one warm process.

    A plugin that finds no server does its work by itself. Ends with SIGTERM, after the last answer.
    """
    from fastcni.runtime.cache import Cache
    from fastcni.runtime.restore import restore
    from fastcni.server.listening import ListenError
    from fastcni.server.service import serve as run

    try:
        status = run(path, workers=workers, room=room, patience=patience, uids={0, os.geteuid(), *uids},
                     awake=awake, level=log_level, fmt=log_format,
                     replay=lambda deleted_at: restore(Cache(cache_dir), deleted_at=deleted_at))
    except ListenError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    raise SystemExit(status)
