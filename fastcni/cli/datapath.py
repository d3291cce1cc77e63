"""The command `fastcni datapath`: the flows between pods that the datapath ebpf redirects."""

from typing import Any

import click

from fastcni.cli.text.output import Group, json_option, put_document
from fastcni.kernel import wire
from fastcni.kit.datapath import pins
from fastcni.node.own import datapath as own
from fastcni.spec import errors
from fastcni.spec.address import ip_text
from fastcni.spec.errors import CniError

PROTOCOLS = {6: "tcp", 17: "udp"}


@click.group(cls=Group)
def datapath() -> None:
    """Show, update and remove the datapath ebpf of pods."""


@datapath.command()
@json_option
def status(as_json: bool) -> None:
    """Show the pods of the datapath, and the flows that it redirects now.

    The counters are of redirected packets of living flows, from the first end to the second and back.
    """
    found = attempt(own.read)
    if as_json:
        put_document(document(found))
        return
    if not found:
        click.echo("no pod of this node has had the datapath ebpf")
        return
    pods, flows = (pins.MAPS[name][2] for name in ("pods", "flows"))
    click.echo(f"pods: {len(found.pods)} of {pods} addresses, {found.restricted} restricted by policies")
    click.echo(f"flows: {found.entries} of {flows} entries, {len(found.flows)} flows")
    for flow in found.flows:
        ends = [f"{ip_text(end)} {port}" for end, port in zip(flow.ends, flow.ports, strict=True)]
        click.echo(f"  {PROTOCOLS[flow.protocol]} {' > '.join(ends)}: {flow.packets[0]} and {flow.packets[1]} packets, "
                   f"{flow.bytes[0]} and {flow.bytes[1]} bytes")


@datapath.command()
def load() -> None:
    """Load the programs of this version of fastcni.

    The programs of an earlier version at the links of pods are replaced while flows run; no packet is lost. A link that
    has lost its filters gets them again.
    """
    def warn(text: str) -> None:
        click.echo(text, err=True)

    count = attempt(lambda sock: own.load(sock, warn))
    click.echo(f"the links of {count} pods have the programs of this version")


@datapath.command()
def unload() -> None:
    """Remove programs, filters and maps. Connections go on through the host's stack.

    A pod that is added later with the key `datapath` loads them again.
    """
    links, flows = attempt(own.remove)
    click.echo(f"removed from the links of {links} pods; {flows} flows pass through the host's stack")


def attempt(do: Any) -> Any:
    """Return do(socket). Raises CniError for what the kernel refuses."""
    sock = wire.open_socket()
    try:
        return do(sock)
    except pins.Unavailable as e:
        raise CniError(errors.INTERNAL, f"the datapath ebpf is not available: {e}") from None
    except OSError as e:
        raise CniError(errors.INTERNAL, f"the datapath ebpf: {e}", "it needs root in the node's network namespace, and "
                       f"bpffs at {pins.ROOT}") from e
    finally:
        sock.close()


def document(found: own.Status | None) -> dict[str, Any]:
    if not found:
        return {"pods": [], "restricted": 0, "entries": 0, "flows": []}
    flows = [{"protocol": PROTOCOLS[flow.protocol], "ends": [ip_text(end) for end in flow.ends], "ports": flow.ports,
              "packets": flow.packets, "bytes": flow.bytes} for flow in found.flows]
    return {"pods": [ip_text(packed) for packed in found.pods], "restricted": found.restricted,
            "entries": found.entries, "flows": flows}
