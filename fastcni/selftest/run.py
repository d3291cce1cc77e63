"""Run the checks of a network: add two pods, test packets between the pods, the node and an outside host, send DEL."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from fastcni.kernel import netns, sysctl
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.runtime import CNI, NetworkList
from fastcni.runtime.exec import Exec
from fastcni.runtime.parse import flattened
from fastcni.runtime.records import PluginConf
from fastcni.selftest import icmp, node, policies, sockets
from fastcni.selftest.check import ONE_SHOT, Check, Failed
from fastcni.selftest.outside import Outside
from fastcni.selftest.peer import Peer
from fastcni.selftest.pods import Pod, leftovers
from fastcni.spec import errors
from fastcni.spec.errors import CniError

PROBE_S = 1.5                   # the longest wait of a probe; probes run at the same time
BULK_S = 1.2                    # the duration of the TCP stream of the bandwidth check
POLICY_S = 0.3                  # seconds for one attempt to connect
RATE = 8_000_000                # bit/s of the bandwidth check
BURST = 80_000                  # bits
ALLOWED = 1.3                   # the factor by which a TCP stream of BULK_S may exceed RATE
Probe = Callable[[], str | None]        # raises Failed or OSError, or returns why the check does not apply
BRIDGE_FILTER = "net.bridge.bridge-nf-call-iptables"
TESTED = {"portMappings": "host-port", "bandwidth": "bandwidth"}       # {capability: the check that tests it}
NOT_REACHED = ("macvlan", "ipvlan")     # with these plugins, a pod cannot reach its own node, by design of the kernel


class Network:
    """The checks of one network in one mode. host: a descriptor of the node's namespace. server: the node's server.
    policy: the Policy for the pods, if an agent with policy files answers. peer: the other node of --peer."""

    def __init__(self, cni: CNI, net: NetworkList, mode: str, outside: Outside, host: int,
                 server: sockets.Server, peer: Peer | None = None) -> None:
        self.peer = peer
        self.cni, self.net, self.mode = cni, net, mode
        self.outside, self.host, self.server = outside, host, server
        plugins = flattened(net.plugins)
        self.types = {plugin.type for plugin in plugins}
        declared = [(plugin.type, name) for plugin in plugins for name, on in plugin.capabilities.items() if on]
        self.capabilities = {name for kind, name in declared if kind not in RUNS_NETWORKS}
        self.passed = {name for kind, name in declared if kind in RUNS_NETWORKS and name in TESTED} - self.capabilities
        self.apart = apart(plugins)
        self.gives_gateway = any(node.has_gateway(plugin) for plugin in plugins)
        self.masquerades = any(plugin.values.get("ipMasq") for plugin in plugins)
        self.host_port = 0
        self.deleted: Check | None = None
        directory = policies.directory_of(net)
        self.policy = policies.Policy(directory) if directory else None
        if directory == "":
            self.net = policies.without_policy(net)

    def checks(self) -> Generator[Check, None, None]:
        """Add two pods, run the checks, and yield each result. Then delete the pods, even if the caller stops early."""
        with ExitStack() as opened:
            pods = [Pod(self.cni, self.net, number, self.policy.arguments(number) if self.policy else ())
                    for number in (1, 2)]
            for pod in pods:
                opened.callback(self._close, pod)
            added = self._check("add", partial(self._add, pods))
            yield added
            if not added.ok:
                deleted = self._delete(pods)
                if not deleted.ok:
                    yield deleted
                return
            self.outside.route_to([packed for pod in pods for packed in pod.ips])
            probes = list(self._probes(*pods))
            with ThreadPoolExecutor(len(probes)) as pool:
                yield from pool.map(lambda probe: self._check(*probe), probes)
            if "bandwidth" in self.capabilities:
                yield self._check("bandwidth", self._between(partial(self._require_limit, *pods)))
            if self.policy and not self.apart:
                opened.callback(self.policy.remove)
                connects = partial(sockets.connect, pods[0].namespace, *self._end(pods[1]), POLICY_S)
                for name, opens in (("policy-closed", False), ("policy-open", True)):
                    yield self._check(name, partial(self.policy.require, connects, opens=opens))
            yield self._check("check", partial(each, pods, Pod.check))
            yield self._delete(pods)

    def _end(self, pod: Pod) -> tuple[str, int]:
        """Return the address and port of a pod's server."""
        return pod.texts[min(pod.texts)], pod.server.port

    def _delete(self, pods: list[Pod]) -> Check:
        self.deleted = self._check("del", partial(each, pods, Pod.delete))
        return self.deleted

    def _close(self, pod: Pod) -> None:
        """Close a pod. Raises CniError if its DEL fails and the check "del" has not reported this."""
        try:
            pod.close()
        except Failed as e:
            if self.deleted is None or self.deleted.ok:
                raise CniError(errors.INTERNAL, f"{pod.name} of the test stays: DEL: {e}", e.command) from None

    def _check(self, name: str, function: Probe) -> Check:
        return node.check(name, self.net, self.mode, function)

    def _add(self, pods: list[Pod]) -> None:
        first, second = pods
        first.add({})
        given: dict[str, Any] = {}
        if "portMappings" in self.capabilities:
            self.host_port = sockets.free_port()
            given["portMappings"] = [{"hostPort": self.host_port, "containerPort": second.server.port,
                                      "protocol": "tcp"}]
        if "bandwidth" in self.capabilities:
            given["bandwidth"] = {"ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST}
        second.add(given)
        if not second.ips:
            raise Failed("IPAM", "the result of ADD has no address", f"fastcni netconf {self.net.name}")

    # -- the probes of packets -----------------------------------------------------------------------------------------

    def _probes(self, first: Pod, second: Pod) -> Iterator[tuple[str, Probe]]:
        """Yield (name, probe) for each address family that both pods have, and for the network's name servers."""
        for family in sorted(first.texts.keys() & second.texts.keys()):
            suffix = "-ipv6" if family == 6 else ""
            yield f"pod{suffix}", self._between(partial(self._pod_to_pod, first, second, family))
            yield f"mtu{suffix}", self._between(partial(self._full_size, first, second, family))
            if not self.types.intersection(NOT_REACHED):
                yield from self._probes_of_node(first, second, family, suffix)
            if self.peer:
                yield from self._probes_of_peer(self.peer, first, family, suffix)
        for name in sorted(self.passed):
            yield TESTED[name], partial(str, f"not tested: multus passes {name} to the plugins of the pod's networks")
        for address in (first.result.get("dns") or {}).get("nameservers") or ():
            yield "dns", partial(self._dns, first, address)

    def _probes_of_node(self, first: Pod, second: Pod, family: int, suffix: str) -> Iterator[tuple[str, Probe]]:
        leaves = family in self.outside.host and sockets.has_route(first.namespace, self.outside.host[family])
        if gateway := first.gateways.get(family):
            on_node = self.gives_gateway or sockets.has_address(gateway)
            yield f"gateway{suffix}", (partial(self._gateway, first, gateway) if on_node or leaves else
                                       partial(str, "not tested: no route of the pod leads over the gateway, and the "
                                                    "network does not give the node its address"))
            if sockets.has_address(gateway):
                yield f"host{suffix}", partial(self._to_host, first, gateway)
            yield f"host-to-pod{suffix}", (partial(self._from_host, second, family) if on_node else
                                           partial(str, "not tested: the network gives the node no address in the "
                                                        "pods' subnet"))
        if family not in self.outside.host:
            return
        if not leaves:
            yield f"outside{suffix}", lambda: "not tested, nor is host-port: the network gives its pods no route there"
            return
        yield f"outside{suffix}", partial(self._to_outside, first, family)
        if self.host_port:
            yield f"host-port{suffix}", partial(self._host_port, self.outside.namespace, "the outside host", family)
            if self._can_hairpin():
                yield f"hairpin{suffix}", self._between(partial(self._host_port, second.namespace, "the pod itself",
                                                                family))

    def _probes_of_peer(self, peer: Peer, pod: Pod, family: int,
                        suffix: str) -> Iterator[tuple[str, Probe]]:
        """Yield (name, probe) from a pod to another node, and to that node's addresses in its pods' subnet."""
        ways = ("peer", "the way to the other node", peer.node), ("peer-pods", "the way to the pods there", peer.pods)
        for name, hop, addresses in ways:
            if found := addresses.get(family):
                yield f"{name}{suffix}", partial(self._to_peer, pod, hop, found, 0)
                yield f"{name}-mtu{suffix}", partial(self._to_peer, pod, hop, found, pod.mtu())

    def _between(self, probe: Probe) -> Probe:
        """Return `probe`, which sends packets from pod to pod. If the network forbids these packets, return a probe
        that returns the reason."""
        return partial(str, f"not tested: {self.apart}") if self.apart else probe

    def _can_hairpin(self) -> bool:
        """Return whether a pod can reach itself by a host port. If br_netfilter applies destination NAT in the bridge,
        a pod needs the key hairpinMode of the plugin bridge for this."""
        bridges = [plugin for plugin in flattened(self.net.plugins) if plugin.type == "bridge"]
        return all(plugin.values.get("hairpinMode") for plugin in bridges) or not (
            sysctl.exists(BRIDGE_FILTER) and sysctl.read(BRIDGE_FILTER) == "1")

    def _tcp(self, namespace: int, address: str, port: int, hop: str, what: str,
             command: str = "fastcni doctor") -> str:
        try:
            return sockets.connect(namespace, address, port, PROBE_S)
        except OSError as e:
            raise Failed(hop, f"{what}: TCP to {address}:{port}: {e.strerror or e}", command) from None

    def _pod_to_pod(self, first: Pod, second: Pod, family: int) -> None:
        self._tcp(first.namespace, second.texts[family], second.server.port, "between two pods",
                  f"{first.name} ({first.texts[family]}) does not reach {second.name}")

    def _gateway(self, pod: Pod, gateway: str) -> None:
        with sending("the pod's route", f"{pod.name} cannot send to its gateway {gateway}"):
            answered = icmp.ping(pod.namespace, gateway, PROBE_S)
        if not answered:
            raise Failed("the pod's gateway", f"the gateway {gateway} does not answer {pod.name}'s echo requests",
                         f"ip address show to {gateway}")

    def _to_peer(self, pod: Pod, hop: str, addresses: Sequence[str], size: int) -> None:
        """Send echo requests of `size` bytes (0: as short as possible) until one of the addresses answers. Raises
        Failed."""
        what = f"{pod.name}'s echo requests" + (f" of {size} bytes, the MTU of its link" if size else "")
        for address in addresses:
            with sending(hop, f"{pod.name} cannot send {size} bytes to {address}"):
                if icmp.ping(pod.namespace, address, PROBE_S / len(addresses), size):
                    return
        raise Failed(hop, f"{' and '.join(addresses)} on the other node: no answer to {what}",
                     "ip link" if size else f"ip route get {addresses[0]}")

    def _to_host(self, pod: Pod, gateway: str) -> None:
        self._tcp(pod.namespace, gateway, self.server.port, "the node's input", f"{pod.name} does not reach the node",
                  "nft list ruleset; iptables -S INPUT")

    def _from_host(self, pod: Pod, family: int) -> None:
        self._tcp(self.host, pod.texts[family], pod.server.port, "from the node to the pod",
                  f"the node does not reach {pod.name}", f"ip route get {pod.texts[family]}")

    def _to_outside(self, pod: Pod, family: int) -> None:
        seen = self._tcp(pod.namespace, self.outside.host[family], self.outside.server.port, "the node's forwarding",
                         f"{pod.name} does not reach a host outside of the node (by {self.outside.link})")
        if self.masquerades and seen == pod.texts[family]:
            raise Failed("masquerade", f"the outside host sees the pod's own address {seen}, although the network has "
                         "ipMasq", "fastcni restore")

    def _host_port(self, namespace: int, who: str, family: int) -> None:
        self._tcp(namespace, self.outside.node[family], self.host_port, "the host port",
                  f"{who} does not reach the pod by port {self.host_port} of the node", "fastcni restore")

    def _full_size(self, first: Pod, second: Pod, family: int) -> None:
        size = first.mtu()
        what = f"a packet of {size} bytes, the MTU of {first.name}'s link,"
        with sending("the MTU", f"{what} cannot be sent to {second.name}", "ip link"):
            arrived = sockets.datagram(first.namespace, second.texts[family], second.server.port, size, PROBE_S)
        if not arrived:
            raise Failed("the MTU", f"{what} does not reach {second.name}", "ip link")

    def _dns(self, pod: Pod, address: str) -> None:
        with sending("the name server", f"{pod.name} cannot ask the name server {address}"):
            answered = sockets.answers_dns(pod.namespace, address, PROBE_S)
        if not answered:
            raise Failed("the name server", f"the name server {address} of the network does not answer {pod.name}")

    def _require_limit(self, first: Pod, second: Pod) -> None:
        found = sockets.rate(first.namespace, self._end(second)[0], second.server, BULK_S)
        if not 0 < found <= RATE * ALLOWED:
            raise Failed("the bandwidth limit", f"{second.name} receives {found / 1e6:.1f} Mbit/s, its limit is "
                         f"{RATE / 1e6:.0f}", "tc qdisc show")


def apart(plugins: Iterable[PluginConf]) -> str:
    """Return why the configuration forbids packets between pods; "" if it allows them."""
    for plugin in plugins:
        bridge = plugin.values.get("delegate") if plugin.type == "flannel" else plugin.values
        if isinstance(bridge, dict) and bridge.get("portIsolation") is True:
            return "portIsolation forbids packets between pods of the bridge"
        if plugin.type == "firewall" and plugin.values.get("ingressPolicy") == "isolated":
            return "the ingressPolicy isolated forbids packets between pods"
    return ""


@contextmanager
def sending(hop: str, what: str, command: str = "fastcni doctor") -> Iterator[None]:
    """Raise Failed with `hop`, `what` and `command` if the body raises OSError."""
    try:
        yield
    except OSError as e:
        raise Failed(hop, f"{what}: {e.strerror or e}", command) from None


def each(pods: Iterable[Pod], method: Callable[[Pod], None]) -> None:
    """Call a method of each pod."""
    for pod in pods:
        method(pod)


def run(cni: CNI, nets: list[NetworkList], modes: list[str],
        peer: Peer | None = None) -> Generator[Check, None, None]:
    """Run the checks of each network in each mode, and yield the results. peer: check also the path to this node.
    Raises OSError, and CniError if pods of previous self-tests cannot be deleted.

    The self-test executes the plugins as a runtime does. In ONE_SHOT mode, the plugins find no server.
    """
    with ExitStack() as opened:
        host = netns.open_own()
        opened.callback(os.close, host)
        server = opened.enter_context(closing(sockets.Server(host)))
        for net in nets:
            for left in leftovers(cni, net.name):
                cni.delete(net, left)
            if directory := policies.directory_of(net):
                policies.remove_leftovers(directory)
            missing = node.missing_bridges(net)
            yield from node.checks(cni, net, modes[0])
            try:
                for mode in modes:
                    with closing(Outside()) as outside:
                        yield from Network(for_mode(cni, mode), net, mode, outside, host, server, peer).checks()
            finally:
                node.delete_bridges(missing)


def for_mode(cni: CNI, mode: str) -> CNI:
    """Return a copy of the runtime `cni` whose plugins run in `mode`, ONE_SHOT or WARM."""
    environ = {**os.environ, "FASTCNI_SOCKET": ""} if mode == ONE_SHOT else None
    return CNI(cni.plugin_dirs, cni.conf_dir, cni.cache.directory, Exec(environ))
