"""The commands `fastcni pod`: set up and tear down all networks of a pod, as containerd and CRI-O do."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import click

from fastcni.cli.options import completion
from fastcni.cli.options.settings import cni_command, warn
from fastcni.cli.text.output import Group, json_option, printable, put_document, put_lines
from fastcni.kit.call.similar import meant_id
from fastcni.node.attachments.attachment import GONE, RUNNING, UNKNOWN, NodeAttachment
from fastcni.node.attachments.inventory import Places, collect
from fastcni.runtime import (
    CNI,
    Bandwidth,
    HostPort,
    Pod,
    PodNetwork,
    PodNetworks,
    PodStatus,
    Readiness,
    read_pod_spec,
)
from fastcni.runtime.cache import DEFAULT_DIR
from fastcni.runtime.parse import flattened
from fastcni.runtime.pod_spec import read_quantity
from fastcni.runtime.records import LO_IFNAME
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError


@click.group(cls=Group)
def pod() -> None:
    """Set up and tear down all networks of a pod.

    The commands do what containerd and CRI-O do for a kubelet. A pod gets its loopback interface, and the networks of
    --network; without --network, the first valid network of the configuration directory by file name. `fastcni add`
    attaches one network only.
    """


def pod_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of cni_command() and --json to a command. The command's function gets one PodNetworks and
    `as_json` instead of these options."""
    @cni_command
    @json_option
    @functools.wraps(function)
    def command(cni: CNI, **rest: Any) -> Any:
        return function(PodNetworks(cni, warn=warn), **rest)
    return command


@pod.command()
@click.argument("container_id", metavar="CONTAINERID")
@click.argument("netns", metavar="NETNS")
@click.option("--spec", type=click.File("rb"), metavar="FILE",
              help="A Pod of Kubernetes as JSON (`kubectl get pod -o json`): names, host ports, bandwidth, DNS.")
@click.option("--network", "networks", multiple=True, metavar="NAME[:IFNAME]", shell_complete=completion.networks,
              help="Attach this network instead of the default one; may be repeated.")
@click.option("--publish", "-p", "ports", multiple=True, metavar="[HOSTIP:]PORT:PODPORT[/PROTOCOL]",
              help="A port of the node that leads to the pod; may be repeated.")
@click.option("--ingress", default="", metavar="RATE", help="Limit of the traffic to the pod in bit/s, such as 10M.")
@click.option("--egress", default="", metavar="RATE", help="Limit of the traffic from the pod.")
@click.option("--ip", "ips", multiple=True, metavar="ADDRESS", help="Ask for this address; may be repeated.")
@click.option("--mac", default="", metavar="MAC", help="Ask for this MAC address.")
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=VALUE",
              help="An annotation of the pod, such as k8s.v1.cni.cncf.io/networks=storage; may be repeated.")
@pod_command
def up(pods: PodNetworks, container_id: str, netns: str, spec: IO[bytes] | None, networks: Sequence[str],
       ports: Sequence[str], ingress: str, egress: str, ips: Sequence[str], mac: str,
       annotations: Sequence[str], as_json: bool) -> None:
    """Attach NETNS to the networks of a pod and print its interfaces. After a failure the command undoes everything."""
    netns = os.path.abspath(netns)
    wanted = read_spec(spec, container_id, netns) if spec else Pod(container_id, netns)
    rates = read_quantity("--ingress", ingress), read_quantity("--egress", egress)
    wanted = replace(
        wanted, networks=[read_network(text) for text in networks], ips=ips, mac=mac,
        host_ports=[*wanted.host_ports, *map(read_port, ports)],
        annotations={**wanted.annotations, **dict(map(read_annotation, annotations))},
        bandwidth=Bandwidth(*rates) if any(rates) else wanted.bandwidth)
    require_port_mappings(pods, wanted)
    put_status(pods.set_up_pod(wanted), as_json)


