"""The command `fastcni selftest`: test the network of this node with packets between two pods that it makes for the
test."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from types import FrameType
from typing import Any

import click
from rich.console import Console

from fastcni.agent.peer_list import DIRECTORY
from fastcni.cli.options import completion
from fastcni.cli.options.server import socket_option
from fastcni.cli.options.settings import cni_command, warn
from fastcni.cli.text.inventory import put
from fastcni.cli.text.output import json_option, printable, put_document
from fastcni.node import confs, server_process
from fastcni.runtime import CNI, NetworkList
from fastcni.selftest.check import ONE_SHOT, WARM, Check
from fastcni.selftest.peer import find
from fastcni.spec import errors
from fastcni.spec.errors import CniError

INTRODUCTION = (
    'The test adds two pods of its own to each network, a veth link "fcst..." with the addresses of an outside host, '
    "and one host port. After some seconds, the test removes the pods, the link and the port. It changes nothing else, "
    "and no running pod, except what each ADD repairs, such as a bridge that is down.")


@click.command()
@click.argument("networks", metavar="[NET]...", nargs=-1, shell_complete=completion.networks)
@cni_command
@socket_option
@click.option("--peer", default="", metavar="ADDRESS|NODE",
              help="Also test the path to another node, given by its address or its name in the agent's list of nodes.")
@click.option("--agent-folder", default=DIRECTORY, show_default=True, metavar="DIR",
              help="For --peer: the --folder of this node's agent.")
@json_option
def selftest(cni: CNI, networks: Sequence[str], socket: str, peer: str, agent_folder: str, as_json: bool) -> int:
    """Test the network of this node with two pods of its own.

    Without NET, the command tests each network of the configuration directory: pod to pod, gateway, node, outside, host
    port, hairpin, masquerade, name server, MTU, bandwidth limit, IPv4 and IPv6; one-shot, and by the server if one
    listens.

    With --peer a pod also sends echo requests to another node and to the addresses of that node in its pods' subnet.
    The other node's kernel answers, so no program must run on that node.

    The exit status is 0 if all checks are ok, otherwise 1.
    """
    if os.geteuid() != 0:
        raise CniError(errors.INVALID_ENVIRONMENT, "selftest makes network namespaces", "run the command as root")
    nets = chosen(cni, networks)
    other = find(peer, agent_folder) if peer else None
    modes = [ONE_SHOT, WARM] if socket and server_process.listener(socket) else [ONE_SHOT]
    if not as_json:
        put(Console(), INTRODUCTION)
        if WARM not in modes:
            why = f"No server listens at {socket}" if socket else "No server is asked"
            put(Console(), f"{why}, so the mode warm is not tested.")
    os.environ["FASTCNI_SOCKET"] = socket
    found = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    from fastcni.selftest.run import run

    with closing(run(cni, nets, modes, other)) as running:
        for check in running:
            found.append(check)
            if not as_json:
                put_check(check)
    failed = sum(not check.ok for check in found)
    if not as_json:
        click.echo(f"\n{len(found)} checks, {failed} failed")
    else:
        put_document({"checks": [asdict(check) for check in found]})
    return 1 if failed else 0


def chosen(cni: CNI, names: Sequence[str]) -> list[NetworkList]:
    """Return the networks called `names`, or all valid networks if `names` is empty. Raises CniError."""
    if names:
        return [cni.load(name, warn) for name in names]
    found = confs.networks(confs.read_directory(cni.conf_dir))
    if not found:
        raise CniError(errors.INVALID_CONFIG, f"no net configurations found in {cni.conf_dir}")
    return found


def interrupt(number: int, frame: FrameType | None) -> Any:
    """Handle SIGTERM like Ctrl-C, so that the command removes everything that the test has made."""
    raise KeyboardInterrupt


def put_check(check: Check) -> None:
    """Print a line for a check. For a failed check, print also the place of the failure, what was seen there, and which
    command to run."""
    state = click.style("ok    ", fg="green") if check.ok else click.style("FAILED", fg="red", bold=True)
    click.echo(f"{state}  {printable(check.network):16}  {check.mode:8}  {check.name:16} {check.ms:8.1f} ms")
    if check.ok and check.what:
        put(Console(), check.what, title=" " * 8)
    if not check.ok:
        click.echo(printable(f"        at:  {check.hop}"))
        put(Console(), check.what, title="        why: ")
        click.echo(printable(f"        do:  {check.command}"))
