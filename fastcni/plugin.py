"""The public contract of a CNI plugin on fastcni: the functions that a plugin module has, and the functions that it may
call.

A plugin is a module with the functions of `Plugin`, declared by its distribution:

    [project.entry-points."fastcni.plugins"]
    hello = "fastcni_hello"                 # CNI type = "package.module"

docs/write-a-plugin.md builds a plugin step by step; fastcni.testing has a test class for it. A module may also have

    gc(req, conf)       release the resources of attachments that are not in req.valid_attachments, and report each
                        release by req.release(what)
    status(req, conf)   raise CniError 50 if an ADD cannot succeed now, 51 if pods would have limited connectivity
    KIND                "interface" (default), "ipam" or "chained"
    VERSIONS            a tuple of the CNI versions that the plugin supports; default: all
    CAPABILITIES, ARGS  tuples of the runtimeConfig entries and CNI_ARGS that the plugin reads, for `fastcni plugins`

Rules: importing the module does nothing. State belongs to the request: in the server many threads run plugins at the
same time. A plugin writes nothing to stdout, and reads the environment only from req.env. Wrap calls that block in
`with waiting():`; functions of this module need no wrapper. An exception other than CniError is reported as code 999,
and the ADD is rolled back.

This module follows semantic versioning, which covers the names in `__all__`, their parameters, and the statements of
their docstrings. Only a new major version of fastcni changes them incompatibly. Before 1.0, a new minor version may
change them incompatibly. Other modules of fastcni may change at any time.
"""

from __future__ import annotations

from fastcni.kernel.waiting import waiting
from fastcni.kernel.wire import NetlinkError
from fastcni.kit.call import chained, ipam
from fastcni.kit.call.pod import Pod, PodLink, interface
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo, every
from fastcni.kit.links import configure, find, remove, veth
from fastcni.spec import errors
from fastcni.spec.address import cidr_text, ip_text, read_cidr, read_ip
from fastcni.spec.errors import CniError
from fastcni.spec.result import ips_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from fastcni._rtnetlink import Link
    from fastcni.kernel.wire import Socket

    Result = dict[str, Any]         # a result of ADD in the shape of CNI 1.1.0 (spec section 5, "Add Success")
    Step = tuple[Callable[..., None], *tuple[Any, ...]]

    class Plugin(Protocol):
        """The functions of a plugin module. conf: the value that read() returned for this request."""

        def read(self, req: Request, /) -> Any:
            """Check and return the configuration; change nothing. fastcni calls read() before each command.

            read() must ask for each key of the plugin: `fastcni netconf --strict` reports other keys as misspelt.

            Raises CniError 7 for a bad value. For DEL, ignore the keys that DEL does not need.
            """

        def add(self, req: Request, conf: Any, undo: Undo, /) -> Result:
            """Do ADD. Each step registers its rollback with undo(fn, *args). On an exception the rollbacks run in
            reverse order."""

        def delete(self, req: Request, conf: Any, /) -> None:
            """Do DEL. A link, rule or pod namespace that no longer exists is no error (req.netns_gone())."""

        def check(self, req: Request, conf: Any, /) -> None:
            """Do CHECK. Raises CniError if the attachment differs from prevResult."""


__all__ = [
    "CniError", "NetlinkError", "Pod", "Request", "Undo",
    "add_addresses", "add_link", "add_veth", "check_addresses", "check_link", "cidr_text", "configure_host",
    "configure_link", "delete_link", "errors", "every", "find_link", "free_addresses", "gc_addresses", "interface",
    "ip_text", "ipam_status", "ips_of", "previous_result", "read_cidr", "read_ip", "waiting",
]


# Links. The argument `sock` is a socket of a Pod: pod.host is in the caller's namespace, pod.inside in the pod's
# namespace. A Link has name, index, kind ("veth"), address (6 bytes), mac (text), mtu, up, master (an index), peer (an
# index).

def find_link(sock: Socket, name: str | None = None, *, index: int = 0) -> Link | None:
    """Return the Link with that name or index; None if it does not exist. Raises NetlinkError."""
    return find.link(sock, name, index=index)