@pod.command()
@click.argument("container_id", metavar="CONTAINERID", shell_complete=completion.containers)
@click.argument("netns", metavar="[NETNS]", default="")
@pod_command
def down(pods: PodNetworks, container_id: str, netns: str, as_json: bool) -> None:
    """Detach a pod from all its networks. You may repeat the command. NETNS is needed only if no result is cached."""
    cached, there = pods.attachments(container_id), on_node(pods)
    left = not_cached(there, container_id)
    known = {(it.network, it.ifname) for it in cached} | {(it.network, it.ifname) for it in left}
    do = f"give its path, also if it no longer exists: fastcni pod down {container_id} NETNS"
    if blind := [it for it in cached if not (netns or it.netns)]:
        raise CniError(errors.INVALID_ENVIRONMENT, f"{pods.file_of(blind[0])} does not name the network namespace",
                       do)
    if left and not (cached or netns):
        raise CniError(errors.INVALID_ENVIRONMENT, f"pod {container_id} has no cached result that names the network "
                       f"namespace, but {as_text(left)}", do)
    if not netns and (other := next(successors(there, container_id), None)):
        raise CniError(errors.INVALID_ENVIRONMENT, f"{other.netns} is now the namespace of container "
                       f"{other.container_id}: DEL would remove its {other.ifname}", "give a path that does not exist: "
                       f"fastcni pod down {container_id} /nonexistent")
    netns = os.path.abspath(netns) if netns else ""
    done = pods.tear_down_pod(Pod(container_id, netns))
    # on_node() takes long on a node with many pods, so call it again only if attachments had no cached result
    if left and (left := not_cached(on_node(pods), container_id)):
        lost = [PodNetwork(it.network, it.ifname) for it in left if it.network]
        netns = netns or next((it.netns for it in cached), "")
        done += pods.tear_down_pod(Pod(container_id, netns, networks=lost))
        if left := not_cached(on_node(pods), container_id):
            raise CniError(errors.INVALID_CONFIG, f"pod {container_id} still has {as_text(left)}",
                           "add the configuration of the network and repeat this command")
    if as_json:
        put_document({"containerID": container_id,
                      "detached": [{"network": it.network, "ifname": it.ifname} for it in done]})
    elif known:
        told = [it for it in done if (it.network, it.ifname) in known]      # DEL also went to the default network
        put_lines(f"{it.ifname} of {container_id} in network {it.network} is detached" for it in told)
        put_lines([f"pod {container_id}: networks detached {len(told)}"])
    else:
        asked = ", ".join(f"{it.network} {it.ifname}" for it in done)
        click.echo(printable(f"pod {container_id} has no cached result; "
                             f"{f'DEL was sent all the same: {asked}' if asked else 'no DEL was sent'}"))
        put_similar(pods, container_id)


def on_node(pods: PodNetworks) -> tuple[NodeAttachment, ...]:
    """Return the attachments of this node, without those that only a namespace shows."""
    return collect(Places(pods.cni.conf_dir, (pods.cni.cache.directory or DEFAULT_DIR,), quick=True)).attachments


def not_cached(attachments: Iterable[NodeAttachment], container_id: str) -> list[NodeAttachment]:
    """Return the attachments of a container that have address files, rules or links on this node, but no cached
    result."""
    return [it for it in attachments if it.container_id == container_id and it.ifname != LO_IFNAME and not it.cached]


def successors(attachments: Sequence[NodeAttachment], container_id: str) -> Iterator[NodeAttachment]:
    """Yield the attachments of other containers that now have the namespace and interface of this container, see
    runtime/replaced.py."""
    ended = {(it.netns, it.ifname) for it in attachments
             if it.container_id == container_id and it.cached and it.state in (GONE, UNKNOWN)}
    return (it for it in attachments
            if it.container_id != container_id and it.state == RUNNING and (it.netns, it.ifname) in ended)


def as_text(found: Sequence[NodeAttachment]) -> str:
    return ", ".join(f"network {it.network or '?'} {it.ifname or '?'} ({it.sightings[0].place})" for it in found)


@pod.command(name="status")
@click.argument("container_id", metavar="CONTAINERID", shell_complete=completion.containers)
@click.option("--check", is_flag=True, help="Also send CHECK to the plugins.")
@pod_command
def show_status(pods: PodNetworks, container_id: str, check: bool, as_json: bool) -> int:
    """Print the interfaces and addresses of a pod, from the result cache. The exit status is 1 if the pod has no
    interface, or if CHECK fails."""
    status = pods.pod_status(Pod(container_id), check=check)
    put_status(status, as_json)
    if not status.interfaces:
        put_similar(pods, container_id)
    return 1 if status.problems else 0


