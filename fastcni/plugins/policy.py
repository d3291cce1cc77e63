"""policy: network policies of Kubernetes hold for the pod before its first process runs; the node agent writes them.

The agent is `fastcni agent --policies`; docs/policy.md describes it. Without it no pod is added (code 11). The pod is
K8S_POD_NAMESPACE and K8S_POD_NAME of CNI_ARGS, else "default" and the container's ID. Its labels are those of its
object. If policies are in files and the pod is not, its labels are those of the capability `labels`, of
`args.cni.labels` ([{"key": "app", "value": "web"}], CNI's conventions), or LABELS=app:web,tier:front of CNI_ARGS.

The pod's traffic has to be forwarded by the node: another plugin before this one makes a link with an end on the host.
"""

from __future__ import annotations

from fastcni.kit import policies
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.spec import errors, version
from fastcni.spec.config import read_args
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

CAPABILITIES, ARGS = ("labels",), ("LABELS",)
VERSIONS = version.ALL[version.ALL.index("0.3.0"):]         # results of earlier versions have no interfaces
KNOWN = (*ARGS, "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID")


class Conf:
    """The keys of one network, and CNI_ARGS. For DEL and GC only socket."""

    __slots__ = ("args", "labels", "socket")

    socket: str                         # agentSocketPath
    args: dict[str, str]
    labels: dict[str, str]


def read(req: Request) -> Conf:
    keys, conf = keys_of(req), Conf()
    conf.socket = keys.text("agentSocketPath") or policies.SOCKET
    if req.command in ENDINGS:
        return conf
    conf.args = read_args(req.args, KNOWN)
    conf.labels = read_labels(conf.args.get("LABELS", ""))
    for each in keys.section("args").section("cni").sections("labels"):
        conf.labels[each.text("key")] = each.text("value")
    given: Section = keys.section("runtimeConfig").section("labels")
    conf.labels |= {key: given.text(key) for key in given.values}
    return conf


def read_labels(text: str) -> dict[str, str]:
    """Labels of CNI_ARGS: app:web,tier:front. Raises CniError 4."""
    found = {}
    for pair in text.split(",") if text else ():
        key, colon, value = pair.partition(":")
        if not colon:
            raise CniError(errors.INVALID_ENVIRONMENT, f'ARGS: LABELS: expected key:value, got "{pair}"')
        found[key] = value
    return found


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    previous = chained.previous(req)
    request = about(req, conf, previous)
    if not any(not interface.get("sandbox") for interface in previous.get("interfaces", ())):
        raise CniError(errors.INVALID_CONFIG, "the pod's traffic does not pass the node: policies cannot hold for it",
                       "put it behind a plugin that makes a link with an end on the host, as bridge and ptp do")
    policies.admit()
    undo(delete, req, conf)
    try:
        policies.ask(conf.socket, {"do": "protect", **request})
    except policies.Away as e:
        raise CniError(errors.TRY_AGAIN_LATER, unreachable(conf, e), policies.HINT) from None
    return previous


def delete(req: Request, conf: Conf) -> None:
    try:
        policies.ask(conf.socket, {"do": "forget", "id": [req.name, req.container_id, req.ifname]})
    except policies.Away as e:
        req.warn(f"{unreachable(conf, e)}. It forgets the pod when another one has its address, or with GC")


def check(req: Request, conf: Conf) -> None:
    policies.admit()
    try:
        policies.ask(conf.socket, {"do": "check", **about(req, conf, chained.previous(req))})
    except policies.Away as e:
        raise CniError(errors.TRY_AGAIN_LATER, unreachable(conf, e), policies.HINT) from None


def gc(req: Request, conf: Conf) -> None:
    try:
        found = policies.ask(conf.socket, {"do": "collect", "network": req.name,
                                           "valid": sorted(map(list, req.valid_attachments))})
    except policies.Away as e:
        req.warn(unreachable(conf, e))
        return
    for what in found.get("released", ()):
        req.release(what)


def status(req: Request, conf: Conf) -> None:
    """Raises CniError 50 if no agent answers, or it does not know the policies yet."""
    try:
        policies.ask(conf.socket, {"do": "status"})
    except (policies.Away, CniError) as e:
        text = unreachable(conf, e) if isinstance(e, policies.Away) else e.msg
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, text, policies.HINT) from None


def about(req: Request, conf: Conf, previous: dict[str, Any]) -> dict[str, Any]:
    """What the agent has to know of an attachment."""
    addresses = [ip["address"].partition("/")[0] for ip in previous.get("ips", ())
                 if chained.in_pod(previous, ip, req.ifname)]
    if not addresses:
        raise CniError(errors.INVALID_CONFIG, f"prevResult has no address of {req.ifname}")
    name = conf.args.get("K8S_POD_NAME") or req.container_id
    return {"id": [req.name, req.container_id, req.ifname],
            "pod": f"{conf.args.get('K8S_POD_NAMESPACE') or 'default'}/{name}",
            "uid": conf.args.get("K8S_POD_UID", ""), "labels": conf.labels, "addresses": addresses}


def unreachable(conf: Conf, e: Exception) -> str:
    return f"the policy agent at {conf.socket}: {e}"
