"""The state machine of machine.py on the stores `local` and etcd."""

import itertools
import os

from cluster.etcd import encoded, prefix_end
from unit.kit.ipam.cluster.machine import ClusterMachine

from fastcni.kit.ipam.cluster.contract import NODE_TTL_S
from fastcni.kit.ipam.cluster.stores.etcd import EtcdStore
from fastcni.kit.ipam.cluster.stores.local import LocalStore

NUMBERS = itertools.count(1)
NEVER_S = 86400                 # node_ttl in seconds: only end_leases() ends a lease


class LocalMachine(ClusterMachine):
    """The state machine on the file of the store `local`. Each change of a file is a call at which the simulation may
    end the process."""

    def open_store(self):
        return LocalStore({"path": str(self.directory / "store")})

    def take_backup(self):
        return None                 # a node notices the restore of this file only if the revision is lower


class SimulatedEtcd(EtcdStore):
    """A process's connection to etcd. The leases of nodes follow the simulated clock."""

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
    """The state machine on a real etcd. Each machine has its own prefix. etcd: an Etcd of cluster/etcd.py, set by a
    subclass.

    signs: the time of each node's last heartbeat, by the simulated clock.
    """

    etcd, store = None, SimulatedEtcd

    def __init__(self):
        self.prefix, self.signs = f"/fastcni/model-{os.getpid()}-{next(NUMBERS)}", {}
        super().__init__()

    def open_store(self):
        return self.store(self)

    def end_leases(self):
        """End the leases of nodes without heartbeats for NODE_TTL_S, as etcd would."""
        for name, when in list(self.signs.items()):
            if self.cluster.now - when >= NODE_TTL_S:
                self.etcd.end_lease(self.prefix, name)
                del self.signs[name]

    def take_backup(self):
        return None                 # only RestoredEtcdMachine restores, because each restore restarts etcd

    def teardown(self):
        super().teardown()
        body = {"key": encoded(self.prefix), "range_end": encoded(prefix_end(self.prefix))}
        self.etcd.call("/v3/kv/deleterange", body)


class RestoredEtcdMachine(EtcdMachine):
    """The state machine on a real etcd that restores backups. etcd keeps its token."""

    def take_backup(self):
        return self.etcd.backup() if self.etcd.keys(f"{self.prefix}/log") else None

    def put_back(self, saved):
        self.etcd.restore(saved)
        nodes = [key.split("/")[-2] for key in self.etcd.keys(f"{self.prefix}/node/") if key.endswith("/alive")]
        self.signs = {name: self.signs.get(name, self.cluster.now) for name in nodes}