@pod.command()
@click.option("--watch", is_flag=True, help="Keep running, and print each change.")
@click.option("--interval", type=float, default=10, show_default=True, metavar="SECONDS",
              help="With --watch: the time between two STATUS requests to the plugins.")
@pod_command
def ready(pods: PodNetworks, watch: bool, interval: float, as_json: bool) -> int:
    """Print whether pods can be set up: the default network, its plugins and their STATUS. The exit status is 1 if pods
    cannot be set up.
    """
    if not watch:
        readiness = pods.readiness()
        put_readiness(readiness, as_json)
        return 0 if readiness.ready else 1
    with pods.watch(lambda it: put_readiness(it, as_json), interval) as running:
        try:
            running.wait()
        except KeyboardInterrupt:
            return 0
    return 0


def read_spec(file: IO[bytes], container_id: str, netns: str) -> Pod:
    """Return the Pod of the JSON manifest in `file`. Raises CniError."""
    try:
        document = json.read(file.read())
    except json.JsonError as e:
        raise CniError(errors.DECODING_FAILURE, f"{file.name}: {e}",
                       "--spec takes JSON: kubectl get pod -o json") from None
    return read_pod_spec(document, container_id, netns)


def require_port_mappings(pods: PodNetworks, pod: Pod) -> None:
    """Raise CniError if a pod has host ports, but no plugin of the pod's first network has the capability
    portMappings."""
    if "portMappings" not in pod.capability_args(first=True):
        return
    listing = pods.directory.listing()
    net = listing.named(pod.networks[0].name) if pod.networks else listing.default
    if not any(plugin.capabilities.get("portMappings") for plugin in flattened(net.plugins)):
        raise CniError(errors.INVALID_ENVIRONMENT, f"no plugin of network {net.name} maps host ports",
                       'add {"type": "portmap", "capabilities": {"portMappings": true}} to its plugins')


def read_network(text: str) -> PodNetwork:
    name, _, ifname = text.partition(":")
    return PodNetwork(name, ifname)


def read_annotation(text: str) -> tuple[str, str]:
    """Return (key, value) of an --annotation option. Raises CniError for another form."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CniError(errors.INVALID_ENVIRONMENT, f"--annotation: {json.quote(text)}: expected KEY=VALUE")
    return key, value


def read_port(text: str) -> HostPort:
    """Return the port mapping of a --publish option. Raises CniError for another form."""
    rest, _, protocol = text.partition("/")
    rest, _, pod_port = rest.rpartition(":")
    host_ip, _, host_port = rest.rpartition(":")
    if not (pod_port.isdecimal() and host_port.isdecimal()):
        raise CniError(errors.INVALID_ENVIRONMENT, f"--publish: {json.quote(text)}: expected "
                       "[HOSTIP:]PORT:PODPORT[/PROTOCOL], such as 8080:80 or [::1]:53:53/udp")
    return HostPort(int(host_port), int(pod_port), protocol or "tcp", host_ip.strip("[]"))


def put_similar(pods: PodNetworks, container_id: str) -> None:
    """Print on stderr the id of a pod with a similar id, as a suggestion."""
    others = {it.container_id for it in pods.cni.attachments()} - {container_id}
    if similar := meant_id(container_id, others):
        click.echo(printable(similar), err=True)


def put_status(status: PodStatus, as_json: bool) -> None:
    """Print a row for each interface of a pod, then the problems."""
    if as_json:
        put_document({"containerID": status.container_id, "ips": list(status.ips), "problems": list(status.problems),
                      "interfaces": [{"network": it.network, "ifname": it.ifname, "mac": it.mac,
                                      "addresses": list(it.addresses), "result": it.result}
                                     for it in status.interfaces]})
        return
    put_lines(f"{it.ifname:8} {it.network:20} {it.mac:17}  {', '.join(it.addresses)}".rstrip()
              for it in status.interfaces)
    put_lines(f"problem  {problem}" for problem in status.problems)


def put_readiness(readiness: Readiness, as_json: bool) -> None:
    """Print a line with the node's readiness, then a line for each broken configuration file."""
    if as_json:
        put_document({"ready": readiness.ready, "network": readiness.network, "reason": readiness.reason,
                      "broken": list(readiness.broken)})
        return
    click.echo(printable(f"ready: pods get network {readiness.network}" if readiness.ready
                         else f"not ready: {readiness.reason}"))
    put_lines(f"broken file: {text}" for text in readiness.broken)
