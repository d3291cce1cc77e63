"""The state machine of test_model.py. A cluster, an operator and runtimes act in any order."""

import itertools
import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.kit.ipam.cluster.memory_store import Memory, MemoryStore
from unit.kit.ipam.cluster.simulation import FAULTS, PAUSE, Cluster

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster import claims, hold, upkeep
from fastcni.kit.ipam.cluster.conf import read_keys
from fastcni.kit.ipam.cluster.contract import ACTIVE, ALIVE, DEAD, LOST, Changed, Fenced
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

NODES = ("n1", "n2", "n3")
IPAM = {                        # {network: its keys}. In all networks but "tiny", a block has four addresses.
    "wide": {"range": "10.0.0.0/28"},
    "overlapping": {"range": "10.0.0.8-10.0.0.23/27"},
    "dual": {"ipRanges": [{"range": "10.0.0.0/28"}, {"range": "fd00::/124"}]},
    "tiny": {"range": "10.0.0.12/30", "block_size": 32},        # nodes claim each address separately
    "sticky": {"range": "10.0.0.0/28", "sticky": "pod"},
    "fixed": {"range": "10.0.0.0/28"},
    "other-space": {"range": "10.0.0.0/28", "network_name": "other"},
}
FIXED = ("10.0.0.5", "10.0.0.10", "10.0.0.14")
# longer than: nothing, cool-down, a node's life without heartbeats, confirmation, grace period
STEPS_S = (1.0, 31.0, 61.0, 301.0, 601.0)
TRY_AGAIN_LATER = 11
OLDER = 100  # changes of the store before the first backup. The log of a younger store does not show a restore

nodes = st.integers(0, len(NODES) - 1)
number = st.integers(0, 50)
fault = st.one_of(st.none(), st.none(), st.tuples(st.sampled_from(FAULTS), st.integers(1, 8)))


class Pod:
    """A pod of the model. addresses: the addresses in its last result. live: whether the pod uses them. ended: whether
    its DEL is due."""

    def __init__(self, node, network, container, args):
        self.node, self.network, self.container, self.args = node, network, container, args
        self.addresses, self.live, self.ended = (), False, False

    def places(self):
        return [(space_of(self.network), address) for address in self.addresses]

    def __repr__(self):
        return f"{self.container} of {self.network} on {self.node.name}"


