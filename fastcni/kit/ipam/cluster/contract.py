"""The methods of a store of cluster-wide addresses, and the records that a store keeps.

    Space    an address space: a set of ranges in which each address is given once. Its name is `network_name`,
             "default" without that key. Its grid is the prefix length of blocks for each family, which the first node
             that uses the space chooses
    Node     a node of the cluster with its epoch. A node that is declared dead gets a higher epoch, and the store
             rejects writes by the old epoch
    Block    an aligned prefix of the grid's length. An ACTIVE block belongs to one node: only this node gives its
             addresses. In a SHARED block, nodes claim each address as an IPClaim
    IPClaim  the claim of one address: in a SHARED block, or a fixed or sticky address in a node's block
    Use      the addresses of a block that pods have, for people and tools. The node writes the Use some time after an
             address was given or released

The invariant: an address of a space has at most one live owner. To keep it, a store compares and writes in one atomic
step. If a change does not fit into one transaction, the store orders its steps so that at least one of two concurrent
nodes sees the other's change; the docstrings of the stores show how.

Only Blocks and IPClaims decide who owns an address. Uses are informative.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    # (id of the store's data, its revision, at_least): at_least <= index of the store's last log entry - revision. Each
    # write adds a log entry and a revision, so the difference never falls. A restored etcd has a new log and the
    # revision of the backup, so its difference is lower.
    History = tuple[str, int, int]

# Values of Node.state
ALIVE = "alive"                 # its last heartbeat is younger than NODE_TTL_S
LOST = "lost"                   # its last heartbeat is older; the node keeps its blocks
DEAD = "dead"                   # its epoch was raised, and its blocks are in quarantine; the node may return

# Values of Block.state
ACTIVE = "active"
QUARANTINE = "quarantine"       # no node gives addresses of this block until its dead node returns or is forgotten
SHARED = "shared"               # the block belongs to no node

# Values of IPClaim.state
HELD = "held"                   # a pod has the address
KEPT = "kept"                   # the pod of a sticky address was deleted: the next pod of that name gets the address
ASKED = "asked"                 # another node has the block, and has not yet answered this request
REFUSED = "refused"             # the asked node's own pod has the address: `reason` names the pod

NODE_TTL_S = 60.0

IMPORTED = "(imported)"         # IPClaim.network of an address imported from another IPAM, until its pod is deleted


class Taken(Exception):
    """The error of a claim if another node or pod has the block or address. `by` is the Block or IPClaim in the
    store."""

    def __init__(self, by: Block | IPClaim) -> None:
        super().__init__(by)
        self.by = by


class Fenced(Exception):
    """The error of a write by a node that was declared dead, which raised its epoch. `node` is the node's present
    record."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class Changed(Exception):
    """The error of a write if the record was changed or deleted since the caller read it. The caller has to read the
    record again."""


