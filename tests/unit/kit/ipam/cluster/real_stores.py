"""The state machine of machine.py on the stores that nodes use, instead of the store in memory."""

import itertools
import os

from cluster.etcd import encoded, prefix_end
from unit.kit.ipam.cluster.machine import ClusterMachine

from fastcni.kit.ipam.cluster.contract import NODE_TTL_S
from fastcni.kit.ipam.cluster.stores.etcd import EtcdStore
from fastcni.kit.ipam.cluster.stores.local import LocalStore

NUMBERS = itertools.count(1)
NEVER_S = 86400                 # node_ttl: the lease of a node ends when the simulation says so


class LocalMachine(ClusterMachine):
    """The machine on the file of the store `local`. Each change of a file is a call of the process, which may crash
    there."""

    def open_store(self):
        return LocalStore({"path": str(self.directory / "store")})

    def take_backup(self):
        return None                 # only a lower revision shows a restore of this file


class SimulatedEtcd(EtcdStore):
    """The store of one process. The leases of nodes follow the simulated clock."""

    def __init__(self, machine):
        super().__init__(machine.etcd.conf(prefix=machine.prefix, node_ttl=NEVER_S))
        self.machine = machine

    def join(self, node, boot_id, address=""):
        self.machine.end_leases()
        me = super().join(node, boot_id, address)
        self.machine.signs[node] = self.machine.cluster.now
        return me

    def join_space(self, node, boot_id, space, wanted, new=False):
        self.machine.end_leases()
        joined = super().join_space(node, boot_id, space, wanted, new)
        self.machine.signs[node] = self.machine.cluster.now
        return joined

    def keep_alive(self, node):
        self.machine.end_leases()
        me = super().keep_alive(node)
        self.machine.signs[node.name] = self.machine.cluster.now
        return me

    def nodes(self):
        self.machine.end_leases()
        return super().nodes()

    def declare_dead(self, node):
        self.machine.end_leases()
        return super().declare_dead(node)


class EtcdMachine(ClusterMachine):
    """The machine on a real etcd, with a prefix for each machine. etcd: an Etcd of cluster/etcd.py, set by a subclass.

    signs: the time of each node's last heartbeat, by the simulated clock.
    """

    etcd, store = None, SimulatedEtcd

    def __init__(self):
        self.prefix, self.signs = f"/fastcni/model-{os.getpid()}-{next(NUMBERS)}", {}
        super().__init__()

    def open_store(self):
        return self.store(self)

    def end_leases(self):
        """End the leases of nodes whose heartbeats have stopped for too long, as etcd does."""
        for name, when in list(self.signs.items()):
            if self.cluster.now - when >= NODE_TTL_S:
                self.etcd.end_lease(self.prefix, name)
                del self.signs[name]

    def take_backup(self):
        return None                 # RestoredEtcdMachine restarts etcd for each restore

    def teardown(self):
        super().teardown()
        body = {"key": encoded(self.prefix), "range_end": encoded(prefix_end(self.prefix))}
        self.etcd.call("/v3/kv/deleterange", body)


class RestoredEtcdMachine(EtcdMachine):
    """The machine with restores of etcd from backups, with the previous token."""

    def take_backup(self):
        return self.etcd.backup() if self.etcd.keys(f"{self.prefix}/log") else None

    def put_back(self, saved):
        self.etcd.restore(saved)
        nodes = [key.split("/")[-2] for key in self.etcd.keys(f"{self.prefix}/node/") if key.endswith("/alive")]
        self.signs = {name: self.signs.get(name, self.cluster.now) for name in nodes}
