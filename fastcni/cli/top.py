"""The command `fastcni top`: show the server's current activity, continuously."""

from __future__ import annotations

import sys
import time
from functools import partial

import click
from rich.console import Console

from fastcni.cli.options.conf_dir import chosen_conf_dir, conf_dir_option
from fastcni.cli.options.server import ask_history, asking, socket_option
from fastcni.cli.text.output import put_document
from fastcni.cli.text.terminal import ENTER, ERASE, ESCAPE, Terminal
from fastcni.cli.text.top import SORTS, View, frame
from fastcni.daemon.listening import PATH
from fastcni.node.activity import source as activity_source
from fastcni.node.activity import summary
from fastcni.node.activity.pools import count
from fastcni.node.attachments.cache_dirs import IN_HELP, known_cache_dirs
from fastcni.runtime.cache import Cache
from fastcni.server import status
from fastcni.spec import errors
from fastcni.spec.errors import CniError

LIMIT = 64                      # limit of the requests in one answer: a longer answer would delay other requests


@click.command()
@socket_option
@conf_dir_option
@click.option("--cache-dir", default="", metavar="DIR", help=f"The directory of cached results [{IN_HELP}].")
@click.option("--filter", "chosen", default="", metavar="TEXT",
              help="Show only requests and networks with this text in network or container.")
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(0.1, 60), metavar="SECONDS",
              help="Time between two frames.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and end.")
def top(socket: str, conf_dir: str, cache_dir: str, chosen: str, interval: float, once: bool, as_json: bool) -> None:
    """Watch the server's requests of the last minute.

    \b
    rates, median (p50) and 99th percentile (p99) of the time in each phase,
    the queue, errors by code, networks, how full the pools of addresses are,
    slowest requests

    Keys: s sorts, / filters, space freezes, q quits, ? explains. If stdout is no terminal, the command prints one frame
    and ends.
    """
    conf_dir = chosen_conf_dir(conf_dir)
    where = known_cache_dirs(filter(None, [cache_dir]), conf_dir)
    source = Source(socket or PATH, conf_dir, [Cache(it).results() for it in where])
    source.poll()
    console = Console()
    if as_json:
        put_document(source.document(chosen))
    elif once or not sys.stdout.isatty():
        console.print(frame(source.document(chosen), View(chosen=chosen), *console.size, keys=False))
    elif console.is_dumb_terminal or not sys.stdin.isatty():
        raise CniError(errors.INVALID_ENVIRONMENT, "top needs a terminal for its frames and its keys",
                       "`fastcni top --once` prints one frame, `fastcni top --json` one document")
    else:
        watch(source, View(chosen=chosen), console, interval)


class Source(activity_source.Source):
    """The data of `fastcni top`, from the server's socket and from this node's files."""

    def __init__(self, path: str, conf_dir: str, results: list[str]) -> None:
        super().__init__(lambda: status.ask(path) or {}, lambda after: ask_history(path, after, LIMIT),
                         lambda: count(conf_dir, *results))
        self.path = path

    def poll(self) -> None:
        """Read new data from the server and from this node's files. Raises CniError if the server does not answer."""
        with asking(self.path, "start it: `systemctl start fastcni.socket`, or `fastcni serve`"):
            super().poll()


def watch(source: Source, view: View, console: Console, interval: float) -> None:
    """Draw a frame every `interval` seconds and after each key, until the user quits."""
    try:
        with Terminal(console) as terminal:
            seen, polled = source.view(), time.monotonic()
            while True:
                terminal.draw(partial(frame, summary.document(*seen, view.chosen), view))
                keys = terminal.wait(polled + interval - time.monotonic())
                if not all(press(key, view) for key in keys):
                    return
                if time.monotonic() >= polled + interval:
                    polled, view.trouble = time.monotonic(), poll(source)
                if not view.frozen:
                    seen = source.view()
    except KeyboardInterrupt:
        return


def poll(source: Source) -> str:
    """Read new data. Return the error as text, "" for success. poll() raises no error, because the server may be
    restarting."""
    try:
        source.poll()
    except CniError as e:
        return f"Figures of {time.strftime('%H:%M:%S', time.localtime(source.now))}: {e.msg}"
    return ""


def press(key: str, view: View) -> bool:
    """Change `view` by a key. Return False if the key quits."""
    if view.typing is not None:
        if key in (ENTER, ESCAPE):
            view.chosen, view.typing = view.typing if key == ENTER else "", None
        else:
            view.typing = view.typing[:-1] if key == ERASE else view.typing + key
    elif key == "q":
        return False
    elif key == "s":
        view.sort = (view.sort + 1) % len(SORTS)
    elif key == "/":
        view.typing = view.chosen
    elif key == ESCAPE:
        view.chosen, view.help = "", False
    elif key == " ":
        view.frozen = not view.frozen
    elif key == "?":
        view.help = not view.help
    return True
