"""Define the records of PodNetworks: a pod, the networks that a pod asks for, and the reports about pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastcni.runtime.report import Report
from fastcni.spec import result as results
from fastcni.spec.address import ip_text

MAX_BURST = 2**32 - 1           # bits; containerd and CRI-O send this value if the pod asks only for a rate


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the node that is forwarded to a port of the pod. protocol: "tcp", "udp" or "sctp". host_ip: the node's
    address, "" for all its addresses."""

    host_port: int
    container_port: int
    protocol: str = "tcp"
    host_ip: str = ""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A pod's bandwidth limits. Rates are in bits per second, 0 for no limit; bursts are in bits. Ingress is the
    traffic towards the pod."""

    ingress_rate: int = 0
    egress_rate: int = 0
    ingress_burst: int = MAX_BURST
    egress_burst: int = MAX_BURST


@dataclass(frozen=True, slots=True)
class Dns:
    """The contents of a resolv.conf."""

    servers: Sequence[str] = ()
    searches: Sequence[str] = ()
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A network that a pod asks for.

    name: the "name" in the network's configuration. ifname: the name of the interface in the pod; "" for "eth" and the
    index in the pod's list, such as eth0. args: further pairs of CNI_ARGS. capability_args: as in RuntimeConf; these
    have precedence over the arguments that Pod.capability_args() makes.
    """

    name: str
    ifname: str = ""
    args: Sequence[tuple[str, str]] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, for PodNetworks.

    container_id: the id of its sandbox. netns: the path of its network namespace, "" if the namespace no longer exists
    (only for tear_down_pod). name, namespace, uid: the metadata of the Kubernetes pod, "" outside of Kubernetes;
    plugins get these as K8S_POD_NAME and so on. networks: the networks in order; if empty, the pod gets the node's
    default network. host_ports, bandwidth, ips and mac are for the first network. dns, cgroup_path and annotations are
    for all networks. A plugin gets only the values that its configuration declares in "capabilities".
    """

    container_id: str
    netns: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    networks: Sequence[PodNetwork] = ()
    host_ports: Sequence[HostPort] = ()
    bandwidth: Bandwidth | None = None
    dns: Dns | None = None
    ips: Sequence[str] = ()
    mac: str = ""
    cgroup_path: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def cni_args(self) -> list[tuple[str, str]]:
        """Return the pairs of CNI_ARGS that containerd and CRI-O send for a Kubernetes pod; [] for a pod without a
        name."""
        if not self.name:
            return []
        pairs = [("IgnoreUnknown", "1"), ("K8S_POD_NAMESPACE", self.namespace), ("K8S_POD_NAME", self.name),
                 ("K8S_POD_INFRA_CONTAINER_ID", self.container_id), ("K8S_POD_UID", self.uid)]
        return [(key, value) for key, value in pairs if value]

    def capability_args(self, first: bool) -> dict[str, Any]:
        """Return the capability arguments of one network of the pod ("runtimeConfig" in the CNI conventions). first:
        whether it is the pod's first network."""
        args: dict[str, Any] = {}
        if first:
            args["portMappings"] = [to_mapping(port) for port in self.host_ports if port.host_port > 0]
            args["bandwidth"] = to_bandwidth(self.bandwidth) if self.bandwidth else {}
            args["ips"] = list(self.ips)
            args["mac"] = self.mac
        if self.dns:
            args["dns"] = {"servers": list(self.dns.servers), "searches": list(self.dns.searches),
                           "options": list(self.dns.options)}
        args["cgroupPath"] = self.cgroup_path
        args["io.kubernetes.cri.pod-annotations"] = dict(self.annotations)
        return {key: value for key, value in args.items() if value}


def to_mapping(port: HostPort) -> dict[str, Any]:
    mapping = {"hostPort": port.host_port, "containerPort": port.container_port, "protocol": port.protocol.lower()}
    return {**mapping, "hostIP": port.host_ip} if port.host_ip else mapping


def to_bandwidth(limits: Bandwidth) -> dict[str, int]:
    """Return the capability argument "bandwidth": {"ingressRate": bits per second, "ingressBurst": bits, ...}. Each
    rate has a burst, because a plugin rejects a rate without a burst. A rate of 0 is left out."""
    found = {}
    for way, rate, burst in (("ingress", limits.ingress_rate, limits.ingress_burst),
                             ("egress", limits.egress_rate, limits.egress_burst)):
        if rate:
            found.update({f"{way}Rate": rate, f"{way}Burst": burst})
    return found


@dataclass(frozen=True, slots=True)
class PodInterface:
    """A pod's interface in one network. result: the result of ADD, in that result's own version. problem: how the
    interface differs from the result, or ""."""

    network: str
    ifname: str
    result: Mapping[str, Any]
    problem: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the interface's addresses with their prefix lengths: ("10.1.0.2/24",)."""
        return tuple(ip["address"] for ip in self._newest().get("ips", ()))

    @property
    def mac(self) -> str:
        """Return the MAC address of the interface in the pod, "" if the result has no MAC."""
        found = [it for it in self._newest().get("interfaces", ()) if it.get("sandbox")]
        return next((it.get("mac", "") for it in found if it.get("name") == self.ifname), "")

    def _newest(self) -> dict[str, Any]:
        return results.to_version(dict(self.result), "1.1.0")


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The interfaces of a pod. interfaces: without the loopback interface; the first network's interface is first."""

    container_id: str
    interfaces: tuple[PodInterface, ...] = ()

    @property
    def ips(self) -> tuple[str, ...]:
        """Return the addresses of the pod's first interface, without prefix lengths."""
        if not self.interfaces:
            return ()
        return tuple(ip_text(packed) for packed, _ in results.ips_of(self.interfaces[0]._newest()))

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the problems of all interfaces as texts, () without a problem. A pod without interfaces is a problem,
        too."""
        if not self.interfaces:
            return (f"pod {self.container_id} has no network",)
        return tuple(f"{it.network} {it.ifname}: {it.problem}" for it in self.interfaces if it.problem)


@dataclass(frozen=True, slots=True)
class Detached:
    """A network from which tear_down_pod() has detached the pod. report: which plugins were called."""

    network: str
    ifname: str
    report: Report


@dataclass(frozen=True, slots=True)
class Readiness:
    """The state of the node: whether pods can be set up. reason: why not, or "". network: the default network's name,
    or "". broken: for each invalid file of the configuration directory, a text with the file's path and the error."""

    ready: bool
    reason: str = ""
    network: str = ""
    broken: tuple[str, ...] = ()
