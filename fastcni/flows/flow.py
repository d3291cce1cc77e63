"""Define Flow: the two ends of a packet or request, the verdict (allowed or dropped), and what decided the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ALLOWED, DROPPED = "allowed", "dropped"                             # verdicts
POLICY, FIREWALL, ISOLATION, HTTP = "policy", "firewall", "isolation", "http"      # values of Flow.by


@dataclass(frozen=True, slots=True)
class End:
    """One end of a flow.

    pod: NAMESPACE/NAME, or the container id if the runtime gave no name. pod, network and container are "" if the
    address is not a pod's on this node. port: None for a protocol without ports.
    """

    pod: str
    network: str
    container: str
    address: str
    port: int | None

    def document(self) -> dict[str, Any]:
        return {"pod": self.pod, "network": self.network, "container": self.container, "address": self.address,
                "port": self.port}


@dataclass(frozen=True, slots=True)
class Flow:
    """One line of `fastcni flows`.

    time: Unix seconds. verdict: ALLOWED or DROPPED. by: what dropped or allowed the flow: POLICY, FIREWALL, ISOLATION,
    or HTTP for a request that no rule allows; "" if no policy restricts an allowed flow. policy: the names, separated
    by ", ", of the policies that allow the flow, or that restrict the pod for which the flow was dropped. chain: the
    chain that dropped the packet, such as "inet fastcni-policy ingress". request: for an HTTP request, its method, host
    and path, the status of the answer, and the reason for a denial; {} for other flows.
    """

    time: float
    verdict: str
    by: str
    policy: str
    protocol: str
    source: End
    destination: End
    chain: str = ""
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def network(self) -> str:
        """Return the network of the destination's pod; if the destination is no pod, that of the source's pod."""
        return self.destination.network or self.source.network

    def document(self) -> dict[str, Any]:
        """Return the flow as `--json` prints it. dataclasses.asdict() would take ten times as long."""
        return {"time": self.time, "verdict": self.verdict, "by": self.by, "policy": self.policy,
                "protocol": self.protocol, "source": self.source.document(),
                "destination": self.destination.document(), "chain": self.chain,
                **({"request": self.request} if self.request else {})}
