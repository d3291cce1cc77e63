"""The commands `fastcni policy`: show what network policies allow."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.exit_status import Question
from fastcni.cli.options import completion
from fastcni.cli.policy_convert import convert
from fastcni.cli.text.output import Group, json_option, put_document, put_lines
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.agent.policy.evaluate import Cluster
    from fastcni.agent.policy.objects import Pod
    from fastcni.agent.policy.verdicts import Answer, Direction, Sources

SETTLED_S = 1.0                 # the agent writes a change within this time, so a longer difference is a fault
REREAD_S = 0.1


@click.group(cls=Group)
def policy() -> None:
    """Show what network policies allow.

    The policies are those of networking.k8s.io/v1, and ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2.
    """


policy.add_command(convert)


@policy.command(cls=Question)
@click.argument("source", metavar="FROM", shell_complete=completion.pod_names)
@click.argument("destination", metavar="TO", shell_complete=completion.pod_names)
@click.argument("port")
@click.option("--folder", "directory", default="/etc/fastcni/policies", show_default=True, metavar="DIR",
              help="Read pods, namespaces and policies from the JSON and YAML files of this directory.")
@click.option("--kubernetes", default=None, is_flag=False, flag_value="", metavar="[KUBECONFIG]",
              help="Read pods, namespaces and policies from the Kubernetes API. Without a kubeconfig, use this pod's "
              "service account.")
@click.option("--agent-folder", default="/run/fastcni/agent", show_default=True, metavar="DIR",
              help="The directory of the node's agent, which lists the pods of this node. With an empty DIR, the "
              "answer comes only from the policies, not from the kernel.")
@click.option("--node-name", default="", envvar="NODE_NAME", metavar="NAME",
              help="This node's name in the Kubernetes API [the host name].")
@json_option
def test(source: str, destination: str, port: str, directory: str, kubernetes: str | None, agent_folder: str,
         node_name: str, as_json: bool) -> None:
    """Say whether a connection is allowed, and by which rule.

    \b
    fastcni policy test shop/web shop/db 5432    two pods of a namespace
    fastcni policy test 192.0.2.7 shop/web http  an address; a port by its name
    fastcni policy test shop/web 10.96.0.10 53/udp
    fastcni policy test shop/web api.example.com 443     a name in a policy's
                                domainNames: its addresses in DNS answers to web

    A pod is NAMESPACE/NAME, or NAME in the namespace `default`.

    The command reads the verdict from this node's kernel, and compares it with the policies. For pods of other nodes,
    and on a machine where no agent with policies has run, the verdict comes only from the policies. The output then
    says so.

    \b
    Exit status:
      0   allowed
      1   denied
      2   no answer: an argument is wrong, or the kernel or the policies cannot
          be read
      3   the kernel differs from the policies

    NetworkPolicies always allow traffic between a pod and its own node. Cluster policies can deny packets from a pod to
    its node. No pod may send packets of the node's tunnels.
    """
    from fastcni.agent.policy.verdicts import DIFFERS

    until = time.monotonic() + SETTLED_S
    while True:
        sources = read_sources(directory, kubernetes, agent_folder, node_name)
        found = answers(sources, source, destination, port)
        status = max(each.verdict for each in found)        # the worst answer of all connections
        if status != DIFFERS or time.monotonic() >= until:
            break
        time.sleep(REREAD_S)            # the agent may be about to write a change
    if not as_json:
        put_lines(text(each, sources.unread) for each in found)
    else:
        put_document({"connections": [document(each) for each in found], "unread": sources.unread or None})
    sys.exit(status)


def answers(sources: Sources, source: str, destination: str, port: str) -> list[Answer]:
    """Return one Answer for each pair of addresses of FROM and TO of the same family. Raises CniError."""
    from fastcni.agent.policy.evaluate import Connection
    from fastcni.agent.policy.verdicts import answer

    cluster = sources.cluster
    protocol, number = read_port(port, cluster.pods.get(pod_key(destination)))
    pods = ends(sources, source)
    found = [answer(sources, Connection(one, other, protocol, number)) for one in pods
             for other in ends(sources, destination, pods) if len(one) == len(other)]
    if not found:
        raise CniError(errors.INVALID_ENVIRONMENT, f"{source} and {destination} have no addresses of the same family")
    return found


# -- the kernel, the policies and the pods -----------------------------------------------------------------------------

def read_sources(directory: str, kubernetes: str | None, agent_folder: str, node_name: str) -> Sources:
    """Read the kernel's tables, the policies, and the pods that the agent knows from their ADD. Raises CniError."""
    from fastcni.agent.policy import attached, own_addresses, verdicts

    try:
        tables = verdicts.read_tables(agent_folder)
        attachments = verdicts.read_attachments(agent_folder)
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"cannot read which policies this node enforces: {e}",
                       'run the command as root, or ask only the policies, by --agent-folder ""') from None
    it, unread = attached.AttachedCompiler(), ""
    try:
        it.put_all(read_files(directory) if kubernetes is None else read_api(kubernetes))
    except CniError as e:
        if tables is None:
            raise
        unread = e.msg
    for each in attachments:
        it.attach(each)
    it.cluster.resolved = verdicts.resolved(it.domains, tables or ())
    own = {packed for each in attachments for packed in each.addresses}
    node = node_name or os.uname().nodename

    def local(packed: bytes) -> bool:
        return (kubernetes is None or packed in own            # policies from files apply to all pods
                or any(pod.node == node for pod in it.cluster.pods_at(packed)))

    return verdicts.Sources(it.cluster, unread, tables, local, () if tables is None else own_addresses.node_addresses())


