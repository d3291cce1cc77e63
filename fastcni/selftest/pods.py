"""Make the self-test's pods: a namespace, a server, and requests of a runtime, as ADD, CHECK and DEL, for each pod."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastcni.kernel import wire
from fastcni.kernel.rtnl import Link
from fastcni.kit.links import find
from fastcni.runtime import CNI, NetworkList, RuntimeConf
from fastcni.selftest import namespaces, sockets
from fastcni.selftest.check import Failed
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError

IFNAME = "eth0"
PREFIX = "fastcni-selftest-"            # the beginning of container IDs; the process ID follows


class Pod:
    """A pod of the self-test on one network. number: 1 or 2. arguments: additional CNI_ARGS. Raises OSError.

    namespace: a descriptor. server: the pod's server. result: the result of ADD. ips: the packed addresses in the
    result. texts: {4 or 6: the first address as text}. gateways: {4 or 6: the first gateway as text}.
    """

    def __init__(self, cni: CNI, net: NetworkList, number: int,
                 arguments: Sequence[tuple[str, str]] = ()) -> None:
        self.arguments = arguments
        self.cni, self.net, self.number = cni, net, number
        self.namespace = namespaces.new()
        try:
            self.server = sockets.Server(self.namespace)
        except BaseException:
            os.close(self.namespace)
            raise
        self.runtime: RuntimeConf | None = None
        self.result: dict[str, Any] = {}
        self.ips: list[bytes] = []
        self.texts: dict[int, str] = {}
        self.gateways: dict[int, str] = {}

    @property
    def name(self) -> str:
        return f"pod {self.number}"

    def add(self, capabilities: Mapping[str, Any]) -> None:
        """Send ADD, and store its result. capabilities: the capability arguments. Raises Failed."""
        self.runtime = RuntimeConf(f"{PREFIX}{os.getpid()}-{self.number}", namespaces.path_of(self.namespace), IFNAME,
                                   [("IgnoreUnknown", "1"), *self.arguments], capabilities)
        # Before ADD: if this process is killed during ADD, the next self-test finds the pod in the cache.
        self.cni.cache.write(self.net.name, self.net.raw, self.runtime, None)
        try:
            self.result = self.cni.add(self.net, self.runtime) or {}
        except CniError as e:
            # a daemon or an agent does not answer
            away = e.code in (errors.TRY_AGAIN_LATER, errors.PLUGIN_NOT_AVAILABLE)
            raise Failed("ADD", str(e), f"fastcni {'status' if away else 'netconf --strict'} {self.net.name}") from None
        whole = results.to_version(results.create_any(self.result), "1.1.0")
        for ip in whole.get("ips") or ():
            packed, _ = addresses.read_cidr(ip["address"])
            family = 4 if len(packed) == 4 else 6
            self.ips.append(packed)
            self.texts.setdefault(family, addresses.ip_text(packed))
            if ip.get("gateway"):
                self.gateways.setdefault(family, ip["gateway"])

    def check(self) -> None:
        """Send CHECK. Raises Failed."""
        assert self.runtime
        try:
            self.cni.check(self.net, self.runtime)
        except CniError as e:
            raise Failed("CHECK", str(e), "fastcni doctor") from None

    def delete(self) -> None:
        """Send DEL, and check that the pod's link and its cached result no longer exist. Raises Failed."""
        if self.runtime is None:
            return
        runtime, self.runtime = self.runtime, None
        try:
            self.cni.delete(self.net, runtime)
        except CniError as e:
            self.runtime = runtime
            raise Failed("DEL", str(e), f"fastcni gc {self.net.name}") from None
        if self._link() is not None:
            raise Failed("DEL", f"the link {IFNAME} is still in the pod", f"fastcni gc {self.net.name}")
        if self.cni.attachments(runtime.container_id):
            raise Failed("DEL", "the result of ADD is still in the cache", f"fastcni gc {self.net.name}")

    def close(self) -> None:
        """Send DEL if an ADD was sent, end the server, and remove the namespace. If DEL fails, close() removes the
        namespace nevertheless, and raises Failed."""
        try:
            self.delete()
        finally:
            self.server.close()
            os.close(self.namespace)

    def mtu(self) -> int:
        """Return the MTU of the pod's link in bytes. Raises OSError."""
        link = self._link()
        if link is None:
            raise Failed(self.name, f"there is no link {IFNAME}")
        return link.mtu

    def _link(self) -> Link | None:
        with namespaces.call(self.namespace, wire.open_socket) as sock:
            return find.link(sock, IFNAME)


def leftovers(cni: CNI, network: str) -> list[RuntimeConf]:
    """Return the attachments of previous self-tests to a network. The process of such a self-test has ended without a
    DEL."""
    found = []
    for it in cni.attachments():
        pid = it.container_id.removeprefix(PREFIX).partition("-")[0]
        is_ours = it.network == network and it.container_id.startswith(PREFIX) and pid.isdecimal()
        if is_ours and not os.path.exists(f"/proc/{pid}"):
            found.append(RuntimeConf(it.container_id, "", it.ifname, it.args or (), it.capability_args or {}))
    return found
