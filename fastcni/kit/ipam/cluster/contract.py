"""The contract of a store of cluster-wide addresses, and the records in it.

    Space    a set of ranges in which each address is given once: `network_name`, "default" without that key. Its grid
             has the prefix length of blocks for each family; the first node that uses the space decides these lengths
    Node     a node of the cluster with its epoch. A node that is declared dead gets a higher epoch, and the store
             rejects writes by the old epoch
    Block    an aligned prefix of that length. An active block belongs to one node: only this node gives its addresses.
             In a shared block a Single claims each address
    Single   an address that is claimed by itself: in a shared block, or fixed or sticky in a node's block
    Use      the addresses of a block that a node has given, written after the fact, for people and for tools

The invariant that a store and its users keep: an address of a space has at most one live owner. For that, a store
compares and writes in one step. If a change does not fit into one transaction, the store orders the steps so that at
least one of two nodes sees the other node's change, see the docstrings of the stores.

Only blocks and singles decide who owns an address. Uses decide nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

# State of a Node
ALIVE = "alive"                 # its last heartbeat is younger than NODE_TTL_S
LOST = "lost"                   # its last heartbeat is older; the node keeps its blocks
DEAD = "dead"                   # its epoch was raised and its blocks are in quarantine; it may come back

# State of a Block
ACTIVE = "active"
QUARANTINE = "quarantine"       # of a dead node: nobody gives its addresses until the node is forgotten or comes back
SHARED = "shared"               # the block is no node's

# State of a Single
HELD = "held"                   # a pod has the address
KEPT = "kept"                   # sticky, and the pod was deleted: the address is kept for the next pod of that identity
ASKED = "asked"                 # the block is another node's, which has not answered yet
REFUSED = "refused"             # that node has given the address to a pod of its own: `reason` says to which

NODE_TTL_S = 60.0

IMPORTED = "(imported)"         # network of a Single that was taken over from another IPAM, until its pod is deleted


class Taken(Exception):
    """Another node or pod has the block or address. `by` is the Block or Single in the store."""

    def __init__(self, by: Block | Single) -> None:
        super().__init__(by)
        self.by = by


class Fenced(Exception):
    """The epoch of this node was raised: it was declared dead. `node` is its record now."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class Changed(Exception):
    """The record was changed or deleted since the caller read it. The caller has to read the record again."""


