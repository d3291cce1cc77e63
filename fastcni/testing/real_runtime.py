"""Requests to plugins in real network namespaces, as a runtime makes them. They need root."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

import pytest

from fastcni.handle import handle
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Reply
from fastcni.runtime.mode import InProcessMode

Conf = dict[str, Any]


class RealRuntime:
    """Requests in the calling thread's namespace, which is the host's for them.

    A pod is the name of a namespace, or a path; its container id is made of that. results: {pod: result} of plugins
    to which the plugin under test is chained; requests for that pod get it as prevResult.
    """

    def __init__(self) -> None:
        self.results: dict[str, Conf] = {}

    def call(self, command: str, conf: Conf | bytes, pod: str = "", *, cid: str | None = None, ifname: str = "eth0",
             plugin: str | None = None, env: dict[str, str | None] | None = None,
             mode: Mode | None = None) -> Reply:
        """Return the Reply to one request. `env` is over the usual variables, None takes one away. mode: of the
        request; None: an InProcessMode."""
        path = pod if not pod or pod.startswith("/") else f"/run/netns/{pod}"
        if pod in self.results and isinstance(conf, dict):
            conf = {"prevResult": self.results[pod], **conf}
        variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid or cid_of(pod), "CNI_NETNS": path,
                     "CNI_IFNAME": ifname, "CNI_PATH": "/nowhere", "PATH": os.environ["PATH"], **(env or {})}
        stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
        kind = plugin or (conf.get("type") if isinstance(conf, dict) else "") or "bridge"
        return handle(kind, {key: value for key, value in variables.items() if value is not None}, stdin,
                      mode or InProcessMode())

    def ok(self, command: str, conf: Conf | bytes, pod: str = "", **more: Any) -> Any:
        """A request that has to succeed; the document that it prints, None without one."""
        reply = self.call(command, conf, pod, **more)
        assert reply.status == 0, reply.stdout.decode()
        return json.loads(reply.stdout) if reply.stdout else None

    def add(self, conf: Conf, pod: str, **more: Any) -> Any:
        """An ADD that has to succeed; its result."""
        return self.ok("ADD", conf, pod, **more)

    def check(self, conf: Conf, pod: str, result: Conf, **more: Any) -> None:
        """A CHECK that has to succeed; `result` is its prevResult."""
        self.ok("CHECK", {**conf, "prevResult": result}, pod, **more)

    def delete(self, conf: Conf, pod: str, **more: Any) -> None:
        """A DEL that has to succeed."""
        assert self.ok("DEL", conf, pod, **more) is None

    def refused(self, command: str, conf: Conf | bytes, pod: str = "", **more: Any) -> Conf:
        """A request that has to fail as the spec says: status 1 and one error document, which is returned."""
        reply = self.call(command, conf, pod, **more)
        assert reply.status == 1, f"{command} should have failed: {reply.stdout.decode()}"
        error = json.loads(reply.stdout)            # fails if there is a second document
        assert set(error) <= {"code", "msg", "details"} and error["code"] > 0 and error["msg"]
        return error

    def check_refused(self, conf: Conf, pod: str, result: Conf, **more: Any) -> str:
        """A CHECK that has to fail; the error's msg."""
        return self.refused("CHECK", {**conf, "prevResult": result}, pod, **more)["msg"]


def cid_of(pod: str) -> str:
    """A container id for a pod's namespace name."""
    return f"c-{os.path.basename(pod)}" if pod else f"c-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def real_runtime(host_netns: str, third_party_plugins: None) -> RealRuntime:
    """A RealRuntime whose host is a fresh namespace."""
    return RealRuntime()
