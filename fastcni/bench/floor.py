"""Measure the floor of each case, the smallest possible cost: the time of a launcher plus the time of the necessary
kernel requests.

The launcher is an installed plugin file, which echo.py answers immediately. The kernel requests are those that any
plugin must send. This process is warm, and sends the requests through sockets that are already open. Like any plugin,
this process must open one more socket in the pod's namespace.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.bench.node import LOOPBACK
from fastcni.kernel import filters, netns, nft, nft_elements, rtnl, sysctl, uapi, wire
from fastcni.kit.bridge import unflooded
from fastcni.kit.links import find

if TYPE_CHECKING:
    from fastcni.bench.calls import Flow
    from fastcni.bench.node import Network, Pod
    from fastcni.bench.sides import Plugins
    from fastcni.kernel.wire import Socket

GONE_SECONDS = 30
SENDERS = 32                    # threads that wait for ACKs: more than the links that are deleted in 20 ms
TABLE, MAP, CHAIN = "fcni-bench", "pods", "masquerade"
ANYWHERE = bytes(4)
UNFLOODED = "disableFlooding"
ACCEPT_NO_DAD = "net/ipv6/conf/eth0/accept_dad", "0"
GROUP = 0x66636E69              # the link group by which empty() deletes many links


class Floor:
    """The floor as an implementation, with the methods of sides.Plugins. Use it in the node's network namespace: `with
    Floor(launcher) as floor:`. launcher: a Plugins whose files ask echo.py."""

    name = "floor"

    def __init__(self, launcher: Plugins) -> None:
        self.launcher = launcher
        self.bridges: dict[str, int] = {}                   # {name: index}
        # {pod's number: (index of the host end, index of the pod's end)}
        self.made: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Floor:
        self.home = netns.open_own()
        self.host, self.firewall = wire.open_socket(), wire.open_socket(uapi.NETLINK_NETFILTER)
        self.watcher = wire.open_socket(groups=(uapi.RTNLGRP_LINK,))
        filters.attach(self.watcher, filters.deletions())
        self.deletes: SimpleQueue[int | None] = SimpleQueue()
        self.senders = [threading.Thread(target=self._send_deletes, daemon=True) for _ in range(SENDERS)]
        for sender in self.senders:
            sender.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for _ in self.senders:
            self.deletes.put(None)
        for sender in self.senders:
            sender.join(GONE_SECONDS)
        for sock in (self.host, self.firewall, self.watcher):
            sock.close()
        os.close(self.home)

    def prepare(self, network: Network) -> None:
        """Make the bridge and the nftables map of a network. A plugin makes the bridge and the map only for the first
        pod."""
        if network.case.type == "bridge" and network.bridge not in self.bridges:
            self.bridges[network.bridge] = self._make_bridge(network)
        if network.case.keys.get("ipMasq"):
            batch = nft.add_table(nft.start(Batch()), nft.NFPROTO_INET, TABLE, "fastcni bench")
            nft.add_chain(batch, nft.NFPROTO_INET, TABLE, CHAIN)
            nft_elements.add_set(batch, nft.NFPROTO_INET, TABLE, MAP, (nft_elements.TYPE_IPADDR,), set_id=1,
                        verdicts=True)
            wire.exchange(self.firewall, nft.stop(batch))

    def _make_bridge(self, network: Network) -> int:
        snooping = not network.case.keys.get(UNFLOODED)
        wire.exchange(self.host, rtnl.new_bridge(Batch(), network.bridge, snooping=snooping))
        bridge = find.link(self.host, network.bridge)
        assert bridge is not None
        # A bridge keeps a MAC that was set
        batch = rtnl.set_link(Batch(), bridge.index, up=True, address=bridge.address)
        wire.exchange(self.host, rtnl.new_address(batch, bridge.index, network.gateway, 16))
        return bridge.index

    def flow(self, command: str, network: Network, pods: Sequence[Pod], at_once: int) -> Flow:
        """Run a launcher for each pod, `at_once` at a time, without kernel requests. This measures the limit of the
        benchmark itself."""
        return self.launcher.flow(command, network, pods, at_once)

    def check(self) -> None:
        """Raise CniError if echo.py has ended."""
        self.launcher.check()

    def call(self, command: str, network: Network, pod: Pod) -> dict[str, float]:
        """Measure one call. Return {"launcher": ms, "requests": ms, "floor": the sum}."""
        (launcher,) = self.launcher.call(command, network, pod).values()
        requests = self.work(command, network, pod)
        return {"floor": launcher + requests, "launcher": launcher, "requests": requests}

    def work(self, command: str, network: Network, pod: Pod) -> float:
        """Send the kernel requests of one call. Return the milliseconds that this takes."""
        if command == "VERSION":
            return 0.0
        step = getattr(self, f"_{command.lower()}_{network.case.type.replace('-', '_')}")
        wire.forget(self.watcher)                       # drop notifications of other deletions
        fd = netns.open_path(pod.path)                  # not measured, because the launcher opens the namespace
        try:
            started = time.perf_counter()
            step(network, pod, fd)
            return (time.perf_counter() - started) * 1e3
        finally:
            os.close(fd)

    # ---- loopback, host-local ----

    def _add_loopback(self, network: Network, pod: Pod, fd: int, up: bool = True) -> None:
        sock = self._open_inside(fd)
        wire.exchange(sock, rtnl.set_link(Batch(), LOOPBACK, up=up))
        sock.close()

    def _del_loopback(self, network: Network, pod: Pod, fd: int) -> None:
        self._add_loopback(network, pod, fd, up=False)

    def _add_host_local(self, network: Network, pod: Pod, fd: int) -> None:
        file = os.open(network.file(network.address_of(pod)), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, f"{pod.name}\r\neth0".encode())
        os.close(file)

    def _del_host_local(self, network: Network, pod: Pod, fd: int) -> None:
        os.unlink(network.file(network.address_of(pod)))

    # ---- bridge, ptp ----

    def _add_bridge(self, network: Network, pod: Pod, fd: int) -> None:
        ipv6, known = not network.case.keys.get("disableIPv6"), network.case.keys.get(UNFLOODED)
        self._add_host_local(network, pod, fd)
        self._add_veth(pod, fd, self.bridges[network.bridge])
        if known or not ipv6:
            sysctl.offer(*no_ipv6(f"fcnb{pod.number}"))
        sock = self._open_inside(fd, [("net/ipv4/conf/eth0/arp_notify", "1"),
                                      *([] if known else [ACCEPT_NO_DAD] if ipv6 else [no_ipv6("eth0")])])
        batch, inside = self._configure(network, pod)
        rtnl.route(batch, ANYWHERE, 0, index=inside, gateway=network.gateway)
        wire.exchange(sock, batch)
        if known:
            self._know(network, pod, sock, inside)
        sock.close()
        if network.case.keys.get("ipMasq"):
            self._element(nft_elements.add_element, network, pod, pod.name, CHAIN)

    def _know(self, network: Network, pod: Pod, sock: Socket, inside: int) -> None:
        """Add the FDB entry and the neighbour entries of a pod to the bridge, as the key disableFlooding does."""
        port, peer = rtnl.Link(), find.link(sock, index=inside)
        assert peer is not None
        port.name, (port.index, _) = f"fcnb{pod.number}", self.made[pod.number]
        unflooded.ensure(self.host, self.bridges[network.bridge], port, peer.address, [network.address_of(pod)], False)

    def _add_ptp(self, network: Network, pod: Pod, fd: int) -> None:
        gateway, subnet = network.gateway, network.subnet_address
        self._add_host_local(network, pod, fd)
        host = self._add_veth(pod, fd)
        batch = rtnl.new_address(Batch(), host, gateway, 32)
        own = network.address_of(pod)
        wire.exchange(self.host, rtnl.route(batch, own, 32, index=host, scope=uapi.RT_SCOPE_HOST))
        sock = self._open_inside(fd)
        batch, inside = self._configure(network, pod)
        rtnl.route(batch, subnet, 16, index=inside, scope=uapi.RT_SCOPE_LINK, delete=True)
        rtnl.route(batch, gateway, 32, index=inside, scope=uapi.RT_SCOPE_LINK, source=own)
        rtnl.route(batch, subnet, 16, index=inside, gateway=gateway, source=own)
        rtnl.route(batch, ANYWHERE, 0, index=inside, gateway=gateway)
        wire.exchange(sock, batch)
        sock.close()

    def _add_veth(self, pod: Pod, fd: int, master: int = 0) -> int:
        """Add a veth pair, with the host end as a port of the link `master` (0: none). Store the indexes of both ends
        in `made`. Return the host end's index."""
        name, mac = f"fcnb{pod.number}", os.urandom(3)
        batch = rtnl.new_veth(Batch(), name, "eth0", fd, host_mac=b"\x02\xfc\0" + mac, peer_mac=b"\x02\xfc\1" + mac,
                              master=master)
        link = rtnl.first_link(wire.exchange(self.host, batch)) or find.link(self.host, name)  # before Linux 6.2
        assert link is not None
        self.made[pod.number] = link.index, link.peer
        return link.index

    def _configure(self, network: Network, pod: Pod) -> tuple[Batch, int]:
        """Return (a Batch that gives the pod's end of the veth pair its address and sets it up, the index of that
        end)."""
        _, inside = self.made[pod.number]
        batch = rtnl.new_address(Batch(), inside, network.address_of(pod), 16)
        return rtnl.set_link(batch, inside, up=True), inside

    def _del_bridge(self, network: Network, pod: Pod, fd: int) -> None:
        index, _ = self.made.pop(pod.number)
        self.deletes.put(index)
        deadline = time.monotonic() + GONE_SECONDS
        while not any(kind == uapi.RTM_DELLINK and rtnl.is_of_link(payload) and rtnl.read_index(payload) == index
                      for kind, _, _, _, payload in wire.watch(self.watcher, GONE_SECONDS)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the kernel did not notify the deletion of link {index} within {GONE_SECONDS} s")
        self._del_host_local(network, pod, fd)
        if network.case.keys.get("ipMasq"):
            self._element(nft_elements.del_element, network, pod)

    _del_ptp = _del_bridge

    def _send_deletes(self) -> None:
        """Send link deletions from the queue, and wait for the kernel's ACK of each. The ACK arrives when the kernel
        has freed the link's memory, 20 ms after the deletion, so several threads send deletions."""
        while (index := self.deletes.get()) is not None:
            wire.send(self.watcher, rtnl.del_link(Batch(), index=index).finish())

    def _element(self, write: Callable[..., Batch], network: Network, pod: Pod, *more: object) -> None:
        batch = write(nft.start(Batch()), nft.NFPROTO_INET, TABLE, MAP, network.address_of(pod), *more)
        wire.exchange(self.firewall, nft.stop(batch))

    def _open_inside(self, fd: int, sysctls: Iterable[tuple[str, str]] = ()) -> Socket:
        with netns.inside(fd, self.home):
            for name, value in sysctls:
                sysctl.offer(name, value)
            return wire.open_socket()

    # ---- existing pods, for the part density ----

    def put(self, network: Network, pod: Pod) -> None:
        """Add an existing pod to a prepared network. Like the ADD of any plugin, look up a sysctl in the pod's
        namespace."""
        self.work("ADD", network, pod)
        fd = netns.open_path(pod.path)
        try:
            with netns.inside(fd, self.home):
                sysctl.exists("net/ipv6/conf/eth0/disable_ipv6")
        finally:
            os.close(fd)

    def empty(self, network: Network, pods: Iterable[Pod]) -> None:
        """Delete the links of all `pods` by one kernel request, and remove the pods' address files."""
        for pod in pods:
            index, _ = self.made.pop(pod.number)
            wire.exchange(self.host, rtnl.set_group(Batch(), index, GROUP))
            os.unlink(network.file(network.address_of(pod)))
        if pods:
            wire.exchange(self.host, rtnl.del_group(Batch(), GROUP))


def no_ipv6(ifname: str) -> tuple[str, str]:
    """Return (name, value) of the sysctl that disables IPv6 on a link."""
    return f"net/ipv6/conf/{ifname}/disable_ipv6", "1"
