"""The command `fastcni datapath`: the flows between pods that the datapath ebpf redirects."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from fastcni.cli.options.conf_dir import chosen_conf_dir
from fastcni.cli.text.inventory import SHORT_ID
from fastcni.cli.text.output import Group, json_option, printable, put_document
from fastcni.flows.pods import Pods
from fastcni.kernel import wire
from fastcni.kit.datapath import pins
from fastcni.kit.datapath.maps import Flow
from fastcni.node.attachments.cache_dirs import IN_HELP, known_cache_dirs
from fastcni.node.checks.findings import plural
from fastcni.node.own import datapath as own
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

PROTOCOLS = {6: "tcp", 17: "udp"}


@click.group(cls=Group)
def datapath() -> None:
    """Show, update and remove the datapath ebpf; show the flowtable."""


@dataclass(slots=True)
class Pair:
    """The current flows between two pods. pods: the pods' names; an address stands for a pod that is not in the
    runtime's cache. packets, bytes: how many redirected packets and bytes the first and the second pod have sent."""

    pods: tuple[str, str]
    flows: int
    packets: tuple[int, int]
    bytes: tuple[int, int]


@datapath.command()
@click.option("--cache-dir", "cache_dirs", multiple=True, metavar="DIR",
              help=f"A directory of cached results, for the names of pods; may be repeated [{IN_HELP}].")
@json_option
def status(cache_dirs: Sequence[str], as_json: bool) -> None:
    """Show the pods of the datapath, and the flows that it redirects now.

    If the agent has a flowtable, the first line counts its connections.

    The counters show the redirected packets of current flows, in both directions. The output lists the sums for each
    pair of pods, then each flow.
    """
    found, flowtable = attempt(lambda sock: (own.read(sock), own.read_flowtable(sock)))
    conf_dir = chosen_conf_dir()
    pods = Pods(known_cache_dirs(cache_dirs, conf_dir))
    pods.refresh()
    if as_json:
        put_document({**document(found, pods), "flowtable": asdict(flowtable) if flowtable else None})
        return
    if flowtable:
        click.echo(f"flowtable of the agent: {plural(flowtable.connections, 'connection')} between pods at "
                   f"{plural(flowtable.links, 'link')}")
    if not found:
        click.echo("no pod of this node has had the datapath ebpf")
        return
    most_pods, most_flows = (pins.MAPS[name][2] for name in ("pods", "flows"))
    click.echo(f"pods: {len(found.pods)} of {most_pods} addresses, {found.restricted} restricted by policies")
    click.echo(f"flows: {found.entries} of {most_flows} entries, {len(found.flows)} flows")
    for pair in pairs(found.flows, pods):
        click.echo(printable(f"  {' and '.join(pair.pods)}: {plural(pair.flows, 'flow')}, {counts(pair)}"))
    for flow in found.flows:
        ends = [f"{ip_text(end)} {port}" for end, port in zip(flow.ends, flow.ports, strict=True)]
        click.echo(f"  {PROTOCOLS[flow.protocol]} {' > '.join(ends)}: {counts(flow)}")


def counts(flow: Pair | Flow) -> str:
    return f"{flow.packets[0]} and {flow.packets[1]} packets, {flow.bytes[0]} and {flow.bytes[1]} bytes"


def name_of(pods: Pods, packed: bytes) -> str:
    """Return NAMESPACE/NAME of the pod with the address `packed`; the shortened container id if the pod has no name;
    the address if no pod is known."""
    pod = pods.at(packed)
    if not pod:
        return ip_text(packed)
    return pod.name if pod.name != pod.container else pod.name[:SHORT_ID]


def pairs(flows: Iterable[Flow], pods: Pods) -> list[Pair]:
    """Return one Pair, with the sums of all flows, for each two pods that have flows. The Pair with the most packets is
    first."""
    found: dict[tuple[str, str], Pair] = {}
    for flow in flows:
        names = [name_of(pods, end) for end in flow.ends]
        first, second = (0, 1) if names[0] <= names[1] else (1, 0)
        key = names[first], names[second]
        it = found.setdefault(key, Pair(key, 0, (0, 0), (0, 0)))
        it.flows += 1
        it.packets = it.packets[0] + flow.packets[first], it.packets[1] + flow.packets[second]
        it.bytes = it.bytes[0] + flow.bytes[first], it.bytes[1] + flow.bytes[second]
    return sorted(found.values(), key=lambda it: -sum(it.packets))


@datapath.command()
def load() -> None:
    """Load the programs of this version of fastcni.

    The command replaces the programs of an earlier version at pods' links while flows run; no packet is lost. The
    command also restores missing filters.
    """
    def warn(text: str) -> None:
        click.echo(text, err=True)

    count = attempt(lambda sock: own.load(sock, warn))
    click.echo(f"the links of {count} pods have the programs of this version")


@datapath.command()
def unload() -> None:
    """Remove programs, filters and maps. Connections go on through the host's stack.

    When a pod with the key `datapath` is added later, ADD loads the programs again.
    """
    links, flows = attempt(own.remove)
    click.echo(f"removed from the links of {links} pods; {flows} flows pass through the host's stack")


def attempt(do: Any) -> Any:
    """Return do(netlink socket). Raises CniError for an error of the kernel."""
    with wire.open_socket() as sock:
        try:
            return do(sock)
        except pins.Unavailable as e:
            raise CniError(errors.INTERNAL, f"the datapath ebpf is not available: {e}") from None
        except OSError as e:
            raise CniError(errors.INTERNAL, f"the datapath ebpf: {e}",
                           f"the command needs root in the node's network namespace, and bpffs at {pins.ROOT}") from e


def document(found: own.Status | None, pods: Pods) -> dict[str, Any]:
    if not found:
        return {"pods": [], "restricted": 0, "entries": 0, "pairs": [], "flows": []}
    flows = [{"protocol": PROTOCOLS[flow.protocol], "ends": [ip_text(end) for end in flow.ends], "ports": flow.ports,
              "names": [name_of(pods, end) for end in flow.ends], "packets": flow.packets, "bytes": flow.bytes}
             for flow in found.flows]
    return {"pods": [ip_text(packed) for packed in found.pods], "restricted": found.restricted,
            "entries": found.entries, "pairs": [asdict(pair) for pair in pairs(found.flows, pods)], "flows": flows}