class ClusterMachine(RuleBasedStateMachine):
    """The state machine on a store in memory; real_stores.py has machines on other stores. current: the running
    machine. steps: the number of steps of all machines since take_steps()."""

    current, steps = None, 0

    def __init__(self):
        super().__init__()
        ClusterMachine.current = self
        self.directory = Path(tempfile.mkdtemp(prefix="cluster-", dir="/dev/shm"))
        self.memory = Memory(lambda: self.cluster.now)
        self.memory.revision = OLDER
        self.cluster = Cluster(self.directory, NODES, self.open_store)
        self.nodes, self.numbers = self.cluster.nodes, itertools.count(1)
        self.saved = None
        self.pods, self.owners = {}, {}         # pods by container ID; the live pod that has each (space, address)
        store = self.open_store()
        for space in {space_of(network) for network in IPAM}:
            store.grid(space, {"4": 30, "6": 126})
        store.close()

    store = MemoryStore

    def open_store(self):
        """Return a connection to the store, for one process."""
        return self.store(self.memory)

    @invariant()
    def former_epochs_write_nothing(self):
        """Assert that each active block has the current epoch of its node. So a node that was declared dead has not
        written."""
        store = self.open_store()
        nodes = {node.name: node for node in store.nodes()}
        for block in store.blocks():
            node = nodes.get(block.node)
            assert block.state != ACTIVE or (node and block.epoch == node.epoch), f"{block} of {node}"
        store.close()

    @classmethod
    def take_steps(cls):
        """Return the number of steps since the last call."""
        steps, ClusterMachine.steps = ClusterMachine.steps, 0
        return steps

    @invariant()
    def count(self):
        ClusterMachine.steps += 1
        self.cluster.now += 0.01

    def teardown(self):
        for node in self.nodes:
            self.kill(node)
        shutil.rmtree(self.directory)

    # -- requests ------------------------------------------------------------------------------------------------------

    def configuration(self, network, **more):
        ipam = {"type": "cluster", "store": {"type": "local", "path": str(self.directory / "store")}, "block_size": 30,
                "block_size6": 126, **IPAM[network]}
        return {"cniVersion": "1.1.0", "name": network, "type": "cluster", "ipam": ipam, **more}

    @rule(at=nodes, network=st.sampled_from(list(IPAM)), identity=st.integers(0, 3), ip=st.sampled_from(FIXED),
          fault=fault)
    def add(self, at, network, identity, ip, fault):
        node = self.nodes[at]
        if not is_free(node):
            return
        name = f"p{identity}" if network == "sticky" else f"p{identity}-{node.name}"
        args = f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={network}-{name}"
        if network == "fixed":
            args += f";IP={ip}"
        for other in self.pods_of(node):
            if other.network == network and pod_of(other.args) == pod_of(args):
                self.end(other)                 # the new sandbox replaces the pod's earlier sandbox
        pod = Pod(node, network, f"c{next(self.numbers)}", args)
        self.pods[pod.container] = pod
        self.request(pod, "ADD", fault)

    @rule(at=nodes, network=st.sampled_from(list(IPAM)))
    def fill(self, at, network):
        for identity in range(4):
            self.add(at, network, identity, FIXED[identity % 3], None)

    @rule(choice=number, fault=fault)
    def repeat_add(self, choice, fault):
        if pod := self.choose(choice, lambda pod: is_free(pod.node) and not pod.ended):
            self.request(pod, "ADD", fault)

    @rule(choice=number, fault=fault)
    def delete(self, choice, fault):
        if pod := self.choose(choice, lambda pod: is_free(pod.node)):
            self.end(pod)
            self.request(pod, "DEL", fault)

    @rule(at=nodes, network=st.sampled_from(list(IPAM)), fault=fault)
    def collect(self, at, network, fault):
        node = self.nodes[at]
        if not is_free(node):
            return
        valid = [{"containerID": pod.container, "ifname": "eth0"} for pod in self.pods_of(node) if pod.live]
        conf = self.configuration(network, **{"cni.dev/valid-attachments": valid})
        self.began(node, node.call("GC", conf, fault=fault), lambda reply: None)

    @rule(at=nodes, fault=fault)
    def return_idle(self, at, fault):
        """Let a node's server return the blocks without pods."""
        self.of_server(at, fault, lambda store, keys: upkeep.give_back_idle(store, keys, print, 0.0, spare=0))

    @rule(at=nodes, fault=fault)
    def confirm(self, at, fault):
        """Let a node's server send heartbeats."""
        for network in ("wide", "other-space"):
            self.of_server(at, fault, lambda store, keys: claims.confirm(store, keys, print), network)

    @rule(at=nodes, fault=fault)
    def answer(self, at, fault):
        """Let a node's server answer nodes that ask for addresses of its blocks."""
        self.of_server(at, fault, lambda store, keys: [
            upkeep.answer_asked(store, keys, print, ip_claim) for ip_claim in store.ip_claims(keys.space)])

    def of_server(self, at, fault, work, network="wide"):
        node = self.nodes[at]
        if is_free(node):
            conf = node.conf(self.configuration(network))
            node.run(quietly(lambda store: work(store, read_keys(Section(conf)))), fault)

    def request(self, pod, command, fault):
        conf = self.configuration(pod.network)
        process = pod.node.call(command, conf, pod.container, pod.args, fault)
        self.began(pod.node, process, lambda reply: self.answered(pod, command, reply))

    def began(self, node, process, answered):
        """Store a paused process, or pass the reply of a process that has ended to answered()."""
        if process.paused:
            node.process = process, answered
        elif process.reply is not None:
            answered(process.reply)

    def answered(self, pod, command, reply):
        if command == "DEL":
            if reply.status == 0:
                self.pods.pop(pod.container, None)
            return
        document = json.loads(reply.stdout)
        if reply.status:
            assert document["code"] == TRY_AGAIN_LATER, f"ADD of {pod}: {document}"
            return
        addresses = tuple(one["address"].split("/")[0] for one in document["ips"])
        assert not pod.live or addresses == pod.addresses, f"{pod}: first {pod.addresses}, repeated {addresses}"
        pod.addresses, pod.live = addresses, True
        for key in pod.places():
            owner = self.owners.setdefault(key, pod)
            assert owner is pod, f"{key} has two live owners: {owner} and {pod}"

    def end(self, pod):
        """Record that a pod no longer uses its addresses."""
        for key in pod.places():
            if self.owners.get(key) is pod:
                del self.owners[key]
        pod.live, pod.ended = False, True

    def pods_of(self, node):
        return [pod for pod in self.pods.values() if pod.node is node]

    def choose(self, choice, fits):
        found = [pod for pod in self.pods.values() if fits(pod)]
        return found[choice % len(found)] if found else None

    # -- events of nodes and of the store -----------------------------------------------------------------------------

    @precondition(lambda self: any(node.process for node in self.nodes))
    @rule(choice=number)
    def go_on(self, choice):
        """Let a paused process continue."""
        paused = [node for node in self.nodes if node.process]
        self.resume(paused[choice % len(paused)])

    def resume(self, node):
        if node.process:
            (process, answered), node.process = node.process, None
            process.resume()
            self.began(node, process, answered)

    def kill(self, node):
        if node.process:
            node.process[0].kill()
            node.process = None

    @rule(at=nodes)
    def kill_process(self, at):
        self.kill(self.nodes[at])

    @rule(at=nodes)
    def change_reach(self, at):
        """Begin or end a network partition of a node."""
        self.nodes[at].reachable = not self.nodes[at].reachable

    @rule(at=nodes)
    def change_power(self, at):
        """Switch a node off, which ends its pods, or switch it on with a new boot ID."""
        node = self.nodes[at]
        if node.up:
            self.kill(node)
            self.forget_pods(node)
            node.up = False
        else:
            node.boot()

    @rule()
    def repair(self):
        """Give each node power and a connection to the store."""
        for node in self.nodes:
            node.reachable = True
            if not node.up:
                node.boot()

    @rule(at=nodes)
    def reboot(self, at):
        if self.nodes[at].up:
            self.change_power(at)
            self.change_power(at)

    def forget_pods(self, node):
        for pod in self.pods_of(node):
            self.end(pod)
            del self.pods[pod.container]

    @rule(seconds=st.sampled_from(STEPS_S))
    def pass_time(self, seconds):
        self.cluster.now += seconds

    def take_backup(self):
        """Return a backup of a store that a node has joined, or None. If a backup is older than all nodes, no node can
        notice its restore. Some machines restore no backup, and always return None."""
        return self.memory.backup() if self.memory.logged else None

    def put_back(self, saved):
        self.memory.restore(saved)

    @rule()
    def back_up(self):
        self.saved = self.take_backup() or self.saved

    @precondition(lambda self: self.saved)
    @rule(order=st.permutations(range(len(NODES))), networks=st.lists(st.sampled_from(list(IPAM)), max_size=3))
    def restore(self, order, networks):
        """Restore the store from the backup. Within a minute each node sends heartbeats, in any order, between ADDs."""
        self.repair()
        for node in self.nodes:
            self.kill(node)
        self.put_back(self.saved)
        for at in order:
            for network in networks:
                self.add(order[0], network, at, FIXED[0], None)
            self.confirm(at, None)
        self.cluster.now += hold.PAUSE_S

    @rule(at=nodes, seconds=st.sampled_from((-86400.0, 3600.0)))
    def jump_clock(self, at, seconds):
        self.nodes[at].skew += seconds

    @rule(at=nodes, observer=nodes, fault=fault)
    def declare_dead(self, at, observer, fault):
        """If a node's heartbeats have stopped, let an operator or a server declare it dead."""
        self.of_operator(at, observer, fault, LOST, lambda store, record: store.declare_dead(record))

    @rule(at=nodes, observer=nodes)
    def lose(self, at, observer):
        """Cut a node off from the store until another node declares it dead."""
        self.nodes[at].reachable = False
        self.cluster.now += 61.0
        self.declare_dead(at, observer, None)

    @rule(at=nodes, observer=nodes)
    def remove(self, at, observer):
        """Let an operator remove a node from the cluster: switch it off, declare it dead, forget it. The node may
        return."""
        if self.nodes[at].up:
            self.change_power(at)
        self.lose(at, observer)
        self.forget(at, observer, None)

    @precondition(lambda self: any(not node.up for node in self.nodes))
    @rule(at=nodes, observer=nodes, fault=fault)
    def forget(self, at, observer, fault):
        """Let an operator forget a node that is switched off. Rule A1 requires that the node is off."""
        if not self.nodes[at].up:
            self.of_operator(at, observer, fault, DEAD, lambda store, record: store.forget(record))

    def of_operator(self, at, observer, fault, state, change):
        def work(store):
            for record in store.nodes():
                if record.name == NODES[at] and record.state != ALIVE and (state == LOST or record.state == DEAD):
                    change(store, record)

        node = self.nodes[observer]
        if is_free(node) and observer != at:
            if fault and fault[0] == PAUSE:
                fault = None  # a paused forget() could run after the node has returned, against rule A1
            node.run(quietly(work), fault)


def pod_of(args):
    return args.partition(";IP=")[0]


def space_of(network):
    return IPAM[network].get("network_name", "default")


def quietly(work):
    """Return a function that calls `work` and ignores the errors that a store may raise."""
    def run(store):
        try:
            work(store)
        except (Changed, Fenced, Away, CniError):
            return
    return run


def is_free(node):
    """Return whether a node can begin a process. In the simulation, a node runs one process at a time."""
    return node.up and not node.process