def read_files(directory: str) -> Cluster:
    """Return the pods and policies that the files of a directory describe. Raises CniError."""
    from fastcni.agent.policy.objects import PolicyError
    from fastcni.agent.policy.sources.files import read_cluster

    try:
        return read_cluster(directory)
    except (PolicyError, OSError) as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None


def read_api(kubeconfig: str) -> Cluster:
    """Return the pods and policies of the Kubernetes API. Raises CniError."""
    from fastcni.agent.policy.sources.kubernetes import read_cluster
    from fastcni.clients.errors import Away
    from fastcni.clients.kubernetes import open_api

    api = open_api(kubeconfig)
    try:
        return read_cluster(api)
    except Away as e:
        raise CniError(errors.TRY_AGAIN_LATER, str(e)) from None
    finally:
        api.close()


# -- the arguments -----------------------------------------------------------------------------------------------------

def pod_key(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def ends(sources: Sources, name: str, told: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """Return the addresses that `name` stands for: a pod's addresses, the address itself, or the addresses of a domain
    name in DNS answers to the pod whose addresses are `told`. Raises CniError."""
    if pod := sources.cluster.pods.get(pod_key(name)):
        if not pod.addresses:
            raise CniError(errors.INVALID_ENVIRONMENT, f"pod {pod.key} has no address of its own",
                           "policies do not apply to pods on the node's network and to pods that have ended")
        return pod.addresses
    try:
        return (addresses.read_ip(name),)
    except ValueError:
        if found := told_by(sources, name.lower().rstrip("."), told):
            return found
        unread = f"; the policies cannot be read: {sources.unread}" if sources.unread else ""
        raise CniError(errors.INVALID_ENVIRONMENT,
                       f"there is no pod {pod_key(name)}, and {name} is no address{unread}") from None


def told_by(sources: Sources, name: str, pod: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the addresses of the domain name `name` in DNS answers to a pod; () if no policy has the name. pod: the
    pod's addresses. Raises CniError if a policy has the name, but no answer has an address."""
    from fastcni.agent.policy.objects import Domain

    known = [pairs for domain, pairs in sources.cluster.resolved.items() if Domain(domain).matches(name)]
    found = tuple(sorted({told for pairs in known for source, told in pairs if source in pod}))
    if known and not found:
        raise CniError(errors.INVALID_ENVIRONMENT,
                       f"no DNS answer gave the pod an address of {name}, or its TTL is over",
                       "a policy has the name, so let the pod ask its resolver")
    return found


def read_port(port: str, pod: Pod | None) -> tuple[int, int]:
    """Return (protocol number, port number) of a text such as 80, 53/udp, or the name of one of the pod's ports. Raises
    CniError."""
    from fastcni.agent.policy.objects import MAX_PORT, PROTOCOLS

    name, _, kind = port.partition("/")
    protocol = PROTOCOLS.get(kind.upper() or "TCP", 0)
    number = int(name) if name.isdecimal() else pod.ports.get((name, protocol), 0) if pod else 0
    if not protocol or not 0 < number <= MAX_PORT:
        raise CniError(errors.INVALID_ENVIRONMENT, f"port {port}: expected 1 to {MAX_PORT} or the name of a port of "
                       "the pod TO, and /udp or /sctp behind it for these protocols")
    return protocol, number


# -- the output --------------------------------------------------------------------------------------------------------

def document(answer: Answer) -> dict[str, Any]:
    from fastcni.agent.policy.verdicts import ALLOWED, DENIED, VERDICTS

    return {"from": addresses.ip_text(answer.connection.source), "to": addresses.ip_text(answer.connection.destination),
            "allowed": {ALLOWED: True, DENIED: False}.get(answer.verdict), "answer": VERDICTS[answer.verdict],
            "by": "kernel" if answer.by_kernel else "policies",
            **{name.lower(): direction_document(one) for name, one in answer.directions.items()},
            "chains": {name: decision_document(one) for name, one in answer.more.items()}}


def direction_document(direction: Direction) -> dict[str, Any] | None:
    """Return the JSON values of a direction. None if the address belongs to no pod, or if a pod connects to itself."""
    from fastcni.agent.policy.verdicts import ALLOWED

    kernel = decision_document(direction.kernel) if direction.kernel else None
    if direction.policies is None:
        return {"allowed": None, "rule": None, "policies": [], "text": direction.kernel.text, "kernel": kernel} if (
            direction.kernel and not (direction.read and direction.verdict == ALLOWED)) else None
    return {"allowed": direction.policies.allowed, "rule": direction.policies.rule or None,
            "policies": list(direction.policies.isolating),
            "text": str(direction.policies), "kernel": kernel}


def decision_document(decision: Any) -> dict[str, Any]:
    return {"allowed": decision.allowed, "text": decision.text}


def text(answer: Answer, unread: str) -> str:
    from fastcni.agent.policy.verdicts import DIFFERS, VERDICTS

    verdict = "the kernel and the policies differ" if answer.verdict == DIFFERS else VERDICTS[answer.verdict]
    source, destination = answer.connection.source, answer.connection.destination
    lines = [f"{verdict}: {addresses.ip_text(source)} to {addresses.ip_text(destination)}"]
    for name, one in answer.directions.items():
        lines += direction_lines(name.lower(), one)
    lines += [f"{name}: {one.text}" for name, one in answer.more.items() if not one.allowed]
    if unread:
        lines.append(f"by the kernel alone: the policies cannot be read: {unread}")
    elif not answer.by_kernel:
        lines.append("by the policies alone: this machine's kernel does not decide about this connection")
    return "\n    ".join(lines)


def direction_lines(name: str, direction: Direction) -> list[str]:
    from fastcni.agent.policy.verdicts import DIFFERS, UNKNOWN

    if direction.verdict == DIFFERS:
        said = str(direction.policies) if direction.policies else "allowed: no pod has this address"
        return [f"{name}: the policies: {said}", f"{name}: the kernel: {direction.kernel.text}"]    # type: ignore[union-attr]
    if direction.kernel and (direction.verdict == UNKNOWN or not direction.read):
        return [f"{name}: {direction.kernel.text}"]
    elsewhere = "" if direction.kernel else ", as the kernel of the pod's node decides"
    return [f"{name}: {direction.policies}{elsewhere}"] if direction.policies else []
