"""Check the agent of the plugin policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcni.kit import policies
from fastcni.node import pod_policies
from fastcni.node.checks.denied import denied
from fastcni.node.checks.findings import ERROR, WARNING, Finding, Node
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Iterator


def agent(node: Node) -> Iterator[Finding]:
    """The agent answers, and can read all policies, where a network has the plugin policy."""
    for path in pod_policies.sockets(node.networks, node.agent_folder):
        try:
            status = policies.ask(path, {"do": "status"})
        except CniError as e:
            if isinstance(e, policies.NoAgent) and denied(e):
                node.unseen.append(f"network policies: the agent at {path}: {e.why}")
                continue
            why = f"no agent answers at {path}: {e.why}" if isinstance(e, policies.NoAgent) else e.msg
            yield Finding(ERROR, f"network policies: {why}",
                          "each ADD of that network fails with code 11; the policies in force do not change",
                          "run `fastcni agent` with --policies; the agent's log says why the agent waits")
        else:
            yield from unreadable(status)
            for address in status.get("unheld", []):
                yield Finding(ERROR, f"no node holds the egress address {address}",
                              "pods that should leave the cluster by this address reach nothing outside of the cluster",
                              "a node that runs the agent needs a link, up, with an address in its network; "
                              "docs/policy-egress.md")
            for record in status.get("damaged", []):
                yield Finding(ERROR, f"network policies: {record}: the agent's record of a pod was damaged",
                              "the pod is closed in both directions" if record in status.get("closed", ()) else
                              "no policy protects that pod",
                              "run `fastcni restore`, which sends the pod's request again; if the pod is gone, "
                              "remove the file")
            if unseen := status.get("datapath"):
                yield Finding(WARNING, "network policies: the agent cannot end flows that the datapath ebpf redirects: "
                              f"{unseen}", "when a policy begins to restrict a pod, the agent takes all links of the "
                              "node out of the datapath; allowed connections may end then", "give the agent "
                              "CAP_SYS_ADMIN, and mount /sys/fs/bpf of the node into its container, as "
                              "deploy/agent.yaml does; then fastcni datapath load")
            if refused := status.get("flowtable"):
                yield Finding(WARNING, f"network policies: the kernel refuses the flowtable of --flowtable: {refused}",
                              "established connections between pods pass through the host's stack",
                              "the kernel needs CONFIG_NFT_FLOW_OFFLOAD and CONFIG_NF_FLOW_TABLE_INET; then start the "
                              "agent again, or start it without --flowtable")
            for port in status.get("unrecorded", []):
                yield Finding(ERROR, f"network policies: the agent has no record of the pod at {port}",
                              "the pod is closed in both directions",
                              "run `fastcni restore`, which sends the pod's request again")


def unreadable(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each policy that the agent cannot read. status: the agent's answer to `status`."""
    texts = status.get("unreadable", [])
    if status.get("more"):
        texts = [*texts, f"{status['more']} more documents"]
    for text in texts:
        yield Finding(WARNING, f"network policies: {text}", "the last readable version of the document stays in force; "
                      "a policy without a readable version, or without a readable selector, closes pods",
                      "correct the document; docs/policy-failures.md says which pods are closed until then")
