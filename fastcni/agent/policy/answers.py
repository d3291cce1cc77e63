"""Answer the requests at the agent's socket; requests.py has the protocol."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.policy import attached, ports
from fastcni.agent.policy.cluster_policies import TIERS
from fastcni.agent.policy.evaluate import in_tier, selecting
from fastcni.agent.policy.names.addresses import sets_of
from fastcni.agent.policy.objects import DIRECTIONS
from fastcni.agent.policy.state import VERSIONS
from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastcni.agent.policy.engine import Engine
    from fastcni.agent.policy.leaving import Leaving
    from fastcni.agent.policy.objects import Pod
    from fastcni.agent.policy.requests import Answer, Asked
    from fastcni.agent.policy.service import Settings
    from fastcni.agent.policy.sources.contract import Source

POD_WAIT_S = 5.0                # how long an ADD waits for a Pod object, which the runtime may get before the agent
# How long an ADD waits for the reader process to read the files that changed before the ADD: in general, and for small
# files, which take some milliseconds.
READ_WAIT_S, SMALL_WAIT_S = 0.02, 1.0
MAX_TOLD = 20                   # the maximum of document errors in an answer or a log entry


class Answers:
    """The answers to all requests. write(): writes the changes to the kernel. not_ready(): returns the error that says
    why no pod can be added, or {}."""

    def __init__(self, engine: Engine, finder: ports.Finder, source: Source, leaving: Leaving,
                 settings: Settings, write: Callable[[], None], not_ready: Callable[[], Answer]) -> None:
        self.engine, self.compiler, self.ports, self.source = engine, engine.compiler, finder, source
        self.leaving, self.settings, self.write, self.not_ready = leaving, settings, write, not_ready

    def to(self, request: Asked, waited: float) -> Answer | None:
        """Return the answer to a request. waited: seconds since the request came. None: the caller must call again,
        because data that the answer needs may still come. Raises OSError if the kernel rejects a change."""
        try:
            if request["do"] != "protect":
                self.compiler.settle()
            answers: dict[str, Callable[[Asked, float], Answer | None]] = {
                "protect": self._protect, "check": self._check, "forget": self._forget, "collect": self._collect,
                "status": self._report, "explain": self._explain}
            return answers[request["do"]](request, waited)
        except ports.Unclear as e:
            return {"error": str(e)}
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            return {"error": f"the request cannot be read: {e!r}"}

    def _protect(self, request: Asked, waited: float) -> Answer | None:
        if refusal := self.not_ready():
            return refusal
        if self.source.busy and waited < (SMALL_WAIT_S if self.source.small else READ_WAIT_S):
            return None
        pod = self._pod(request)
        if pod is None:
            if waited < POD_WAIT_S:
                return None
            return {"error": f"the API server has not shown the pod {request['pod']} so far", "again": True}
        known = self.compiler.attachments.get(tuple(request["id"]))         # `fastcni restore` repeats "protect"
        sequence = (known.sequence if known and not known.leaving else 0) or self.compiler.sequence + 1
        it = attached.read({**request, "labels": pod, "sequence": sequence}, self.ports.find(request))
        self.engine.protect(it)
        attached.keep(self.settings.state, it)
        return {}

    def _pod(self, request: Asked) -> Mapping[str, str] | None:
        """Return the labels of a pod: from its Pod object, or from the runtime if the agent reads files. Return None if
        the agent reads the API server, and has not seen this pod yet, or has seen only an earlier pod with this
        name."""
        said: Pod | None = self.compiler.said.get(request["pod"])
        if said and request["uid"] in ("", said.uid or request["uid"]):
            return said.labels
        return request["labels"] if self.settings.directory else None

    def _check(self, request: Asked, _: float) -> Answer:
        it = self.compiler.attachments.get(tuple(request["id"]))
        if it is None or set(it.addresses) != set(map(address.read_ip, request["addresses"])):
            return {"error": f"pod {request['pod']} is not protected with the addresses of prevResult"}
        if it.port != self.ports.find(request):
            return {"error": f"pod {request['pod']}: the rules of its port differ from prevResult or configuration"}
        return {}

    def _forget(self, request: Asked, _: float) -> Answer:
        attached.forget_damaged(self.settings.state, tuple(request["id"]).__eq__)
        if self.leaving.leave(tuple(request["id"])):
            self.write()
        return {}

    def _collect(self, request: Asked, _: float) -> Answer:
        valid = {tuple(each) for each in request["valid"]}
        attached.forget_damaged(self.settings.state, lambda id: id[0] == request["network"] and id[1:] not in valid)
        found = [id for id in self.compiler.attachments if id[0] == request["network"] and id[1:] not in valid]
        gone = [id for id in found if self.leaving.leave(id)]
        self.write()
        return {"released": [f"policies of {container} {ifname}" for _, container, ifname in gone]}

    def _explain(self, request: Asked, _: float) -> Answer:
        cluster = self.compiler.cluster
        return {"pods": [{"pod": pod.key} | {
            direction.lower(): [policy.key for policy in selecting(cluster, [pod], direction)]
            for direction in DIRECTIONS} | {
            tier.lower(): {direction.lower(): [policy.key for policy in in_tier(cluster, [pod], direction, tier)]
                           for direction in DIRECTIONS} for tier in TIERS} | (
                self._names(request["address"]) | self._egress(request["address"]))
            for pod in cluster.pods_at(address.read_ip(request["address"]))]}

    def _names(self, text: str) -> Answer:
        """Return {"names": {domain name in the policies of the pod: addresses that DNS answers for the name allow
        now}}. text: the pod's address."""
        pod, now, state = address.read_ip(text), monotonic(), self.compiler.state
        found = {self.compiler.domains[name].name: [
            address.ip_text(told) for told, until in state.resolved.get(name, {}).get(pod, {}).items() if until > now]
            for name in sets_of(state, pod) if name.startswith(f"d{VERSIONS[len(pod)]}")}
        return {"names": dict(sorted(found.items()))} if found else {}

    def _egress(self, text: str) -> Answer:
        """Return {"egress_address": Egress.describe() of the pod's address `text`}; {} if describe() returns None."""
        found = self.settings.egress.describe(address.read_ip(text)) if self.settings.egress else None
        return {"egress_address": found} if found else {}

    def _report(self, _: Asked, __: float) -> Answer:
        """Answer "status": whether pods can be added, the faults that `fastcni doctor` shows, and the directory of
        files for `fastcni selftest`."""
        unreadable = [text for texts in self.source.errors.values() for text in texts]
        shown: dict[str, Any] = {}
        if unreadable:
            shown = {"unreadable": unreadable[:MAX_TOLD], "more": len(unreadable[MAX_TOLD:])}
        if damaged := attached.damaged(self.settings.state):
            shown["damaged"] = [str(path) for path in damaged]
            shown["closed"] = [str(path) for path in damaged if attached.id_of(path) in self.compiler.attachments]
        if ports_left := [it.port.name for it in self.compiler.attachments.values() if it.port and not it.id[1]]:
            shown["unrecorded"] = ports_left
        if unseen := self.engine.redirects.check(self.engine.rules.sock):
            shown["datapath"] = unseen
        if why := self.engine.not_offloaded:
            shown["flowtable"] = why
        if self.settings.egress and (unheld := self.settings.egress.unheld()):
            shown["unheld"] = unheld
        return {**self.not_ready(), **shown, "folder": self.settings.directory}
