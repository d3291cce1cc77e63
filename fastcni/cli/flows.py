"""The command `fastcni flows`: show which pods talk to whom, and what drops their packets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

from fastcni.cli.options import completion
from fastcni.cli.options.conf_dir import chosen_conf_dir, conf_dir_option
from fastcni.cli.options.node import agent_folder_option, cache_dirs_option
from fastcni.cli.options.server import asking, socket_option
from fastcni.cli.selftest import interrupt
from fastcni.cli.text.flows import Document, line
from fastcni.cli.text.output import printable
from fastcni.daemon.listening import PATH
from fastcni.kit.call.similar import meant_id
from fastcni.node import confs, pod_policies
from fastcni.node.attachments.cache_dirs import known_cache_dirs
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.flows.collector import Collector

WAIT_S = 1.0                    # longest wait for the next flow, in seconds


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Print the flows from now on, until Ctrl-C. This needs no server.")
@click.option("--drops", is_flag=True, help="Print only dropped packets.")
@click.option("--pod", default="", metavar="POD", shell_complete=completion.pods,
              help="Print only flows from or to this pod: a container id, or its beginning, or NAMESPACE/NAME.")
@click.option("--last", "count", default=None, type=click.IntRange(1), metavar="N",
              help="Print the newest N flows that the server has stored [all]; with --follow, end after N.")
@conf_dir_option
@cache_dirs_option
@agent_folder_option
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each flow.")
def flows(follow: bool, drops: bool, pod: str, count: int | None, conf_dir: str, cache_dirs: Sequence[str],
          agent_folder: str, socket: str, as_json: bool) -> None:
    """Show which pods talk to whom, and what drops their packets.

    Packets are dropped by a network policy, a firewall or the isolation of ports. Without --follow the command prints
    the flows that `fastcni serve --flows` has kept. --follow needs no option of server or agent: the kernel reports
    packets while the command runs. The kernel removes the command's rules when the command ends, even if it is killed.

    \b
    fastcni flows --follow --drops         what is dropped now
    fastcni flows --follow --pod shop/web  what this pod does
    fastcni flows --last 20                the newest flows of the server
    """
    chosen = Chosen(drops, pod)
    if follow:
        follow_flows(open_collector(conf_dir, cache_dirs, agent_folder), chosen, count, as_json)
    else:
        found = list(filter(chosen, kept(socket or PATH)))
        put(found[-(count or len(found)):], as_json)
        if not found:
            click.echo("the server has stored no flow that matches", err=True)


class Chosen:
    """A filter for flows. drops: only dropped flows. pod: only flows from or to this pod, "" for all."""

    def __init__(self, drops: bool, pod: str) -> None:
        self.drops, self.pod = drops, pod

    def __call__(self, flow: Document) -> bool:
        if self.drops and flow["verdict"] != "dropped":
            return False
        ends = flow["source"], flow["destination"]
        return not self.pod or any(self.fits(self.pod, end["pod"], end["container"]) for end in ends)

    @staticmethod
    def fits(asked: str, name: str, container: str) -> bool:
        """Return whether `asked` names the pod: by NAMESPACE/NAME, by its container id or by the beginning of that
        id."""
        return name == asked or container.startswith(asked)


def open_collector(conf_dir: str, cache_dirs: Sequence[str], agent_folder: str = "") -> Collector:
    """Return a Collector, which collects the node's flows from now on. Raises CniError."""
    from fastcni.flows.collector import Collector, Unsupported

    where = chosen_conf_dir(conf_dir)
    agents = pod_policies.sockets(confs.networks(confs.read_quietly(where, [])), agent_folder)
    try:
        return Collector(known_cache_dirs(cache_dirs, where), agents)
    except Unsupported as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, str(e)) from e


def warnings(collector: Collector, pod: str) -> Iterator[str]:
    """Yield a warning if flows may be missing, because no pod is known, or because `pod` is unknown."""
    collector.pods.refresh()
    known = collector.pods.by_address.values()
    if not known:
        places = ", ".join(it.directory for it in collector.pods.results)
        yield (f"no pod is in {places}: allowed connections are not shown, and drops have no names; if the runtime "
               "caches results elsewhere, use --cache-dir")
    elif pod and not any(Chosen.fits(pod, it.name, it.container) for it in known):
        hint = meant_id(pod, {name for it in known for name in (it.name, it.container)})
        yield f"no pod of this node is known as {pod} now{'; ' if hint else ''}{hint}"


def follow_flows(collector: Collector, chosen: Chosen, count: int | None, as_json: bool) -> None:
    """Print flows until a signal, or until `count` flows are printed; None: no limit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    left, sampled = count, False
    try:
        with closing(collector):
            lines = ["following the flows of this node; Ctrl-C ends", *warnings(collector, chosen.pod)]
            click.echo(printable("\n".join(lines)), err=True)
            while left is None or left > 0:
                found = list(filter(chosen, (flow.document() for flow in collector.collect(WAIT_S))))[:left]
                put(found, as_json)
                if left is not None:
                    left -= len(found)
                if collector.sampled and not sampled:
                    sampled = True
                    click.echo("connections come too fast: from now on some are not shown", err=True)
    except KeyboardInterrupt:
        return                              # Ctrl-C and SIGTERM end the command normally


def kept(path: str) -> list[Document]:
    """Return the flows that the server has stored, the oldest first. path: the server's socket. Raises CniError."""
    from fastcni.flows import last_flows

    with asking(path, "`fastcni flows --follow` needs none; `fastcni serve --flows` keeps flows"):
        found = last_flows.ask(path)
    if found is None:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"the server at {path} keeps no flows",
                       "start it with `fastcni serve --flows`, or follow them: `fastcni flows --follow`")
    flows: list[Document] = found["flows"]
    return flows


def put(found: Iterable[Document], as_json: bool) -> None:
    if lines := [json.dumps(flow) if as_json else line(flow, coloured=True) for flow in found]:
        click.echo("\n".join(lines))
