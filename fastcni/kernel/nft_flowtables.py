"""Encode messages about flowtables of nftables, and the expression that adds a packet's connection to a flowtable.

When a connection is in a flowtable, the kernel forwards the connection's packets from the ingress hook of the listed
devices to the next hop, past all other hooks (Documentation/networking/nf_flowtable.rst). When the conntrack entry of a
connection is deleted, the connection's next packet passes all hooks again (flow_offload_lookup() in
net/netfilter/nf_flow_table_core.c). Names and layouts: include/uapi/linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from fastcni.kernel import nft
from fastcni.kernel.uapi import NLM_F_ACK, NLM_F_CREATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni._netlink import Batch
    from fastcni.kernel.nft_rules import Expression

NFT_MSG_NEWFLOWTABLE, NFT_MSG_DELFLOWTABLE = (nft.NFNL_SUBSYS_NFTABLES << 8 | number for number in (22, 24))
NFTA_FLOWTABLE_TABLE, NFTA_FLOWTABLE_NAME, NFTA_FLOWTABLE_HOOK, NFTA_FLOWTABLE_FLAGS = 1, 2, 3, 7
NFTA_FLOWTABLE_HOOK_NUM, NFTA_FLOWTABLE_HOOK_PRIORITY, NFTA_FLOWTABLE_HOOK_DEVS = 1, 2, 3
NFTA_DEVICE_NAME = 1
NFT_FLOWTABLE_COUNTER = 1 << 1


def add_flowtable(batch: Batch, family: int, table: str, name: str, devices: Collection[str] = ()) -> Batch:
    """Add a flowtable that counts packets in conntrack, or add devices to an existing flowtable. The kernel answers
    ENOENT if a device does not exist, or if the kernel was built without flowtables (CONFIG_NFT_FLOW_OFFLOAD,
    CONFIG_NF_FLOW_TABLE_INET).
    """
    batch.begin(NFT_MSG_NEWFLOWTABLE, NLM_F_ACK | NLM_F_CREATE, nft.nfgenmsg(family), f"add flowtable {table} {name}")
    return _hook(batch, table, name, devices).be32(NFTA_FLOWTABLE_FLAGS, NFT_FLOWTABLE_COUNTER)


def del_device(batch: Batch, family: int, table: str, name: str, device: str) -> Batch:
    """Remove a device from a flowtable. The kernel answers ENOENT if the flowtable does not have the device."""
    batch.begin(NFT_MSG_DELFLOWTABLE, NLM_F_ACK, nft.nfgenmsg(family), f"delete a device of flowtable {table} {name}")
    return _hook(batch, table, name, (device,))


def _hook(batch: Batch, table: str, name: str, devices: Collection[str]) -> Batch:
    batch.text(NFTA_FLOWTABLE_TABLE, table).text(NFTA_FLOWTABLE_NAME, name).nest(NFTA_FLOWTABLE_HOOK)
    batch.be32(NFTA_FLOWTABLE_HOOK_NUM, nft.NF_NETDEV_INGRESS).be32(NFTA_FLOWTABLE_HOOK_PRIORITY, 0)
    if devices:
        batch.nest(NFTA_FLOWTABLE_HOOK_DEVS)
        for device in devices:
            batch.text(NFTA_DEVICE_NAME, device)
        batch.end()
    return batch.end()


def flow_add(name: str) -> Expression:
    """flow add @<name>: add the packet's connection to a flowtable. NFTA_FLOW_TABLE_NAME 1"""
    return "flow_offload", lambda b: b.text(1, name)
