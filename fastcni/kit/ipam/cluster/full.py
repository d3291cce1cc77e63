"""Make the error for a full range. The text names the nodes that have the range's blocks, and says what to do."""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import ACTIVE, QUARANTINE
from fastcni.kit.ipam.cluster.grid import read_block
from fastcni.spec import address
from fastcni.spec.errors import TRY_AGAIN_LATER, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.kit.ipam.cluster.contract import Store
    from fastcni.kit.ipam.cluster.grid import Range

MAX_NODES = 20          # number of nodes that the error names


def error(store: Store, keys: Keys, range_: Range) -> CniError:
    """Return the CniError 11 for a range without a free address, which names the nodes that have its blocks. Raises
    Away."""
    by_node: dict[str, list[int]] = {}
    for block in store.blocks(keys.space):
        bits, network, prefix = read_block(block.cidr)
        if bits == range_.bits and any(range_.inside(network, prefix)):
            counts = by_node.setdefault(block.node, [0, 0])
            counts[block.state == QUARANTINE] += block.state in (ACTIVE, QUARANTINE)
    claimed: dict[str, int] = {}
    for ip_claim in store.ip_claims(keys.space):
        packed = address.read_ip(ip_claim.address)
        if len(packed) * 8 == range_.bits and range_.has(int.from_bytes(packed, "big")):
            claimed[ip_claim.node] = claimed.get(ip_claim.node, 0) + 1
    names = sorted((by_node.keys() | claimed.keys()) - {""}, key=lambda name: (-sum(by_node.get(name, [])), name))
    texts = [node_text(name, [*by_node.get(name, [0, 0]), claimed.get(name, 0)]) for name in names[:MAX_NODES]]
    if len(names) > MAX_NODES:
        texts.append(f"{len(names) - MAX_NODES} more nodes")
    dead = any(counts[1] for counts in by_node.values())
    advice = ["`fastcni ipam list` shows the holders"]
    if dead:
        advice.append("`fastcni ipam forget-node NODE` frees the blocks in quarantine, once no pod of that node runs")
    advice.append("a larger range, or smaller blocks (ipam.block_size) in a new network_name, has room for more nodes")
    return CniError(TRY_AGAIN_LATER, f'range {range_} of space "{keys.space}" is full for node "{keys.node}": '
                    f"{', '.join(texts) or 'no other node has a block of this range'}", "; ".join(advice))


COUNTED = (("block", "blocks"), ("block in quarantine", "blocks in quarantine"), ("single address", "single addresses"))


def node_text(name: str, counts: list[int]) -> str:
    """Return a text such as "a has 2 blocks and 1 single address". counts: in the order of COUNTED."""
    parts = [f"{count} {words[count > 1]}" for count, words in zip(counts, COUNTED, strict=True) if count]
    return f"{name} has {' and '.join(parts) or 'nothing'}"
