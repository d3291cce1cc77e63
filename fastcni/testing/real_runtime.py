"""Send requests to plugins in real network namespaces, as a runtime does. Needs root."""

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
    """A runtime that sends requests in the calling thread's namespace, which stands for the host's.

    pod, in all methods: the name or the path of a pod's namespace; cid_of() makes the container id from it. results:
    {pod: result of the previous plugins}, for chained plugins; requests for this pod get the result as prevResult.
    """

    def __init__(self) -> None:
        self.results: dict[str, Conf] = {}

    def call(self, command: str, conf: Conf | bytes, pod: str = "", *, cid: str | None = None, ifname: str = "eth0",
             plugin: str | None = None, env: dict[str, str | None] | None = None,
             mode: Mode | None = None) -> Reply:
        """Send a request, and return its Reply. env: {variable: value} that override the default variables; value None
        removes a variable. mode: the request's mode; None: an InProcessMode."""
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
        """Send a request that must succeed. Return its JSON document on stdout, or None."""
        reply = self.call(command, conf, pod, **more)
        assert reply.status == 0, reply.stdout.decode()
        return json.loads(reply.stdout) if reply.stdout else None

    def add(self, conf: Conf, pod: str, **more: Any) -> Any:
        """Run an ADD that must succeed, and return its result."""
        return self.ok("ADD", conf, pod, **more)

    def check(self, conf: Conf, pod: str, result: Conf, **more: Any) -> None:
        """Run a CHECK that must succeed. result: its prevResult."""
        self.ok("CHECK", {**conf, "prevResult": result}, pod, **more)

    def delete(self, conf: Conf, pod: str, **more: Any) -> None:
        """Run a DEL that must succeed."""
        assert self.ok("DEL", conf, pod, **more) is None

    def refused(self, command: str, conf: Conf | bytes, pod: str = "", **more: Any) -> Conf:
        """Send a request that must fail as the spec says: with status 1 and one error document. Return the document."""
        reply = self.call(command, conf, pod, **more)
        assert reply.status == 1, f"{command} should have failed: {reply.stdout.decode()}"
        error = json.loads(reply.stdout)            # raises if there is a second document
        assert set(error) <= {"code", "msg", "details"} and error["code"] > 0 and error["msg"]
        return error

    def check_refused(self, conf: Conf, pod: str, result: Conf, **more: Any) -> str:
        """Run a CHECK that must fail. Return the error's msg."""
        return self.refused("CHECK", {**conf, "prevResult": result}, pod, **more)["msg"]


def cid_of(pod: str) -> str:
    """Return a container id made from the name or path of a pod's namespace; a random id for ""."""
    return f"c-{os.path.basename(pod)}" if pod else f"c-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def real_runtime(host_netns: str, third_party_plugins: None) -> RealRuntime:
    """Make a RealRuntime whose host is a new namespace."""
    return RealRuntime()
