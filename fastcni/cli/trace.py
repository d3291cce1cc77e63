"""The command `fastcni trace`: show the server's requests as they end, or the past requests that the server has
stored."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from time import sleep
from typing import Any

import click

from fastcni.cli.options import completion
from fastcni.cli.options.server import ask_history, asking, socket_option
from fastcni.cli.text.output import printable, put_lines
from fastcni.daemon.listening import PATH
from fastcni.kit.call.similar import meant_id
from fastcni.node.activity import netlink_text, story_text
from fastcni.server.records import history
from fastcni.spec.errors import CniError

KEYS = {"network": "network", "container": "container", "ifname": "ifname", "command": "command", "plugin": "plugin",
        "code": "outcome"}
PAUSE_S = 0.2                   # seconds between two polls of the server
AWAY_S = 1.0                    # seconds between two polls while no server answers


@click.command()
@click.argument("container", default="", shell_complete=completion.containers)
@socket_option
@click.option("--past", is_flag=True, help="Print the requests that the server has stored, and end.")
@click.option("-n", "count", default=None, type=click.IntRange(1), metavar="N",
              help="End after N requests; with --past, print the newest N.")
@click.option("--filter", "filters", multiple=True, metavar="KEY=VALUE",
              help=f"Print only requests whose KEY has this VALUE; may be repeated. Keys: {', '.join(KEYS)}. For "
              "network and container, the beginning of the value is enough. code=failed selects all failed requests.")
@click.option("--slower", default=0.0, type=click.FloatRange(0), metavar="MS",
              help="Print only requests that took at least this many milliseconds, without their time in the queue.")
@click.option("--netlink", is_flag=True, help="Print each message to the kernel and each answer as text.")
@click.option("--input", "with_input", is_flag=True, help="Print the CNI variables and the configuration of failed "
              "requests, without passwords; with --netlink, those of all requests.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each request.")
def trace(container: str, socket: str, past: bool, count: int | None, filters: Sequence[str], slower: float,
          netlink: bool, with_input: bool, as_json: bool) -> None:
    """Follow the server's requests, each with its phases.

    CONTAINER is a container id, or its beginning. Failed requests show the kernel's errors, the programs that ran and
    the rollback. Requests that plugins run without the server, one-shot, are only in the log.

    \b
    fastcni trace                              all requests from now on
    fastcni trace --past 5f0c9e1d              what happened to this container
    fastcni trace --past --filter code=failed  failed requests, and why
    fastcni trace --past --slower 20           the phases of slow requests
    fastcni trace --netlink -n 1               the next request's netlink messages
    """
    chosen = Filter([*filters, *([f"container={container}"] if container else [])], slower)
    found = kept(socket or PATH, chosen, count or 0) if past else followed(socket or PATH, chosen, count or 0, netlink)
    try:
        for request in found:
            if as_json:
                decode(request)
                click.echo(json.dumps(request, ensure_ascii=False).encode("utf-8", "replace"))
            else:
                put_lines(story(request, netlink, with_input))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return                      # Ctrl-C ends the command normally


class Filter:
    """A filter for requests. A request passes if it took at least `slower` milliseconds and matches the filters
    KEY=VALUE of each KEY. If several filters have the same KEY, one match is enough. Raises click.BadParameter."""

    def __init__(self, texts: Sequence[str], slower: float = 0) -> None:
        self.slower = slower
        self.wanted: dict[str, list[str]] = {}
        for text in texts:
            key, equals, value = text.partition("=")
            if key not in KEYS or not equals:
                raise click.BadParameter(f"expected KEY=VALUE with one of {', '.join(KEYS)}, got {text!r}",
                                         param_hint="--filter")
            self.wanted.setdefault(KEYS[key], []).append(value)

    def __call__(self, request: dict[str, Any]) -> bool:
        return request["ms"] >= self.slower and all(
            any(fits(name, request[name], value) for value in values) for name, values in self.wanted.items())


def fits(name: str, present: str, wanted: str) -> bool:
    if name in ("network", "container"):
        return present.startswith(wanted)
    if name == "outcome" and wanted == "failed":
        return present != "0"
    return present.upper() == wanted.upper()


def kept(path: str, chosen: Filter, count: int) -> Iterator[dict[str, Any]]:
    """Yield the last `count` requests that the server has stored, the oldest first."""
    found: list[dict[str, Any]] = []
    after, containers = 0, set()
    while requests := ask(path, after)["requests"]:
        found += filter(chosen, requests)
        after = requests[-1]["number"]
        containers |= {it["container"] for it in requests}
    yield from found[-count:]
    if not found:
        similar = filter(None, (meant_id(it, containers) for it in chosen.wanted.get("container", ())))
        click.echo(printable("; ".join(["the server has stored no request that matches; its log goes back further",
                                        *similar])),
                   err=True)


def followed(path: str, chosen: Filter, count: int, wire: bool) -> Iterator[dict[str, Any]]:
    """Yield the requests that end from now on, up to `count` (0: no limit). If the server ends, wait until a server
    answers again."""
    answer, printed = ask(path, None, 0, wire), 0
    click.echo(printable(f"following the server at {path}; Ctrl-C ends"), err=True)
    while True:
        sleep(PAUSE_S)
        pid = answer["pid"]
        answer = next_answer(path, answer["next"], wire)
        if answer["pid"] != pid:                # another server process, which numbers its requests from 1
            answer = next_answer(path, 0, wire)
        if answer["lost"]:
            click.echo(f"{answer['lost']} requests are not shown: too many came at the same time; see --history of "
                       "`fastcni serve`", err=True)
        for request in filter(chosen, answer["requests"]):
            yield request
            printed += 1
            if printed == count:
                return


def next_answer(path: str, after: int, wire: bool) -> dict[str, Any]:
    told = False
    while True:
        try:
            return ask(path, after, wire=wire)
        except CniError as e:
            if not told:
                click.echo(printable(f"{e.msg}; waiting for one"), err=True)
            told = True
            sleep(AWAY_S)


def ask(path: str, after: int | None, limit: int = history.MAX_LIMIT, wire: bool = False) -> dict[str, Any]:
    """Ask the server at the socket `path` for at most `limit` requests after the number `after`, and return its answer
    (see server/records/history.py). Raises CniError without an answer."""
    with asking(path, "start it: `systemctl start fastcni.socket`, or `fastcni serve`. Requests without a server are "
                      "in the log only"):
        return ask_history(path, after, limit, wire=wire)


def story(request: dict[str, Any], netlink: bool, with_input: bool) -> Iterator[str]:
    """Yield a request as lines of text. netlink: include the netlink messages. with_input: include the
    configuration."""
    yield story_text.headline(request)
    if with_input:
        yield from story_text.given(request)
    yield from story_text.error(request)
    yield from story_text.waterfall(request)
    yield from story_text.steps(request, brief=not netlink)


def decode(request: dict[str, Any]) -> None:
    """Decode each netlink message of a request, and add the decoded lines of text to the message."""
    for step in request.get("story", {}).get("steps", ()):
        if "data" in step:
            step["messages"] = netlink_text.lines(bytes.fromhex(step["data"]))
