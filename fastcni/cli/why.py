"""The command `fastcni why`: follow one packet through the node, and name the hop at which it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fastcni.cli.options import completion
from fastcni.cli.options.node import node_command
from fastcni.cli.text.output import printable, put_document
from fastcni.node.attachments.inventory import Places, collect
from fastcni.node.checks.findings import plural
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.why.report import Redirect, Report

MAX_PORT = 65535


@click.command()
@click.argument("source", metavar="FROM", shell_complete=completion.pods)
@click.argument("destination", metavar="TO:PORT", shell_complete=completion.pods)
@click.option("--udp", is_flag=True, help="Send UDP instead of TCP.")
@node_command
def why(places: Places, as_json: bool, source: str, destination: str, udp: bool) -> int:
    """Follow one connection, and say at which hop it ends.

    The command also names the program whose rule drops the packet, and says how to repair the fault.

    \b
    fastcni why 8e4f2a 192.0.2.7:443        from a pod to any address
    fastcni why shop/web [2001:db8::7]:443  Kubernetes' name of the pod; IPv6
    fastcni why 10.88.0.2 c0ffee:80         from an address to a pod
    fastcni why --udp 8e4f2a 10.96.0.10:53  UDP

    A pod is a container id, its beginning, or NAMESPACE/NAME. The command sends one packet from the pod, or from the
    address, and follows it by nftables' trace. It needs root and leaves nothing behind.

    The exit status is 0 if the packet arrives, else 1.
    """
    from fastcni.why import ends
    from fastcni.why.run import why as follow

    if os.geteuid() != 0:
        raise CniError(errors.INVALID_ENVIRONMENT, "why enters network namespaces and sends a packet there",
                       "run the command as root")
    to, port = read_destination(destination)
    inventory = ends.with_namespaces(collect(replace(places, quick=True)))
    with ExitStack() as opened:
        from_address, to_address = packed(source), packed(to)
        if to_address is None:
            pods = ends.pods_named(inventory, to)
            own = [addresses.read_ip(ip) for it in pods for ip in it.addresses]
            same = [ip for ip in own if from_address is None or len(ip) == len(from_address)]
            if not same:
                raise CniError(errors.INVALID_ENVIRONMENT, f"pod {to} has no address of the family of {source}")
            to_address = same[0]
        begin = ends.source_pod(inventory, source, to_address) if from_address is None else ends.end_at(
            inventory, from_address)
        opened.callback(ends.close, begin)
        found = follow(inventory, begin, to_address, port, "udp" if udp else "tcp")
    if as_json:
        put_document(found.as_document())
    else:
        put_text(found, begin.name, f"{destination}{'/udp' if udp else ''}")
    return 0 if found.reaches else 1


def packed(text: str) -> bytes | None:
    """Return an address in network byte order; None if `text` is no address, but a pod's name."""
    try:
        return addresses.read_ip(text.strip("[]"))
    except ValueError:
        return None


def read_destination(text: str) -> tuple[str, int]:
    """Return (address or pod, port) of "ADDRESS:PORT", "[ADDRESS]:PORT" or "POD:PORT". Raises CniError."""
    where, _, port = text.rpartition(":")
    if not where or not port.isdecimal() or not 0 < int(port) <= MAX_PORT or (":" in where and where[0] != "["):
        raise CniError(errors.INVALID_ENVIRONMENT, f"{text}: expected ADDRESS:PORT, [IPV6]:PORT or POD:PORT",
                       f"PORT is 1 to {MAX_PORT}")
    return where.strip("[]"), int(port)


def put_text(found: Report, source: str, destination: str) -> None:
    """Print a line for each hop, then a line that says where the packet ends."""
    from fastcni.why import proxied

    for name, ok in found.hops:
        state = click.style("ok    ", fg="green") if ok else click.style("ENDS  ", fg="red", bold=True)
        click.echo(f"{state}  {printable(name)}")
    if found.ends is None:
        click.echo(printable(f"\n{source} reaches {destination}"))
    else:
        click.echo(printable(f"\n{source} does not reach {destination}: {found.ends.what}"))
        for label, text in (("rule:", found.ends.rule), ("owner:", found.ends.owner), ("do:", found.ends.do)):
            if text:
                click.echo(printable(f"    {label:7}{text}"))
    if found.reaches and (proxied.HOP, True) in found.hops:
        click.echo("    the HTTP proxy of the network policies takes the connection, and decides on each request:\n"
                   "    `fastcni flows --follow` shows them")
    if found.reaches and found.flowtable:
        click.echo("    the agent's flowtable takes the connection once it is established: its packets then skip the\n"
                   "    node's hops until a policy forbids the connection")
    if found.datapath:
        for text in datapath_lines(found.datapath, reaches=found.reaches):
            click.echo(printable(f"    {text}"))


def datapath_lines(redirect: Redirect, *, reaches: bool) -> Iterator[str]:
    """Yield lines that say what the datapath ebpf does with the packet's connection, and with other connections to the
    same port."""
    if reaches and redirect.redirected:
        yield "the datapath ebpf redirects the connection: packets after the first ones skip the node's hops"
    elif reaches:
        yield f"the datapath ebpf does not redirect the connection: {redirect.why}"
    if redirect.flows:
        packets, octets = redirect.packets, redirect.bytes
        yield (f"the datapath ebpf redirects {plural(redirect.flows, 'other connection')} to this port, past the "
               f"node's hops: {packets[0]} and {packets[1]} packets, {octets[0]} and {octets[1]} bytes")
