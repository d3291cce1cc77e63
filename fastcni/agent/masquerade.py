"""Masquerade by nftables with flannel's rules: packets of pods that leave the cluster's network get the node's address.

    table inet fastcni-agent {
        chain postrouting {
            type nat hook postrouting priority srcnat; policy accept;
            meta mark & 0x4000 != 0 return                          kube-proxy masquerades this packet
            ip daddr 10.244.1.0/24 return                           to this node's pods, with the client's address
            ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return    between pods
            ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
            ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
        }
    }

IPv6 has the same rules. If another table drops forwarded packets by its chain policy, the operator must accept the
cluster's network in that table. A chain of the agent could not accept such packets, because in nftables each chain of a
hook must accept a packet.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.contract import pair
from fastcni.agent.nft_table import TableEvents, delete_table
from fastcni.daemon.backoff import Backoff
from fastcni.kernel import nft, nft_rules, uapi, wire
from fastcni.kernel.nft_rules import NF_NAT_RANGE_PROTO_RANDOM_FULLY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastcni.agent.contract import NetworkConf, Prefix
    from fastcni.daemon.log import Logger

FAMILY, TABLE, CHAIN = nft.NFPROTO_INET, "fastcni-agent", "postrouting"
COMMENT = "fastcni agent: masquerade of pods"
KUBE_PROXY_MARK = 0x4000
MULTICAST = {4: (b"\xe0\0\0\0", 4), 6: (b"\xff" + bytes(15), 8)}
RETRY_S = 1.0                   # seconds until the next try after an error


class Masquerade:
    """The masquerading rules and their sockets. Create the object in a thread that is in the node's namespace; the same
    thread calls all methods. Raises OSError."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.pairs: list[tuple[Prefix, Prefix]] = []        # (the cluster's network, this node's subnet)
        self.ask = wire.open_socket(uapi.NETLINK_NETFILTER)
        self.events = TableEvents(FAMILY, TABLE)
        self.backoff = Backoff()
        self.due = inf                                      # when to call attend() next, in monotonic seconds

    def fileno(self) -> int:
        """Return the descriptor to wait on for attend()."""
        return self.events.fileno()

    def close(self) -> None:
        """Close the sockets. The rules stay, so that connections continue while the agent restarts."""
        self.ask.close()
        self.events.close()

    def set(self, conf: NetworkConf, subnets: Mapping[int, Prefix]) -> None:
        """Write the rules in one transaction. subnets: {family: this node's subnet}. Raises OSError."""
        self.pairs = [(family.network, subnets[number]) for number, family in sorted(conf.families.items())]
        self._write()

    def attend(self) -> None:
        """Read the notifications, and write the rules again if another program has removed a rule. Raises OSError if
        the notifications cannot be read."""
        self.events.read(own=int(self.ask.getsockname()[0]))        # the kernel assigns the netlink port in set()
        self.due = inf
        if not self.events.suspect or not self.pairs:
            return
        if monotonic() < self.backoff.until:
            self.due = self.backoff.until
            return
        self.backoff.begin()
        try:
            self._write()
        except OSError as e:            # for example ENOMEM
            self.log.error("masquerade_refused", error=str(e))
            self.due = self.backoff.until = monotonic() + max(self.backoff.seconds, RETRY_S)
            return
        self.events.suspect = False
        self.log.warning("masquerade_restored")

    def remove(self) -> None:
        """Remove the table of the masquerading rules. Raises OSError."""
        self.pairs = []
        delete_table(self.ask, FAMILY, TABLE)

    def _write(self) -> None:
        batch = nft.add_table(nft.start(Batch()), FAMILY, TABLE, COMMENT)
        nft.add_base_chain(batch, FAMILY, TABLE, CHAIN, kind="nat", hook=nft.NF_INET_POST_ROUTING,
                           priority=nft.NF_IP_PRI_NAT_SRC)
        nft_rules.flush_chain(batch, FAMILY, TABLE, CHAIN)
        self._add(batch, *nft_rules.any_mark(KUBE_PROXY_MARK), nft_rules.leave())
        masquerade = nft_rules.masquerade(NF_NAT_RANGE_PROTO_RANDOM_FULLY)
        for cluster, own in self.pairs:
            network, subnet = pair(cluster), pair(own)
            self._add(batch, *nft_rules.daddr_in(*subnet), nft_rules.leave())
            self._add(batch, *nft_rules.saddr_in(*subnet), *nft_rules.daddr_in(*network), nft_rules.leave())
            self._add(batch, *nft_rules.saddr_in(*network),
                      *nft_rules.daddr_in(*MULTICAST[cluster.version], inverted=True), masquerade)
            self._add(batch, *nft_rules.saddr_in(*network, inverted=True), *nft_rules.daddr_in(*network), masquerade)
        wire.exchange(self.ask, nft.stop(batch))

    def _add(self, batch: Batch, *expressions: nft_rules.Expression) -> None:
        nft_rules.add_rule(batch, FAMILY, TABLE, CHAIN, *expressions)
