"""Write the self-test's network policy, a file in the agent's directory that closes or opens a pod of the self-test."""

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
from fastcni.selftest.check import Failed
from fastcni.spec.errors import CniError

PREFIX = "fastcni-selftest-"    # the beginning of names of files and Kubernetes namespaces; the process ID follows
SETTLED_S = 3.0                 # seconds within which the agent must apply a file
PAUSE_S = 0.05                  # seconds between two tries to connect
ROLE = "selftest"               # a label of the pods; its value is the number of the pod


def directory_of(net: NetworkList) -> str | None:
    """Return the policy directory of the agent that the network's plugin `policy` uses; "" if the agent reads policies
    from the Kubernetes API. Return None without this plugin, or if the agent does not answer, which ADD then
    reports."""
    for plugin in flattened(net.plugins):
        if plugin.type == "policy":
            try:
                found = policies.ask(str(plugin.values.get("agentSocketPath") or policies.SOCKET), {"do": "status"})
            except CniError:
                return None
            return str(found.get("folder", ""))
    return None


def without_policy(net: NetworkList) -> NetworkList:
    """Return the network without the plugin `policy`. With the Kubernetes API, this plugin would wait for a Pod object,
    which the self-test's pods do not have."""
    return replace(net, plugins=tuple(plugin for plugin in net.plugins if plugin.type != "policy"))


class Policy:
    """A network policy for the second pod's ingress. directory: the agent's policy directory."""

    def __init__(self, directory: str) -> None:
        self.namespace = f"{PREFIX}{os.getpid()}"
        self.path = Path(directory, f"{self.namespace}.json")

    def arguments(self, number: int) -> list[tuple[str, str]]:
        """Return the CNI_ARGS that give pod `number` a name, a namespace and a label for the agent."""
        return [("K8S_POD_NAMESPACE", self.namespace), ("K8S_POD_NAME", f"pod-{number}"),
                ("LABELS", f"{ROLE}:{number}")]

    def write(self, *, opens: bool) -> None:
        """Write the policy. opens: allow the second pod ingress from the first pod; otherwise allow no ingress. Raises
        OSError."""
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
        """Write the policy, and wait until connects(), a connection from the first to the second pod, succeeds (opens)
        or fails (not opens). Raises Failed after SETTLED_S, and OSError."""
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
    """Remove policy files of previous self-tests, whose process has ended. Raises OSError."""
    for path in Path(directory).glob(f"{PREFIX}*"):
        pid = path.stem.removeprefix(PREFIX)
        if pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
            path.unlink(missing_ok=True)