class Record:
    """A record of the store. Two records are equal if all fields but `revision` are equal. The store detects changes by
    `revision`."""

    __slots__: tuple[str, ...] = ()
    revision: Any

    def __init__(self, *values: Any, **named: Any) -> None:
        for name, value in zip(self.__slots__, values, strict=False):
            setattr(self, name, value)
        for name in self.__slots__[len(values):]:
            setattr(self, name, named.pop(name, ""))
        if named:
            raise TypeError(f"{type(self).__name__} has no {', '.join(named)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without empty fields and without the revision."""
        return {name: value for name in self.__slots__
                if name != "revision" and (value := getattr(self, name)) not in ("", None)}

    @classmethod
    def from_dict(cls, document: dict[str, Any], revision: Any = None) -> Any:
        """Return the record of a document. Ignore fields that this version does not know."""
        record = cls(**{name: document[name] for name in cls.__slots__ if name in document})
        if revision is not None:
            record.revision = revision
        return record

    def copy(self, **fields: Any) -> Any:
        """Return a copy of the record in which `fields` replace the record's values."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__} | fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None     # type: ignore[assignment]  # a Record is mutable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"


class Node(Record):
    """A node of the cluster. epoch: a counter from 1. boot_id: the kernel's boot id when the node last joined. address:
    the node's address, for people. state: ALIVE, LOST or DEAD. seen: the unix time of the last heartbeat by the store's
    clock, 0 if the store does not know that time."""

    __slots__ = ("name", "epoch", "boot_id", "address", "state", "seen", "revision")
    name: str
    epoch: int
    boot_id: str
    address: str
    state: str
    seen: float


class Block(Record):
    """A block of an address space. cidr: "10.0.0.64/26"; IPv6 in lower case and shortest form. node and epoch: the
    owner's, "" and 0 if the block is SHARED. state: ACTIVE, QUARANTINE or SHARED. since: unix time of the claim, by the
    claiming node's clock."""

    __slots__ = ("space", "cidr", "node", "epoch", "state", "since", "revision")
    space: str
    cidr: str
    node: str
    epoch: int
    state: str
    since: float


class IPClaim(Record):
    """The claim of one address.

    space, address ("10.0.0.7"), block (the cidr). state: HELD, KEPT, ASKED or REFUSED. node and epoch: the claiming
    node's. container (id) and ifname: the owner's. pod: "namespace/name", "" if unknown. network: the configuration's
    name. since: unix time. sticky: True if the IPClaim becomes KEPT for `pod` when the pod is deleted. reason: the
    explanation of REFUSED, "" in other states.
    """

    __slots__ = ("space", "address", "block", "state", "node", "epoch", "container", "ifname", "pod", "network",
                 "since", "sticky", "reason", "revision")
    space: str
    address: str
    block: str
    state: str
    node: str
    epoch: int
    container: str
    ifname: str
    pod: str
    network: str
    since: float
    sticky: bool
    reason: str


class Use(Record):
    """The addresses of a block that a node has given to pods. holders: [{address, container, ifname, pod, network,
    since}]. boot_id: the node's boot id when it wrote the record. written: unix time, by the node's clock."""

    __slots__ = ("space", "cidr", "node", "epoch", "boot_id", "holders", "written", "revision")
    space: str
    cidr: str
    node: str
    epoch: int
    boot_id: str
    holders: list[dict[str, Any]]
    written: float


class Event(Record):
    """A change of the store: record is a Node, Block or IPClaim; gone is True if it was removed."""

    __slots__ = ("record", "gone")
    record: Node | Block | IPClaim
    gone: bool


class Joined:
    """The result of join_space(): the Node, the block sizes of the space, and the node's blocks and IP claims. log:
    a result of Store.log() from before the join. restored: whether the store was restored since it was last complete,
    see Store.settle()."""

    __slots__ = ("blocks", "grid", "ip_claims", "log", "node", "restored")

    def __init__(self, node: Node, grid: dict[str, int], blocks: list[Block], ip_claims: list[IPClaim],
                 log: tuple[int, int] | None = None, restored: bool = False) -> None:
        self.node, self.grid, self.blocks, self.ip_claims, self.log, self.restored = (
            node, grid, blocks, ip_claims, log, restored)


def restored(before: History, now: History) -> bool:
    """Return whether the store was replaced or restored from a backup. before, now: two results of the store's
    history()."""
    return bool(before[0]) and (now[0] != before[0] or now[1] < before[1])


def log_restored(before: History, log: tuple[int, int] | None) -> bool:
    """Return whether the store was restored from a backup, although its revision may have grown again. before: an
    earlier result of its history(). log: a result of its log(); None: the store has no log, so the
    function returns False."""
    if log is None or not before[0]:
        return False
    index, revision = log
    return revision >= before[1] and index - revision < before[2]       # a lower one: the member is behind


if TYPE_CHECKING:
    class Store(Protocol):
        """A store of cluster-wide addresses. Each process has one Store object per store; threads may share it.

        Each method raises Away if the store does not answer. The caller may then call the method again: the method
        finds its own earlier writes, and succeeds. Methods that write for a node raise Fenced if the node's epoch in
        the store is higher than the epoch in the call.
        """

        name: str           # "etcd", "kubernetes", "local"

        def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
            """Return the block sizes of a space, {"4": 26, "6": 122}. If the stored block sizes lack a family of
            `wanted`, add that family in one atomic step."""

        # Nodes
        def join(self, node: str, boot_id: str, address: str = "") -> Node:
            """Register this node, and return the Node with its epoch. A registration is also a heartbeat. A DEAD node
            that joins becomes ALIVE, with the epoch that declare_dead() raised; its blocks do not change."""

        def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
            """Call join(), then grid(space, wanted), blocks(space, node) and ip_claims(space, node). Return the
            results. new: the store probably has no record of the node; this hint can save a request."""

        def keep_alive(self, node: Node) -> Node:
            """Send a heartbeat. Raises Fenced; Changed if the node was forgotten."""

        def nodes(self) -> list[Node]:
            """Return all nodes, sorted by name."""

        def declare_dead(self, node: Node) -> Node:
            """Raise the node's epoch by one, then set each of its ACTIVE blocks to QUARANTINE. A second call, after a
            crash, does the remaining steps. Raises Changed if the store has another epoch, or if the node is ALIVE."""

        def forget(self, node: Node) -> None:
            """Remove a DEAD node with its blocks, uses and IP claims; KEPT IP claims stay. The caller guarantees that
            no pod of the node runs. Raises Changed if the node is not DEAD any more."""

        def node_gone(self, node: str) -> bool:
            """Return whether the node's Kubernetes Node object was deleted. False if this store does not know Node
            objects."""

        def history(self) -> History:
            """Return the History of the store's last answer; send a request if no answer has come yet. Another id or a
            lower revision than before: the store was restored from a backup, or is a new store."""

        def log(self) -> tuple[int, int] | None:
            """Ask the store for (the index of the last entry in its log, its revision). None: the store has no log, or
            does not report the index. The member that answers may be behind other members."""

        def settle(self) -> None:
            """Record the index of the log, because the store is complete: after the store's restore, the nodes have
            claimed their records again. The first join_space() also records the index. Each later join_space() compares
            the log with this record, for nodes that have no History."""

        # Blocks
        def blocks(self, space: str = "", node: str = "") -> list[Block]:
            """Return the blocks of a space, of a node, or of a node in a space; without arguments all blocks. The list
            is sorted by space and address."""

        def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
            """Claim the blocks `wanted`, (space, cidr), either all or no block. A block that is already this node's,
            ACTIVE and of this epoch, stays as it is, and is returned too. Raises Taken, whose `by` is the first block
            that is not free; Fenced."""

        def adopt(self, me: Node, block: Block) -> Block:
            """Take over a block that this node had in an earlier epoch and that is in QUARANTINE or ACTIVE: make the
            block ACTIVE, with the present epoch. Raises Changed if another node has the block or if the block was
            deleted; Fenced."""

        def share(self, space: str, cidr: str) -> Block:
            """Return the block as SHARED; create the block if it does not exist. Raises Taken if a node has the
            block."""

        def give_back(self, block: Block) -> bool:
            """Remove a block with its use. A SHARED block is only removed if it has no IP claim; a node's block with
            KEPT IP claims becomes SHARED. Return False, and change nothing, if the block has changed (revision)."""

        # IP claims
        def claim_address(self, me: Node, ip_claim: IPClaim) -> IPClaim:
            """Claim an address. The wanted state is `ip_claim.state`: HELD needs a SHARED block or an ACTIVE block of
            this node; ASKED needs another node's block. The claim takes over an IPClaim of the same container and
            ifname, or a KEPT IPClaim of the same pod. Raises Taken if an IPClaim or the state of the Block (`by`)
            prevents the claim; Changed if the block does not exist; Fenced."""

        def change_ip_claim(self, ip_claim: IPClaim, **fields: Any) -> IPClaim:
            """Write `fields` into an IPClaim. Raises Changed if the IPClaim has changed (revision)."""

        def release_ip_claim(self, ip_claim: IPClaim) -> bool:
            """Remove an IPClaim. Return False, and change nothing, if the IPClaim has changed (revision)."""

        def ip_claim(self, space: str, address: str) -> IPClaim | None:
            """Return the IPClaim of an address, or None."""

        def ip_claims(self, space: str = "", node: str = "", pod: str = "") -> list[IPClaim]:
            """Return the IP claims of a space, a node, a pod; without arguments all IP claims. The list is sorted by
            space and address."""

        # Records for people and tools
        def write_uses(self, me: Node, uses: Sequence[Use]) -> None:
            """Write the Uses of this node's blocks; ignore Uses of other blocks. Raises Fenced."""

        def uses(self, space: str = "") -> list[Use]:
            """Return the uses of a space; without `space`, of all spaces."""

        def watch(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
            """Call changed() for each existing record, then for each change, until stop() returns true. Call stop() at
            least every second. Raises Away when the connection is lost: call watch() again. Events may come twice."""

        def close(self) -> None:
            """Close connections. A later call opens them again."""