class Record:
    """A record of the store. Equal by its fields; a revision is the store's, and not part of it."""

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
        """The fields as JSON values, without those that are empty and without the revision."""
        return {name: value for name in self.__slots__
                if name != "revision" and (value := getattr(self, name)) not in ("", None)}

    @classmethod
    def from_dict(cls, document: dict[str, Any], revision: Any = None) -> Any:
        """The record of a document. Fields that this version does not know are left out."""
        record = cls(**{name: document[name] for name in cls.__slots__ if name in document})
        if revision is not None:
            record.revision = revision
        return record

    def copy(self, **fields: Any) -> Any:
        """Return a copy with other values of some fields."""
        return type(self)(**{name: getattr(self, name) for name in self.__slots__} | fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    __hash__ = None     # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"


class Node(Record):
    """name. epoch: a counter from 1. boot_id: of its last join. address: for people. state: ALIVE, LOST or DEAD.
    seen: the unix time of its last heartbeat by the store's clock, 0 if the store does not know that time."""

    __slots__ = ("name", "epoch", "boot_id", "address", "state", "seen", "revision")
    name: str
    epoch: int
    boot_id: str
    address: str
    state: str
    seen: float
    revision: Any


class Block(Record):
    """space; cidr: "10.0.0.64/26", lower case and shortest form for IPv6. node and epoch: its owner's, "" and 0 if it
    is SHARED. state: ACTIVE, QUARANTINE or SHARED. since: unix time of the claim, by the claiming node's clock."""

    __slots__ = ("space", "cidr", "node", "epoch", "state", "since", "revision")
    space: str
    cidr: str
    node: str
    epoch: int
    state: str
    since: float
    revision: Any


class Single(Record):
    """An address claimed by itself.

    space, address ("10.0.0.7"), block (its cidr). state: HELD, KEPT, ASKED or REFUSED. node and epoch: of the claim.
    owner: container id, ifname. pod: "namespace/name", "" if unknown. network: of the configuration. since: unix time.
    sticky: True if the Single becomes KEPT for `pod` when the pod is deleted. reason: why the state is REFUSED.
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
    revision: Any


class Use(Record):
    """The addresses of a block that a node has given to pods. holders: [{address, container, ifname, pod, network,
    since}]. boot_id: of the boot in which the node wrote the record. written: unix time, by the node's clock."""

    __slots__ = ("space", "cidr", "node", "epoch", "boot_id", "holders", "written", "revision")
    space: str
    cidr: str
    node: str
    epoch: int
    boot_id: str
    holders: list[dict[str, Any]]
    written: float
    revision: Any


class Event(Record):
    """A change of the store: record is a Node, Block or Single; gone is True if it was removed."""

    __slots__ = ("record", "gone")
    record: Node | Block | Single
    gone: bool


class Joined:
    """The result of join_space(): the Node, the block sizes of the space, and the node's blocks and singles."""

    __slots__ = ("blocks", "grid", "node", "singles")

    def __init__(self, node: Node, grid: dict[str, int], blocks: list[Block], singles: list[Single]) -> None:
        self.node, self.grid, self.blocks, self.singles = node, grid, blocks, singles


if TYPE_CHECKING:
    class Store(Protocol):
        """A store of cluster-wide addresses. One process uses one Store, whose methods several threads may call.

        Each method raises Away. A method that is called again after Away finds its own earlier writes, and
        succeeds. Methods that write for a node raise Fenced if the node's epoch is higher than the epoch in the call.
        """

        name: str           # "etcd", "kubernetes", "local"

        def grid(self, space: str, wanted: dict[str, int]) -> dict[str, int]:
            """Return the block sizes of a space, {"4": 26, "6": 122}. Families of `wanted` that the stored block sizes
            lack are added by compare-and-put."""

        # Nodes
        def join(self, node: str, boot_id: str, address: str = "") -> Node:
            """Register this node, with a heartbeat, and return the node with its epoch. A DEAD node that joins becomes
            ALIVE, with the epoch that declare_dead() raised; its blocks do not change."""

        def join_space(self, node: str, boot_id: str, space: str, wanted: dict[str, int], new: bool = False) -> Joined:
            """join(), and then grid(space, wanted), blocks(space, node) and singles(space, node). new: the store
            probably has no record of the node, which can save a request."""

        def keep_alive(self, node: Node) -> Node:
            """Send a heartbeat. Raises Fenced; Changed if the node was forgotten."""

        def nodes(self) -> list[Node]:
            """Return all nodes, by name."""

        def declare_dead(self, node: Node) -> Node:
            """Raise the node's epoch by one, then set each of its ACTIVE blocks to QUARANTINE. Called again after a
            crash, do the remaining steps. Raises Changed if the store has another epoch, or if the node is ALIVE."""

        def forget(self, node: Node) -> None:
            """Remove a DEAD node with its blocks, uses and singles; KEPT singles stay. The caller asserts that no pod
            of the node runs. Raises Changed if the node is not DEAD any more."""

        def node_gone(self, node: str) -> bool:
            """Return whether the node no longer exists in the cluster: its Node object of Kubernetes was deleted. False
            if this store has no such information."""

        def history(self) -> tuple[str, int]:
            """Return (id of the store's data, its revision) of the last answer; ask the store before its first answer.
            Another id or a lower revision than before: the store was restored from a backup, or is a new store."""

        # Blocks
        def blocks(self, space: str = "", node: str = "") -> list[Block]:
            """Return the blocks of a space, of a node, or of a node in a space; without arguments all blocks. By space
            and address."""

        def claim(self, me: Node, wanted: Sequence[tuple[str, str]]) -> list[Block]:
            """Claim the blocks `wanted`, (space, cidr), either all or no block. A block that is already this node's,
            ACTIVE and of this epoch, is returned unchanged. Raises Taken by the first block that is not free,
            Fenced."""

        def adopt(self, me: Node, block: Block) -> Block:
            """Make a block of this node's earlier epoch, QUARANTINE or ACTIVE, its own again, with the present epoch.
            Raises Changed if the block is another node's or was deleted, Fenced."""

        def share(self, space: str, cidr: str) -> Block:
            """Return the block as SHARED; make the block if it does not exist. Raises Taken if it is a node's."""

        def give_back(self, block: Block) -> bool:
            """Remove a block with its use. A SHARED block is only removed if it has no Single; a node's block with KEPT
            singles becomes SHARED. Return False, and change nothing, if the block has changed (revision)."""

        # Addresses that are claimed by themselves
        def claim_single(self, me: Node, single: Single) -> Single:
            """Claim an address. The wanted state is `single.state`: HELD needs a SHARED block or an ACTIVE block of
            this node; ASKED needs another node's block. The claim takes over a Single of the same container and ifname,
            or a KEPT Single of the same pod. Raises Taken by a Single or by a Block that does not fit, Changed if the
            block does not exist, Fenced."""

        def change_single(self, single: Single, **fields: Any) -> Single:
            """Write fields of a Single. Raises Changed if the Single has changed (revision)."""

        def release_single(self, single: Single) -> bool:
            """Remove a Single. Return False, and change nothing, if the Single has changed (revision)."""

        def single(self, space: str, address: str) -> Single | None:
            """Return the Single of an address."""

        def singles(self, space: str = "", node: str = "", pod: str = "") -> list[Single]:
            """Return the singles of a space, a node, a pod; without arguments all singles. By space and address."""

        # After the fact
        def write_uses(self, me: Node, uses: Sequence[Use]) -> None:
            """Write the Uses of this node's blocks; ignore Uses of other blocks. Raises Fenced."""

        def uses(self, space: str = "") -> list[Use]:
            """Return the uses of a space; without `space`, of all spaces."""

        def watch(self, changed: Callable[[Event], object], stop: Callable[[], bool]) -> None:
            """Call changed() for each existing record, then for each change, until stop() returns true. Call stop() at
            least every second. Raises Away when the connection is lost: call watch() again. Events may come twice."""

        def close(self) -> None:
            """Close connections. A later call opens them again."""
