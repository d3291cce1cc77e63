"""The host's side of a request: what is open in the caller's namespace, and what is known there."""

import posix

from fastcni.kernel import sysctl, uapi, wire
from fastcni.kit.call import names

IPV6 = "net/ipv6/conf"


class Host:
    """A request has one of its own; a server's worker keeps one for each namespace it serves.

    home      a descriptor of the namespace, None: the thread's own is opened when it is needed
    memory    whoever remembers answers and hears when they change, see recall(); None: the kernel is asked each time
    deletes   whoever deletes links for many requests at once, see announced.delete(); None: each for itself
    together  an iptables_together.Together: what is to be changed by iptables is noted there; None: it is changed
    deleting  (network, container id, ifname) of a one-shot DEL, which announces itself before it looks into nftables;
              None: another command, or a server that knows of the DEL
    in_ipam   seconds that the request has spent in its IPAM plugin
    """

    __slots__ = ("home", "memory", "deletes", "sockets", "ipv6", "together", "deleting", "in_ipam")

    def __init__(self, home=None, memory=None, deletes=None):
        self.home, self.memory, self.deletes = home, memory, deletes
        self.sockets, self.ipv6, self.together, self.deleting = {}, None, None, None
        self.in_ipam = 0.0

    @property
    def route(self):
        return self._socket(uapi.NETLINK_ROUTE)

    @property
    def firewall(self):
        return self._socket(uapi.NETLINK_NETFILTER)

    def _socket(self, protocol):
        if protocol not in self.sockets:
            self.sockets[protocol] = wire.open_socket(protocol)
            if self.deleting and protocol == uapi.NETLINK_NETFILTER:
                from fastcni.kernel import deletions

                deletions.announce(self.sockets[protocol], names.hashes(*self.deleting))
        return self.sockets[protocol]

    def offer_ipv6(self, ifname, name, value):
        """Write net/ipv6/conf/<ifname>/<name>, if this kernel has it; says whether it did."""
        try:
            sysctl.write_at(self._ipv6_folder(), f"{ifname}/{name}", value)
        except OSError:
            return False            # no IPv6 in this kernel, or /proc/sys mounted read-only
        return True

    def read_ipv6(self, ifname, name):
        """Return net/ipv6/conf/<ifname>/<name> as text, "" if this kernel does not have it."""
        try:
            return sysctl.read_at(self._ipv6_folder(), f"{ifname}/{name}")
        except OSError:
            return ""

    def _ipv6_folder(self):
        """/proc/sys keeps the net/ipv6 of all namespaces in one hash chain, the oldest last. With 900 pods, finding the
        node's takes 1.2 ms; the folder stays open."""
        if self.ipv6 is None:
            self.ipv6 = sysctl.open_folder(IPV6)
        return self.ipv6

    def recall(self, key, ask):
        """What ask() says, or said before if nothing has changed it since. `key` names the fact, its kind first:

        ("link", name): a Link or None; (any, index, ...): of a link, "addresses" with the family
        ("sysctl", name): the text of a sysctl about forwarding
        ("nftables", table, ...): of an nftables table of that name; "": of any
        """
        return self.memory.recall(key, ask) if self.memory else ask()

    def close(self, defer):
        """After any program has deleted something in nftables, close() of a netfilter socket waits for an RCU grace
        period (7 to 15 ms). No answer waits for that. `defer.close(sock)`, if it has one, is for
        processes that share the socket."""
        if self.ipv6 is not None:
            posix.close(self.ipv6)
            self.ipv6 = None
        while self.sockets:
            protocol, sock = self.sockets.popitem()
            if protocol == uapi.NETLINK_NETFILTER:
                close = getattr(defer, "close", None)
                if close:
                    close(sock)
                else:
                    defer(sock.close)
            else:
                sock.close()
