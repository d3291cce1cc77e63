"""Define Mode. Its methods are the steps that differ between one-shot, in-process and warm requests.

    mode        class                           what runs the plugin
    one-shot    launcher.one_shot.OneShotMode   a process for this request, because no server answers
    in-process  runtime.mode.InProcessMode      a Python program, which calls the plugin as a function
    warm        server.requests.mode.WarmMode   the server, which keeps sockets and cached kernel state for the next
                request

handle() gets a mode as argument. Plugins and kit call the mode's methods, and never ask which mode they run in. The
class Mode itself has no cache: it asks the kernel each time.

A mode belongs to a request. kernel.waiting.Request has the state of a request's thread: its waits, the caller's
connection, and the netlink messages to print or time. Code of kernel/ needs this state, but does not know modes, and
also works without a request.
"""

from __future__ import annotations

import posix
from _thread import start_new_thread

from fastcni.kernel import netns, sysctl, uapi, wire
from fastcni.kit.call.request import read_conf
from fastcni.spec import result as results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from typing import Any, TypeVar

    from fastcni.kernel.process import Finished
    from fastcni.kernel.rtnl import Link
    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.deletion import DeleteRequest
    from fastcni.kit.call.request import Reply, Request
    from fastcni.spec.config import Section

    T = TypeVar("T")

IPV6 = "net/ipv6/conf"


class Pair:
    """A veth pair that an ADD made: the index and name of its host end, and the pod's packed addresses."""

    __slots__ = ("index", "name", "ips")

    def __init__(self, index: int, name: str, ips: list[bytes]) -> None:
        self.index, self.name, self.ips = index, name, ips