def add_veth(req: Request, pod: Pod, undo: Undo, *, mtu: int = 0, mac: bytes | None = None) -> tuple[Link, Link]:
    """Make a veth pair: return (host Link, pod Link). The pod's end is named CNI_IFNAME and down, the host's end is up.

    mtu: bytes, 0: the kernel's default. mac: 6 bytes for the pod's end, None: a random MAC. add_veth() registers the
    rollback. Raises CniError 999 if the pod has an interface of that name, NetlinkError for other kernel errors.
    """
    return veth.add(req, pod, undo, mtu=mtu, mac=mac)


def add_link(req: Request, pod: Pod, undo: Undo, kind: str, *, mtu: int = 0, mac: bytes | None = None) -> Link:
    """Make a link of the kind `kind`, such as "dummy", in the pod. Return its Link, which has the name CNI_IFNAME and
    is down.

    The parameters are the same as in add_veth(). add_link() registers the rollback. Raises NetlinkError.
    """
    from fastcni.kit.links import devices

    return devices.create(req, pod, undo, kind, mtu=mtu, mac=mac)


def configure_link(pod: Pod, link: Link, result: Result) -> None:
    """Set the addresses and routes of a result on a link in the pod, and set the link up.

    A route without "gw" goes to the first gateway of its family. No rollback is needed: the kernel deletes addresses
    and routes with the link. Raises NetlinkError, CniError 7 for a number that is too large for the kernel.
    """
    configure.pod_link(pod, link, result)


def configure_host(pod: Pod, host: Link, result: Result) -> None:
    """Set the gateways of a result as addresses of the host end of a veth pair, and add a route to each of the pod's
    addresses over this end.

    Each of the result's "ips" must have a "gateway". No rollback is needed. Raises NetlinkError.
    """
    from fastcni.kit.links import ptp_routes

    link = PodLink(pod)
    link.host, link.result, link.ips = host, result, ips_of(result)
    ptp_routes.configure_host(link, dad=False)


def delete_link(req: Request) -> None:
    """Delete the link CNI_IFNAME in the pod; the kernel also deletes the other end of a veth pair. A missing link or
    pod is no error.

    delete_link() closes the request's descriptors of the pod. Raises NetlinkError; CniError 11 if the kernel does not
    notify the deletion within 30 s.
    """
    remove.pod_link(req)


def check_link(req: Request, kind: str = "") -> tuple[Pod, Link]:
    """For CHECK: compare the MAC, addresses and routes of the pod's link CNI_IFNAME with prevResult. With `kind`, also
    check that the link has this kind.

    Return (Pod, Link). Raises CniError 999 for a difference.
    """
    from fastcni.kit.links import checks

    previous = checks.prev_result(req)
    pod = Pod(req)
    link = checks.link_in_pod(req, pod, previous)
    if kind and link.kind != kind:
        raise checks.wrong(f"Interface {link.name} is not of type {kind}")
    checks.addresses_and_routes(pod, link, previous)
    return pod, link


# These functions call the IPAM plugin, which the configuration names in ipam.type. They call fastcni's own IPAM plugins
# without starting a program.

def add_addresses(req: Request, undo: Undo, *, interface: int) -> Result:
    """Run the IPAM plugin's ADD, and return its result, which has at least one address.

    interface: the index of the entry in the result's "interfaces" that gets the addresses. add_addresses() registers
    the rollback. Raises CniError, also the IPAM plugin's error.
    """
    return ipam.add_addresses(req, undo, interface)


def free_addresses(req: Request) -> list[Step]:
    """For DEL: find the IPAM plugin, and return the steps that run its DEL, as arguments of every().

    Call free_addresses() first, and run the steps last: another pod may get the addresses only when the link no longer
    exists. Return [] if the configuration names no IPAM plugin. Raises CniError.
    """
    return ipam.prepare_delete(req)


def check_addresses(req: Request) -> None:
    """Run the IPAM plugin's CHECK. Raises CniError."""
    ipam.check(req)


def gc_addresses(req: Request) -> None:
    """Run the IPAM plugin's GC. Raises CniError."""
    ipam.gc(req)


def ipam_status(req: Request) -> None:
    """Run the IPAM plugin's STATUS. Raises CniError 50 if the IPAM plugin is missing."""
    ipam.status(req)


# Results. interface(link, sandbox="") makes an entry of "interfaces": sandbox is req.netns for a link in the pod.
# ips_of(result) lists the addresses as (4 or 16 bytes, prefix length).

def previous_result(req: Request) -> Result:
    """Return prevResult in the shape of CNI 1.1.0, for a chained plugin. Raises CniError 7 if the configuration has no
    prevResult."""
    return chained.previous(req)
