"""The commands `fastcni policy`: what network policies allow."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.output import for_people, put_document
from fastcni.cli.show import printable
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.agent.policy.evaluate import Cluster, Reason
    from fastcni.agent.policy.objects import Pod


@click.group()
def policy() -> None:
    """Show what network policies (networking.k8s.io/v1) allow."""


@policy.command()
@click.argument("source", metavar="FROM")
@click.argument("destination", metavar="TO")
@click.argument("port")
@click.option("--folder", default="/etc/fastcni/policies", show_default=True, metavar="DIR",
              help="Pods, namespaces and policies are in JSON and YAML files of this folder.")
@click.option("--kubernetes", default=None, is_flag=False, flag_value="", metavar="[KUBECONFIG]",
              help="They are in the Kubernetes API. Without a kubeconfig: with this pod's service account.")
@click.option("--agent-folder", default="/run/fastcni/agent", show_default=True, metavar="DIR",
              help="Of the node's agent: it has the pods that are in no file. With \"\" only the files count.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal.")
def test(source: str, destination: str, port: str, folder: str, kubernetes: str | None, agent_folder: str,
         as_json: bool) -> None:
    """Say whether a connection is allowed, and by which rule.

    \b
    fastcni policy test shop/web shop/db 5432       two pods; without a namespace: of `default`
    fastcni policy test 192.0.2.7 shop/web http     an address; a name of a port of the pod
    fastcni policy test shop/web 10.96.0.10 53/udp

    The exit status is 1 if it is denied. Traffic between a pod and its own node is always allowed.
    """
    from fastcni.agent.policy.evaluate import Connection, evaluate

    cluster = read_files(folder, agent_folder) if kubernetes is None else read_api(kubernetes)
    sources, destinations = ends(cluster, source), ends(cluster, destination)
    protocol, number = read_port(port, cluster.pods.get(pod_key(destination)))
    found = []
    for one in sources:
        for other in destinations:
            if len(one) == len(other):
                verdict = evaluate(cluster, Connection(one, other, protocol, number))
                found.append({"from": addresses.ip_text(one), "to": addresses.ip_text(other),
                              "allowed": verdict.allowed, "egress": document(verdict.egress),
                              "ingress": document(verdict.ingress)})
    if not found:
        raise CniError(errors.INVALID_ENVIRONMENT, f"{source} and {destination} have no addresses of the same family")
    if for_people(as_json):
        for each in found:
            click.echo(printable(text(each)))
    else:
        put_document({"connections": found})
    if not all(each["allowed"] for each in found):
        sys.exit(1)


def read_files(folder: str, agent_folder: str) -> Cluster:
    """What is in the files, and the pods that ADDs told the agent of. Raises CniError."""
    from fastcni.agent.policy import attached
    from fastcni.agent.policy.from_files import read_cluster
    from fastcni.agent.policy.objects import PolicyError

    found = attached.AttachedCompiler()
    try:
        found.put_all(read_cluster(folder))
    except (PolicyError, OSError) as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None
    if agent_folder:
        try:
            for each in attached.read_files(os.path.join(agent_folder, attached.FOLDER))[0]:
                found.attach(each)
        except FileNotFoundError:
            pass                        # no agent with policies has run here
        except OSError as e:
            raise CniError(errors.IO_FAILURE, str(e), 'be root, or leave out the agent\'s pods by --agent-folder ""'
                           ) from None
    return found.cluster


def read_api(kubeconfig: str) -> Cluster:
    """Raises CniError."""
    from fastcni.agent.policy.from_kubernetes import read_cluster
    from fastcni.kit.ipam.cluster.contract import StoreAway
    from fastcni.kit.ipam.cluster.stores.kubernetes_api import open_api

    api = open_api(kubeconfig)
    try:
        return read_cluster(api)
    except StoreAway as e:
        raise CniError(errors.TRY_AGAIN_LATER, str(e)) from None
    finally:
        api.close()


def pod_key(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def ends(cluster: Cluster, name: str) -> tuple[bytes, ...]:
    """The addresses of a pod, or the address itself. Raises CniError."""
    if pod := cluster.pods.get(pod_key(name)):
        if not pod.addresses:
            raise CniError(errors.INVALID_ENVIRONMENT, f"pod {pod.key} has no address of its own",
                           "policies do not apply to pods on the node's network and to pods that have ended")
        return pod.addresses
    try:
        return (addresses.read_ip(name),)
    except ValueError:
        raise CniError(errors.INVALID_ENVIRONMENT, f"there is no pod {pod_key(name)}, and it is no address") from None


def read_port(port: str, pod: Pod | None) -> tuple[int, int]:
    """(protocol, number) of 80, 53/udp or the name of a port of the pod. Raises CniError."""
    from fastcni.agent.policy.objects import MAX_PORT, PROTOCOLS

    name, _, kind = port.partition("/")
    protocol = PROTOCOLS.get(kind.upper() or "TCP", 0)
    number = int(name) if name.isdecimal() else pod.ports.get((name, protocol), 0) if pod else 0
    if not protocol or not 0 < number <= MAX_PORT:
        raise CniError(errors.INVALID_ENVIRONMENT, f"port {port}: expected 1 to {MAX_PORT} or the name of a port of "
                       "the pod TO, and /udp or /sctp behind it for these protocols")
    return protocol, number


def document(reason: Reason | None) -> dict[str, Any] | None:
    """None: the address is no pod's, or a pod connects to itself."""
    if reason is None:
        return None
    return {"allowed": reason.allowed, "rule": reason.rule or None, "policies": list(reason.isolating),
            "text": str(reason)}


def text(found: dict[str, Any]) -> str:
    parts = [f"{direction}: {found[direction]['text']}" for direction in ("egress", "ingress") if found[direction]]
    verdict = "allowed" if found["allowed"] else "denied"
    return "\n    ".join([f"{verdict}: {found['from']} to {found['to']}", *parts])
