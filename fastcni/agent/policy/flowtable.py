"""Let a flowtable forward established connections between pods of this node whose links are routed (ptp).
`nft list table inet fastcni-flowtable` prints

    set links { type ifname; }
    flowtable pods { hook ingress priority filter; devices = { "veth...", "veth..." }; counter; }
    chain established {
        type filter hook forward priority filter + 1000; policy accept;
        oifname @links iifname @links ct state established flow add @pods
    }

The chain comes after all other rules of the hook, so the kernel adds a connection only if all rules accept its packet.
The kernel then forwards the connection's packets (TCP, UDP, GRE) past all rules, until the connection has no conntrack
entry, a route changes, the TCP connection ends, or 30 s pass without a packet. cut.py deletes the conntrack entries of
forbidden connections. The next packets of these connections pass the rules again, and the rules drop the packets.

For packets of a known connection, the rules check only one thing: `source` (port_rules.py) checks the source of each
packet. A flowtable skips this check. So
- links of pods with prefixes are left out: when policies begin to restrict the pod, the rules close its prefixes;
- the agent makes the flowtable again, without connections, when the addresses of an existing link change, and when the
  node gets a tunnel, whose packets pods may not send;
- when a link's pod no longer exists, the agent removes the link from the flowtable before the link is deleted.

The flowtable gets no connections to other nodes or to outside the cluster, because the rules for egress addresses,
domain names and masquerading apply to them.
"""

from __future__ import annotations

from errno import ENOENT
from typing import TYPE_CHECKING

from fastcni._netlink import Batch
from fastcni.agent.batches import parts
from fastcni.agent.nft_table import delete_table, keys_of
from fastcni.agent.policy.ports import ROUTED
from fastcni.agent.policy.rules import SET_ID, replace_table
from fastcni.agent.policy.ruleset import FAMILY, FLOWTABLE, Transaction
from fastcni.kernel import nft, nft_elements, nft_flowtables, nft_rules, wire
from fastcni.kernel.nft_elements import TYPE_IFNAME, ifname, read_ifname
from fastcni.kernel.nft_rules import NFT_META_IIFNAME, NFT_META_OIFNAME, in_set, meta
from fastcni.kernel.wire import NetlinkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.agent.policy.attached import Attachment
    from fastcni.agent.policy.ruleset import Ruleset
    from fastcni.agent.policy.state import Change

    Links = dict[str, tuple[object, ...]]       # {link name: value}; the value changes with the addresses of the pod

LINKS, PODS, CHAIN = "links", "pods", "established"
PRIORITY = nft.NF_IP_PRI_FILTER + 1000
DEVICES = 100                   # devices in one message; the kernel's notification has no space for more
TUNNELS = {ROUTED.tunnels, ROUTED.protocols}


class Flowtable:
    """The table of the flowtable. The Ruleset's socket owns and writes the table.

    unavailable: why this agent can have no flowtable, or "". stale: whether follow() has to make the table, even if no
    policy and no pod changed.
    """

    def __init__(self, rules: Ruleset) -> None:
        self._rules = rules
        self._written: Links | None = None      # None: follow() has to make the table
        self.unavailable = ""

    @property
    def stale(self) -> bool:
        return self._written is None and not self.unavailable

    def renew(self) -> None:
        """Let the next follow() make the table again. The new flowtable has no connections."""
        self._written = None

    def follow(self, attachments: Iterable[Attachment], change: Change) -> None:
        """Give the flowtable the links of these pods. change: the last Change of the policies' table. After an error of
        the kernel, no flowtable exists and packets pass the rules; if the cause is a link that has just been deleted,
        the next call makes the table again. Raises NetlinkError if the kernel cannot delete the table."""
        wanted = links_of(attachments)
        if TUNNELS & change.added.keys() or any(wanted.get(name, value) != value
                                                for name, value in (self._written or {}).items()):
            self.renew()
        if self.unavailable:
            return
        try:
            if self._written is None:
                self._make()
            self._exchange(wanted)
        except NetlinkError as e:
            if self._written is None or e.errno != ENOENT:
                self.unavailable = str(e)
            self._written = None
            delete_table(self._rules.sock, FAMILY, FLOWTABLE)

    def _make(self) -> None:
        requests = Transaction()
        replace_table(requests, FAMILY, FLOWTABLE, self._rules.flags)
        requests.add(nft_elements.add_set, FAMILY, FLOWTABLE, LINKS, (TYPE_IFNAME,), set_id=SET_ID)
        requests.add(nft_flowtables.add_flowtable, FAMILY, FLOWTABLE, PODS)
        requests.add(nft.add_base_chain, FAMILY, FLOWTABLE, CHAIN, kind="filter", hook=nft.NF_INET_FORWARD,
                     priority=PRIORITY)
        requests.add(nft_rules.add_rule, FAMILY, FLOWTABLE, CHAIN, meta(NFT_META_OIFNAME), in_set(LINKS, SET_ID),
                     meta(NFT_META_IIFNAME), in_set(LINKS, SET_ID), *nft_rules.established(),
                     nft_flowtables.flow_add(PODS))
        requests.commit(self._rules.sock)
        self._written = {}

    def _exchange(self, wanted: Links) -> None:
        """Add the new links of `wanted`, and remove all other links. A link that no longer exists is left out: its pod
        is being deleted."""
        assert self._written is not None
        written, requests = self._written, Transaction()
        new = {name: value for name, value in wanted.items() if name not in written and wire.index_of(name)}
        gone = [name for name in written if name not in wanted]
        if not new and not gone:
            return
        requests.add_parts(nft_elements.del_elements, FAMILY, FLOWTABLE, LINKS, map(ifname, gone))
        requests.add_parts(nft_elements.add_elements, FAMILY, FLOWTABLE, LINKS, ((ifname(name), None) for name in new))
        for names in parts(new, DEVICES):
            requests.add(nft_flowtables.add_flowtable, FAMILY, FLOWTABLE, PODS, names)
        requests.commit(self._rules.sock)
        for name in gone:
            del_device(self._rules.sock, name)
            del written[name]
        written.update(new)


def links_of(attachments: Iterable[Attachment]) -> Links:
    """Return the links of the pods that have a routed link, addresses and no prefixes."""
    return {it.port.name: (it.sequence, it.all_addresses) for it in attachments
            if it.port and not it.port.bridged and it.addresses and all(pair.single for pair in it.port.pairs)}


def del_device(sock: wire.Socket, name: str) -> None:
    """Remove a link from the flowtable. A link that the kernel has deleted is no error. Raises NetlinkError."""
    batch = nft_flowtables.del_device(nft.start(Batch()), FAMILY, FLOWTABLE, PODS, name)
    wire.exchange(sock, nft.stop(batch), (ENOENT,))


def links_in_kernel(sock: wire.Socket) -> frozenset[str] | None:
    """Return the names of the links in the flowtable; None if the node has no flowtable of the agent. Raises OSError.
    """
    keys = keys_of(sock, FAMILY, FLOWTABLE, LINKS)
    return None if keys is None else frozenset(map(read_ifname, keys))
