"""Build and read the keys and values of the etcd store. Keys are below a prefix. Values are JSON unless noted:

    blk/SPACE/CIDR              Block
    cfg/SPACE                   {"4": 26, "6": 122}: the grid of a space
    ip/SPACE/4-0a000046         IPClaim. The address has hexadecimal digits, so that a block's addresses are a range of
                                keys
    log                         an index of etcd's log from before this write, as text, see Store.settle(). This index
                                minus the key's revision is at_least of a History
    node/NODE/alive             "": exists as long as its lease, see etcd_nodes.py
    node/NODE/epoch             the epoch, as text. The key stays when the node is forgotten, so that no epoch is used
                                twice
    node/NODE/record            {"boot_id", "address", "dead": true}
    own/NODE/SPACE/CIDR         "": index of the node's blocks
    pod/POD/SPACE/4-0a000046    "": index of the pod's IPClaims
    use/SPACE/CIDR              Use

A key begins with the kind of record. So one watch from blk/ to node/ gets every record that decides ownership, without
the Uses, which change often. "%" and "/" in names are written %25 and %2F.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import ALIVE, DEAD, LOST, Block, IPClaim, Node, Use
from fastcni.spec import address, json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from fastcni.clients.etcd import Pair


class Keys:
    """The keys below a prefix. A key that ends with "/" is a prefix of several keys: without its last arguments, a
    method returns the prefix of the keys of a space, a node or a pod, or of all keys of the kind."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")

    def block(self, space: str = "", cidr: str = "") -> str:
        return f"{self.prefix}/blk/{escape(space)}/{cidr}" if space else f"{self.prefix}/blk/"

    def grid(self, space: str) -> str:
        return f"{self.prefix}/cfg/{escape(space)}"

    def log(self) -> str:
        return f"{self.prefix}/log"

    def ip_claim(self, space: str = "", text: str = "") -> str:
        return f"{self.prefix}/ip/{escape(space)}/{text and hexadecimal(text)}" if space else f"{self.prefix}/ip/"

    def ip_claims_in(self, space: str, cidr: str) -> tuple[str, str]:
        """Return the range of keys of a block's IPClaims: the first key, and the key after the last."""
        network, _, prefix = cidr.partition("/")
        first = hexadecimal(network)
        digits = len(first) - 2
        last = int(first[2:], 16) | ((1 << (4 * digits - int(prefix))) - 1)
        start = self.ip_claim(space)
        return f"{start}{first}", f"{start}{first[:2]}{last:0{digits}x}\0"

    def nodes(self) -> str:
        return f"{self.prefix}/node/"

    def node(self, name: str, what: str = "") -> str:
        return f"{self.prefix}/node/{escape(name)}/{what}"

    def own(self, node: str, space: str = "", cidr: str = "") -> str:
        return f"{self.prefix}/own/{escape(node)}/{escape(space)}/{cidr}" if space else \
            f"{self.prefix}/own/{escape(node)}/"

    def pod(self, pod: str, ip_claim: IPClaim | None = None) -> str:
        start = f"{self.prefix}/pod/{escape(pod)}/"
        return f"{start}{escape(ip_claim.space)}/{hexadecimal(ip_claim.address)}" if ip_claim else start

    def use(self, space: str = "", cidr: str = "") -> str:
        return f"{self.prefix}/use/{escape(space)}/{cidr}" if space else f"{self.prefix}/use/"

    def indexed(self, key: str, kind: str) -> str:
        """Return the key of the Block (kind "blk") or IPClaim ("ip") that an index key of own/ or pod/ points to."""
        _, _, space, rest = key[len(self.prefix) + 1:].split("/", 3)
        return f"{self.prefix}/{kind}/{space}/{rest}"

    def watched(self) -> tuple[str, str]:
        """Return the range of the keys of Blocks, block sizes, IPClaims and Nodes."""
        return self.block(), f"{self.prefix}/node0"


def escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def unescape(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def hexadecimal(text: str) -> str:
    """Return an address as its family and hexadecimal digits: "10.0.0.70" becomes "4-0a000046"."""
    packed = address.read_ip(text)
    return f"{4 if len(packed) == 4 else 6}-{packed.hex()}"


def value_of(record: Any) -> str:
    return json.write(record.to_dict()).decode()


def use_value(use: Use, most: int) -> str:
    """Return the value of a Use. If it would be longer than about `most` bytes, as with thousands of addresses, holders
    are left out."""
    value, holders = value_of(use), use.holders
    if len(value) <= most:
        return value
    kept = len(holders) * most // len(value)
    return json.write(use.to_dict() | {"holders": holders[:kept], "left_out": len(holders) - kept}).decode()


def record_of(kind: type[Block | IPClaim | Use], pair: Pair) -> Any:
    return kind.from_dict(json.read(pair.value.encode()), pair.revision)


def read_nodes(pairs: Iterable[Pair]) -> list[Node]:
    """Return the Nodes that keys below node/ describe, sorted by name. A Node's revision is (revision of the record
    key, of the epoch key)."""
    parts: dict[str, dict[str, Pair]] = {}
    for pair in pairs:
        _, name, what = pair.key.rsplit("/", 2)
        parts.setdefault(name, {})[what] = pair
    nodes = [read_node(unescape(name), part) for name, part in parts.items() if "record" in part and "epoch" in part]
    return sorted(nodes, key=lambda node: node.name)


def read_node(name: str, part: dict[str, Pair]) -> Node:
    """Return the Node of a node's keys. part: {"record": Pair, "epoch": Pair, "alive": Pair if the node is ALIVE}."""
    record = json.read(part["record"].value.encode())
    state = DEAD if record.get("dead") else ALIVE if "alive" in part else LOST
    return Node(name, int(part["epoch"].value), record.get("boot_id", ""), record.get("address", ""), state, 0,
                part["record"].revision)
