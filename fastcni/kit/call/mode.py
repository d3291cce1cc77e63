"""How a request runs: everything that differs between one-shot, in-process and warm, as one class.

    mode        class                           when
    one-shot    launcher.one_shot.OneShotMode   no server answers: a process for this request
    in-process  runtime.mode.InProcessMode      a Python program calls a plugin as a function
    warm        server.mode.WarmMode            the server, which keeps sockets and facts for the next request

handle() is given a mode. Plugins and kit call its methods, and never ask which mode they run in. Mode itself does each
thing in the plain way: it keeps nothing between requests, and asks the kernel each time.

A mode is about a request; kernel.waiting.Request is about a thread: waits, the caller's connection, netlink messages
shown or timed. That class is below the kit, because kernel/ knows no modes, and also works for no request.
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
    """A veth pair that an ADD made: index and name of its host end, and the packed addresses that the pod was given."""

    __slots__ = ("index", "name", "ips")

    def __init__(self, index: int, name: str, ips: list[bytes]) -> None:
        self.index, self.name, self.ips = index, name, ips


class Mode:
    """The plain mode, and the contract of all modes. It has the network namespace that the request comes from.

    home  a descriptor of that namespace; None: it is opened when it is needed
    """

    __slots__ = ("home", "sockets", "ipv6", "deleting", "stores")

    def __init__(self, home: int | None = None) -> None:
        self.home = home
        self.sockets: dict[int, Socket] = {}            # by netlink protocol
        self.ipv6: int | None = None                    # a descriptor of /proc/sys/net/ipv6/conf
        self.deleting: tuple[str, str, str] | None = None
        self.stores: dict[Hashable, Any] = {}           # of cluster-wide addresses

    # The request and its answer

    def decode(self, stdin: bytes) -> Section:
        """The configuration. Raises CniError 6 and 7."""
        return read_conf(stdin)

    def encode(self, result: dict[str, Any]) -> bytes:
        """An ADD's result as it is printed."""
        return results.encode(result)

    def deliver(self, reply: Reply) -> None:
        """Send the result of an ADD to the caller before handle() returns. Raises OSError if the caller cannot get it:
        then the ADD is rolled back. Here handle() returns the result."""

    def open_netns(self, path: str) -> int:
        """A descriptor of the pod's namespace, which the request closes. Raises OSError, netns.NotNamespace."""
        return netns.open_path(path)

    def is_home(self, fd: int) -> bool:
        """Return whether `fd`, of open_netns(), is the namespace that the request comes from."""
        return netns.is_own(fd, self.home)

    def find_plugin(self, name: str, folders: list[str], own: bool) -> str:
        """The path of a delegate. "": it is called as a function without a search of `folders`, which only a plugin of
        fastcni (`own`) can be. Raises CniError."""
        from fastcni.kit.call import search

        return search.find(name, folders)

    def defer(self, fn: Callable[..., object], *args: object) -> None:
        """Run `fn` in parallel to the request: the answer does not wait for it."""
        try:
            start_new_thread(fn, args)
        except RuntimeError:                            # no thread can be started, so the answer waits for fn
            fn(*args)

    def end_request(self) -> None:
        """Close what is open for this request alone. The request may go on, and open it again."""
        self.close()

    # The caller's namespace

    @property
    def route(self) -> Socket:
        """A socket for links, addresses and routes."""
        return self._socket(uapi.NETLINK_ROUTE)

    @property
    def firewall(self) -> Socket:
        """A socket for nftables, ipset and conntrack."""
        return self._socket(uapi.NETLINK_NETFILTER)

    def offer_ipv6(self, ifname: str, name: str, value: str) -> bool:
        """Write net/ipv6/conf/<ifname>/<name>, if this kernel has it. Return whether it does."""
        try:
            sysctl.write_at(self._ipv6_folder(), f"{ifname}/{name}", value)
        except OSError:
            return False            # no IPv6 in this kernel, or /proc/sys mounted read-only
        return True

    def read_ipv6(self, ifname: str, name: str) -> str:
        """Return net/ipv6/conf/<ifname>/<name> as text, "" if this kernel does not have it."""
        try:
            return sysctl.read_at(self._ipv6_folder(), f"{ifname}/{name}")
        except OSError:
            return ""

    def close(self) -> None:
        """Close the sockets, the folder and the stores."""
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
        """Close a netfilter socket. After any program has deleted something in nftables, that waits for an RCU grace
        period (7 to 15 ms); no answer waits for it."""
        self.defer(sock.close)

    # Cluster-wide addresses

    def cluster_store(self, key: Hashable, open_store: Callable[[], T]) -> T:
        """Return the store that `key` names, opened by open_store() if it is not open yet. The mode closes it."""
        if key not in self.stores:
            self.stores[key] = open_store()
        store: T = self.stores[key]
        return store

    def network_objects(self, key: Hashable, open_objects: Callable[[], T]) -> T:
        """Return the source of pods and of definitions of networks, see kit/networks/api_objects.py. A server watches
        what is there. The mode closes it."""
        return self.cluster_store(key, open_objects)

    def note_space(self, keys: Any, addresses: Sequence[bytes]) -> None:
        """Note that the request has given or released these addresses, packed, of a space. A server looks after its
        blocks, see server/cluster/upkeep.py. keys: the configuration's, see kit/ipam/cluster/conf.py."""

    # What is known of it

    def recall(self, key: tuple[Any, ...], ask: Callable[[], T]) -> T:
        """Return ask(), or its earlier result if nothing has changed it since. `key` names the fact, its kind first:

        ("link", name): a Link or None; (any, index, ...): of a link, "addresses" with the family
        ("sysctl", name): the text of a sysctl about forwarding
        ("nftables", table, family, ...): of an nftables table; ("nftables", ""): of any
        ("nftables", table, family, "chain", name): whether the chain exists
        ("nftables", table, family, "rules", chain, ...): of the rules of these chains
        ("legacy", table, length): of a table of the legacy iptables, of whose changes the kernel notifies nothing
        """
        return ask()

    def keep_pair(self, req: Request, link: Link, result: dict[str, Any]) -> None:
        """Note the veth pair that an ADD made, by its host end, so that the DEL need not search for the pair."""

    def find_pair(self, req: Request) -> Pair | None:
        """Return the pair that an ADD noted for this attachment. None: the caller has to search for it."""
        return None

    def take_pair(self, req: Request) -> Pair | None:
        """For DEL: return the noted pair and forget it; None if the pair does not exist any more."""
        return None

    # How it is changed

    def delete_links(self, *links: tuple[int, str]) -> None:
        """Delete links (index, name), and return when the kernel has announced them gone. One that is gone already is
        fine. Raises NetlinkError, CniError 11, CallerGone."""
        from fastcni.kit.call import deletion

        deletion.delete(wire.open_socket(groups=(uapi.RTNLGRP_LINK,)), self.send_deletion, *links)

    def send_deletion(self, watcher: Socket, data: bytes, request: DeleteRequest) -> None:
        """Send a request that deletes links, in parallel to this one, see kit.call.deletion."""
        from fastcni.kit.call.deletion import send_out

        self.defer(send_out, watcher, data, request)

    def announce_delete(self, req: Request) -> None:
        """Notify the servers that restore the namespace's firewall that a DEL begins. Call it before the DEL reads
        nftables."""
        self.deleting = req.name, req.container_id, req.ifname
        if uapi.NETLINK_NETFILTER in self.sockets:      # of an earlier network of the pod
            self._announce()

    def read_iptables(self, program: str, table: str, read: Callable[[], list[str]]) -> list[str]:
        """Return the lines of a table of iptables or ip6tables. read() reads them."""
        return read()

    def change_iptables(self, program: str, table: str, commands: list[str], run: Callable[[], Finished]) -> Finished:
        """Change a table by commands like "-A CHAIN ...". run() carries them out."""
        return run()

    def _ipv6_folder(self) -> int:
        """/proc/sys keeps the net/ipv6 of all namespaces in one hash chain, the oldest last. With 900 pods, finding the
        node's takes 1.2 ms; the folder stays open."""
        if self.ipv6 is None:
            self.ipv6 = sysctl.open_folder(IPV6)
        return self.ipv6

    def _socket(self, protocol: int) -> Socket:
        if protocol not in self.sockets:
            self.sockets[protocol] = wire.open_socket(protocol)
            if self.deleting and protocol == uapi.NETLINK_NETFILTER:
                self._announce()
        return self.sockets[protocol]

    def _announce(self) -> None:
        from fastcni.kernel import deletions
        from fastcni.kit.call import names

        if self.deleting:
            deletions.announce(self.sockets[uapi.NETLINK_NETFILTER], names.hashes(*self.deleting))
