"""Write the self-test's network policies: files in the agent's directory that close and open one of the self-test's
pods."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fastcni.kit import policies
from fastcni.runtime import NetworkList
from fastcni.runtime.parse import flattened
from fastcni.selftest.records import Failed
from fastcni.spec.errors import CniError

PREFIX = "fastcni-selftest-"    # begins names of files and namespaces; the process ID follows
SETTLED_S = 3.0                 # seconds until the agent must have applied a file
PAUSE_S = 0.05
ROLE = "selftest"               # a label; its value is the number of the pod


def directory_of(net: NetworkList) -> str | None:
    """Return the directory of the agent that the network's plugin `policy` uses; "" if its policies are in the
    Kubernetes API. None if the network has no such plugin, or if its agent does not answer, which ADD then reports."""
    for plugin in flattened(net.plugins):
        if plugin.type == "policy":
            try:
                found = policies.ask(str(plugin.values.get("agentSocketPath") or policies.SOCKET), {"do": "status"})
            except (policies.Away, CniError):
                return None
            return str(found.get("folder", ""))
    return None


def without_policy(net: NetworkList) -> NetworkList:
    """Return the network without the plugin `policy`, which waits for an object of each pod in the Kubernetes API."""
    return replace(net, plugins=tuple(plugin for plugin in net.plugins if plugin.type != "policy"))


class Policy:
    """A policy for the second pod's ingress. directory: the directory of the agent's files."""

    def __init__(self, directory: str) -> None:
        self.namespace = f"{PREFIX}{os.getpid()}"
        self.path = Path(directory, f"{self.namespace}.json")

    def arguments(self, number: int) -> list[tuple[str, str]]:
        """Return CNI_ARGS that name a pod for the agent."""
        return [("K8S_POD_NAMESPACE", self.namespace), ("K8S_POD_NAME", f"pod-{number}"),
                ("LABELS", f"{ROLE}:{number}")]

    def write(self, *, opens: bool) -> None:
        """Restrict the second pod's ingress to the first pod, or allow no ingress. Raises OSError."""
        rules = [{"from": [{"podSelector": {"matchLabels": {ROLE: "1"}}}]}] if opens else []
        document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                    "metadata": {"name": "selftest", "namespace": self.namespace},
                    "spec": {"podSelector": {"matchLabels": {ROLE: "2"}}, "policyTypes": ["Ingress"],
                             "ingress": rules}}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(document), encoding="utf-8")
        new.rename(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".new").unlink(missing_ok=True)

    def require(self, connects: Callable[[], object], *, opens: bool) -> None:
        """Write the policy, and wait until a connection from the first pod to the second succeeds or fails accordingly.
        Raises Failed, OSError."""
        self.write(opens=opens)
        deadline = time.monotonic() + SETTLED_S
        while is_open(connects) != opens:
            if time.monotonic() > deadline:
                what = "closed" if opens else "open"
                raise Failed("the policy", f"pod 2 is still {what} to pod 1, {SETTLED_S:.0f} s after a policy that "
                             f"{'allows' if opens else 'forbids'} it", "fastcni policy test POD POD PORT")
            time.sleep(PAUSE_S)


def is_open(connects: Callable[[], object]) -> bool:
    with suppress(OSError):
        connects()
        return True
    return False


def remove_leftovers(directory: str) -> None:
    """Remove the files of self-tests whose process has ended. Raises OSError."""
    for path in Path(directory).glob(f"{PREFIX}*"):
        pid = path.stem.removeprefix(PREFIX)
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            path.unlink(missing_ok=True)