class Mode:
    """The methods of every mode, in a version without any cache. A mode belongs to the network namespace of the
    request's caller.

    home  a descriptor of that namespace; None: the mode opens the namespace when it needs a descriptor
    """

    __slots__ = ("home", "sockets", "ipv6", "deleting", "stores")

    def __init__(self, home: int | None = None) -> None:
        self.home = home
        self.sockets: dict[int, Socket] = {}            # {netlink protocol: socket}
        self.ipv6: int | None = None                    # a descriptor of /proc/sys/net/ipv6/conf
        self.deleting: tuple[str, str, str] | None = None
        self.stores: dict[Hashable, Any] = {}           # stores of cluster-wide addresses

    # The request and its answer

    def decode(self, stdin: bytes) -> Section:
        """Decode the configuration. Raises CniError 6 and 7."""
        return read_conf(stdin)

    def encode(self, result: dict[str, Any]) -> bytes:
        """Encode an ADD's result to the bytes that the plugin prints."""
        return results.encode(result)

    def deliver(self, reply: Reply) -> None:
        """Send the result of an ADD to the caller before handle() returns. Raises OSError if the caller cannot receive
        the result; this error rolls back the ADD. Mode.deliver() does nothing: handle() returns the result."""

    def open_netns(self, path: str) -> int:
        """Open the pod's namespace and return the descriptor, which the request closes. Raises OSError,
        netns.NotNamespace."""
        return netns.open_path(path)

    def is_home(self, fd: int) -> bool:
        """Return whether `fd`, a descriptor of open_netns(), is the namespace of the request's caller."""
        return netns.is_own(fd, self.home)

    def find_plugin(self, name: str, directories: list[str], own: bool) -> str:
        """Return the path of a delegate. Return "" for a plugin of fastcni (`own`) if the mode calls it as a function
        and does not search `directories`. Raises CniError."""
        from fastcni.kit.call import search

        return search.find(name, directories)

    def defer(self, fn: Callable[..., object], *args: object) -> None:
        """Run `fn` in a thread of its own, so that the answer does not wait for `fn`."""
        try:
            start_new_thread(fn, args)
        except RuntimeError:                            # Python cannot start a thread: run fn here, before the answer
            fn(*args)

    def end_request(self) -> None:
        """Close the descriptors and sockets that only this request uses. A request that continues opens them
        again."""
        self.close()

    # The caller's namespace

    @property
    def route(self) -> Socket:
        """Return a socket for links, addresses and routes."""
        return self.sockets.get(uapi.NETLINK_ROUTE) or self._open_socket(uapi.NETLINK_ROUTE)

    @property
    def firewall(self) -> Socket:
        """Return a socket for nftables, ipset and conntrack."""
        return self.sockets.get(uapi.NETLINK_NETFILTER) or self._open_socket(uapi.NETLINK_NETFILTER)

    def offer_ipv6(self, ifname: str, name: str, value: str) -> bool:
        """Write net/ipv6/conf/<ifname>/<name>, if this kernel has that sysctl. Return whether the kernel has the
        sysctl."""
        try:
            sysctl.write_at(self._ipv6_directory(), f"{ifname}/{name}", value)
        except OSError:
            return False            # this kernel has no IPv6, or /proc/sys is mounted read-only
        return True

    def read_ipv6(self, ifname: str, name: str) -> str:
        """Return net/ipv6/conf/<ifname>/<name> as text, "" if this kernel does not have that sysctl."""
        try:
            return sysctl.read_at(self._ipv6_directory(), f"{ifname}/{name}")
        except OSError:
            return ""

    def close(self) -> None:
        """Close the sockets, the descriptor of /proc/sys/net/ipv6/conf and the stores."""
        if self.ipv6 is not None:
            posix.close(self.ipv6)
            self.ipv6 = None
        while self.sockets:
            protocol, sock = self.sockets.popitem()
            if protocol == uapi.NETLINK_NETFILTER:
                self.close_later(sock)
            else:
                sock.close()
        while self.stores:
            self.stores.popitem()[1].close()

    def close_later(self, sock: Socket) -> None:
        """Close a netfilter socket in another thread, because close(2) may take long: if any program has just deleted
        an nftables object, close(2) waits for an RCU grace period of 7 to 15 ms."""
        self.defer(sock.close)

    # Cluster-wide addresses

    def cluster_store(self, key: Hashable, open_store: Callable[[], T]) -> T:
        """Return the store that `key` names. If that store is not open yet, open_store() opens it. The mode closes the
        store."""
        if key not in self.stores:
            self.stores[key] = open_store()
        store: T = self.stores[key]
        return store

    def network_objects(self, key: Hashable, open_objects: Callable[[], T]) -> T:
        """Return the source of pods and of network definitions, see kit/networks/api_objects.py. In a server the source
        watches these objects. The mode closes the source."""
        return self.cluster_store(key, open_objects)

    def note_space(self, keys: Any, addresses: Sequence[bytes]) -> None:
        """Record that the request has allocated or released these packed addresses of an address space, so that a
        server maintains the blocks of that space (server/cluster/upkeep.py). keys: the configuration's keys, see
        kit/ipam/cluster/conf.py."""

    # State of the namespace

    def recall(self, key: tuple[Any, ...], ask: Callable[[], T]) -> T:
        """Return ask(), or the cached result of an earlier ask() if the kernel has notified no change since that call.
        key: the name of the cached state. The first member of `key` is the kind of state:

        ("link", name): a Link or None. (kind, index, ...): state of a link, such as "addresses" with a family
        ("sysctl", name): the text of a sysctl about forwarding
        ("nftables", table, family, ...): state of an nftables table. With the family NFPROTO_UNSPEC: state of all
        tables of this name. ("nftables", ""): state of all tables
        ("nftables", table, family, "chain", name): whether the chain exists
        ("nftables", table, family, "rules", chain, ...): the rules of these chains
        ("nftables", table, family, "complete", chain, ...): whether these chains have their rules
        ("legacy", table, length): a table of iptables-legacy; the kernel does not notify changes of these tables
        """
        return ask()

    def keep_pair(self, req: Request, link: Link, ips: Sequence[tuple[bytes, int]]) -> None:
        """Record the veth pair that an ADD made, so that the DEL need not search for the pair. link: the host end.
        ips: the addresses of the ADD's result, (packed, prefix length)."""

    def find_pair(self, req: Request) -> Pair | None:
        """Return the pair that an ADD recorded for this attachment. None: no record, so the caller must search."""
        return None

    def take_pair(self, req: Request) -> Pair | None:
        """For DEL: return the recorded pair and forget the record; None if the pair no longer exists."""
        return None

    # Changes to the namespace

    def delete_links(self, *links: tuple[int, str]) -> None:
        """Delete links (index, name), and return when the kernel has notified that they no longer exist. A link that
        does not exist is no error. Raises NetlinkError, CniError 11, CallerGone."""
        from fastcni.kit.call import deletion

        deletion.delete(wire.open_socket(groups=(uapi.RTNLGRP_LINK,)), self.send_deletion, *links)

    def send_deletion(self, watcher: Socket, data: bytes, request: DeleteRequest) -> None:
        """Send a netlink request that deletes links, in another thread or process, see kit.call.deletion."""
        from fastcni.kit.call.deletion import send_out

        self.defer(send_out, watcher, data, request)

    def announce_delete(self, req: Request) -> None:
        """Notify the servers that restore this namespace's firewall that a DEL begins. Callers do this before they read
        nftables."""
        self.deleting = req.name, req.container_id, req.ifname
        if uapi.NETLINK_NETFILTER in self.sockets:      # open since an earlier network of the pod
            self._announce()

    def read_iptables(self, program: str, table: str, read: Callable[[], list[str]]) -> list[str]:
        """Return the lines of a table of iptables or ip6tables. read() reads the lines from the kernel."""
        return read()

    def change_iptables(self, program: str, table: str, commands: list[str], run: Callable[[], Finished]) -> Finished:
        """Change a table by commands like "-A CHAIN ...". run() runs the commands."""
        return run()

    def _ipv6_directory(self) -> int:
        """Return a descriptor of /proc/sys/net/ipv6/conf, which stays open, because opening the directory is slow: 1.2
        ms with 900 pods. The kernel searches the net/ipv6 of all namespaces in one list, whose last entry is the
        node's."""
        if self.ipv6 is None:
            self.ipv6 = sysctl.open_directory(IPV6)
        return self.ipv6

    def _open_socket(self, protocol: int) -> Socket:
        sock = self.sockets[protocol] = wire.open_socket(protocol)
        if self.deleting and protocol == uapi.NETLINK_NETFILTER:
            self._announce()
        return sock

    def _announce(self) -> None:
        from fastcni.kernel import deletions
        from fastcni.kit.call import names

        if self.deleting:
            deletions.announce(self.sockets[uapi.NETLINK_NETFILTER], names.hashes(*self.deleting))
