"""`fastcni ipam` on the local store: text of 80 columns, and JSON."""

import json
import time

import pytest

from fastcni.kit.ipam.address_files import owner_of
from fastcni.kit.ipam.cluster import node_state
from fastcni.kit.ipam.cluster.contract import ACTIVE, ALIVE, ASKED, DEAD, HELD, KEPT, QUARANTINE, REFUSED, IPClaim, Use
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.node import confs
from fastcni.node.cluster import site
from fastcni.spec.address import read_ip

HERE, OTHER = "node-a", "node-with-a-rather-long-name-1.example.org"
LONG_ID = "8f" * 32


class Cluster:
    """A local store, used by this node and another node."""

    def __init__(self, directories):
        self.directories, self.path = directories, directories.conf.parent / "store"
        self.settings = {"type": "local", "path": str(self.path)}
        self.store = open_store(self.settings)

    def configure(self, name="net1", file="10-net1.conflist", **ipam):
        self.directories.configure({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "bridge", "ipam": {
            "type": "cluster", "range": "10.9.0.0/16", "node_name": HERE, "store": self.settings,
            "dataDir": str(self.directories.conf.parent / "cluster"), **ipam}}]}, file)

    def use(self, node, cidr, *holders, space="default", age=60):
        """Claim a block for a node. holders: (address, pod, container) that the node reports to the store."""
        me = next((it for it in self.store.nodes() if it.name == node), None) or self.store.join(node, "boot")
        self.store.claim(me, [(space, cidr)])
        since = time.time() - age
        self.store.write_uses(me, [Use(space, cidr, node, me.epoch, "boot", [
            {"address": ip, "container": container, "ifname": "eth0", "pod": pod, "network": "net1", "since": since}
            for ip, pod, container in holders], time.time())])

    def ip_claim(self, node, address, state=HELD, block="10.9.1.0/26", **fields):
        me = next(it for it in self.store.nodes() if it.name == node)
        fields = {"space": "default", "container": "c9", "ifname": "eth0", "pod": "ns/db-0", "network": "net1",
                  "since": time.time() - 7200, "sticky": False, **fields}
        return self.store.claim_address(me, IPClaim(address=address, block=block, state=state, **fields))

    def silence(self, node, seconds=3600):
        """Set a node's last heartbeat back by `seconds`."""
        file = self.path / "store.json"
        data = json.loads(file.read_text())
        data["nodes"][node]["seen"] -= seconds
        file.write_text(json.dumps(data))

    def node(self, name):
        return next((it for it in self.store.nodes() if it.name == name), None)


@pytest.fixture
def cluster(directories):
    made = Cluster(directories)
    made.configure()
    return made


@pytest.fixture
def two(cluster):
    """Return a Cluster with two nodes that have one block each, and with a shared block in which one address is
    allocated."""
    cluster.use(HERE, "10.9.0.0/26", ("10.9.0.2", "ns/web-0", "c1"), ("10.9.0.10", "", LONG_ID))
    cluster.use(OTHER, "10.9.0.64/26", ("10.9.0.65", "a-namespace-of-people/a-pod-with-a-long-name-7d9f8b-x2v", "c3"))
    cluster.store.share("default", "10.9.1.0/26")
    cluster.ip_claim(OTHER, "10.9.1.5")
    return cluster


def lines(answer):
    assert max(len(line) for line in answer.out.splitlines() if "/pytest-" not in line) <= 80
    return answer.out.splitlines()


def words(answer):
    """Return the answer's text on one line."""
    return " ".join((answer.out + answer.err).split())


def test_list_shows_spaces_and_blocks_in_80_columns(two, fastcni):
    answer = fastcni("ipam", "list")
    shown = lines(answer)
    assert shown[0] == "space default: 3 blocks, 4 of 192 addresses held"
    assert shown[1].split() == ["BLOCK", "STATE", "NODE", "HELD", "AGE"]
    assert shown[2].split()[:4] == ["10.9.0.0/26", "active", "node-a", "2/64"]
    assert any(line.split()[:4] == ["10.9.1.0/26", "shared", "-", "1/64"] for line in shown)
    assert "3 blocks in local" in words(answer)


def test_list_shows_holders(two, fastcni):
    answer = fastcni("ipam", "list", "--addresses", "--node", OTHER)
    lines(answer)
    assert "10.9.0.65" in answer.out and "10.9.1.5" in answer.out and "10.9.0.2" not in answer.out
    assert "ns/db-0" in answer.out


def test_list_as_json_has_blocks_and_holders_of_one_space(two, fastcni):
    two.use(HERE, "10.9.0.0/26", ("10.9.0.7", "", "c7"), space="blue")
    document = fastcni("ipam", "list", "--json").document
    assert [it["space"] for it in document["spaces"]] == ["blue", "default"]
    (space,) = fastcni("ipam", "list", "--space", "blue", "--json").document["spaces"]
    (block,) = space["blocks"]
    assert (block["cidr"], block["state"], block["node"], block["held"], block["size"]) == (
        "10.9.0.0/26", ACTIVE, HERE, 1, 64)
    assert block["holders"][0]["containerID"] == "c7" and block["holders"][0]["since"].endswith("Z")


def test_list_of_an_empty_store(cluster, fastcni):
    assert "no block is claimed" in words(fastcni("ipam", "list"))


def test_a_report_of_an_earlier_boot_holds_nothing(two, fastcni):
    two.store.join(HERE, "next boot")
    assert [it["held"] for it in fastcni("ipam", "list", "--json").document["spaces"][0]["blocks"]] == [None, 1, 1]
    assert fastcni("ipam", "nodes").out.splitlines()[1].split()[-2:] == ["?", "?"]
    assert "which has not reported who has its addresses" in words(fastcni("ipam", "show", "10.9.0.2"))


def test_this_nodes_own_files_precede_its_report(two, fastcni):
    Files(two).join()
    assert [it["held"] for it in fastcni("ipam", "list", "--json").document["spaces"][0]["blocks"]] == [0, 1, 1]
    Files(two).give("10.9.0.9", "c9")
    (found,) = fastcni("ipam", "show", "10.9.0.9", "--json").document["found"]
    assert (found["holder"]["pod"], found["holder"]["containerID"], found["holder"]["reported"]) == (
        "ns/web-0", "c9", None)


def test_show_tells_owner_node_since_when_block_epoch_and_state(two, fastcni):
    answer = fastcni("ipam", "show", "10.9.0.2")
    assert answer.status == 0 and lines(answer)[0].startswith("10.9.0.2 is held by pod ns/web-0 on node node-a")
    for text in ("1m ago", "container   c1", "interface   eth0", "network     net1",
                 "node        node-a (alive, epoch 1",
                 "block       10.9.0.0/26 (active, epoch 1, claimed 0s ago)", "reported"):
        assert text in answer.out
    (found,) = fastcni("ipam", "show", "10.9.1.5", "--json").document["found"]
    assert (found["state"], found["holder"]["pod"], found["block"]["state"]) == (HELD, "ns/db-0", "shared")


@pytest.mark.parametrize("ip, text", [
    ("10.9.0.3", "10.9.0.3 is free, as far as node node-a has reported; only that node gives it"),
    ("10.9.1.9", "10.9.1.9 is free: in a shared block each address is claimed by itself")])
def test_show_of_a_free_address(two, fastcni, ip, text):
    assert text in words(fastcni("ipam", "show", ip))


@pytest.mark.parametrize("state, text", [
    (KEPT, f"is kept for the next pod ns/db-0, which had it last, on node {OTHER}"),
    (REFUSED, f"was refused to pod ns/db-0 on node {OTHER}: pod ns/web-0 has it")])
def test_show_of_an_ip_claim_in_another_state(two, fastcni, state, text):
    ip_claim = two.store.ip_claim("default", "10.9.1.5")
    two.store.change_ip_claim(ip_claim, state=state, reason="pod ns/web-0 has it")
    assert text in words(fastcni("ipam", "show", "10.9.1.5"))


def test_show_of_what_no_block_has(two, fastcni):
    answer = fastcni("ipam", "show", "10.77.0.1")
    assert answer.status == 1 and "no block of" in answer.err and "`fastcni ipam list`" in answer.err
    answer = fastcni("ipam", "show", "web", "--json")
    assert answer.status == 1 and answer.document["msg"] == "web is not an IP address"


def test_show_of_an_address_of_host_local(two, fastcni):
    two.directories.hold("10.88.0.9", "c5\r\neth0")
    answer = fastcni("ipam", "show", "10.88.0.9", "--data-dir", two.directories.data)
    assert answer.status == 0 and "container c5" in words(answer)


def test_nodes_in_80_columns(two, fastcni):
    two.silence(OTHER)
    answer = fastcni("ipam", "nodes")
    shown = lines(answer)
    assert shown[0].split() == ["NODE", "STATE", "EPOCH", "SEEN", "BLOCKS", "HELD", "FREE"]
    assert shown[1].split() == ["node-a", "alive", "1", "0s", "ago", "1", "2", "62"]
    assert "2 nodes: 1 alive, 1 lost" in answer.out
    documents = fastcni("ipam", "nodes", "--json").document["nodes"]
    assert [(it["name"], it["state"], it["blocks"], it["held"], it["free"]) for it in documents] == [
        (HERE, ALIVE, 1, 2, 62), (OTHER, "lost", 1, 2, 63)]


def test_nodes_says_what_to_do_about_a_dead_node(two, fastcni):
    two.silence(OTHER)
    two.store.declare_dead(two.node(OTHER))
    answer = fastcni("ipam", "nodes")
    assert f"fastcni ipam forget-node {OTHER}" in answer.out
    assert [it["quarantine"] for it in fastcni("ipam", "nodes", "--json").document["nodes"]] == [0, 63]
    (found,) = fastcni("ipam", "show", "10.9.0.70", "--json").document["found"]
    assert found["state"] == QUARANTINE


# forget-node --------------------------------------------------------------------------------------

def test_a_node_that_lives_is_not_forgotten(two, fastcni):
    answer = fastcni("ipam", "forget-node", OTHER, "--yes")
    assert answer.status == 1 and f"node {OTHER} is alive: its last heartbeat was " in answer.err
    assert "stop its pods and its fastcni server" in answer.err
    assert two.node(OTHER).epoch == 1


def test_forget_node_needs_a_confirmation(two, fastcni):
    two.silence(OTHER)
    answer = fastcni("ipam", "forget-node", OTHER)
    assert answer.status == 1 and "--yes" in answer.err and two.node(OTHER)


def test_forget_node_says_what_it_frees_and_frees_it(two, fastcni):
    two.silence(OTHER)
    answer = fastcni("ipam", "forget-node", OTHER, "--dry-run")
    lines(answer)
    assert answer.status == 0 and "would free 1 block and 2 addresses: 10.9.0.64/26" in words(answer)
    assert f"no pod of {OTHER} may run" in words(answer) and two.node(OTHER)
    document = fastcni("ipam", "forget-node", OTHER, "--yes", "--json").document
    assert [it["address"] for it in document["freed"]] == ["10.9.0.65", "10.9.1.5"]
    assert two.node(OTHER) is None
    assert {it.cidr for it in two.store.blocks()} == {"10.9.0.0/26", "10.9.1.0/26"}
    assert two.store.ip_claims() == []


def test_forget_node_keeps_sticky_addresses(two, fastcni):
    two.store.change_ip_claim(two.store.ip_claim("default", "10.9.1.5"), state=KEPT, sticky=True)
    two.silence(OTHER)
    two.store.declare_dead(two.node(OTHER))
    answer = fastcni("ipam", "forget-node", OTHER, "--yes")
    assert "keeps 1 sticky address" in answer.out
    assert [it.state for it in two.store.ip_claims()] == [KEPT]


def test_forget_node_of_an_unknown_node_names_the_nodes(two, fastcni):
    answer = fastcni("ipam", "forget-node", "nobody", "--yes")
    assert answer.status == 1 and "the store has no node nobody" in answer.err and HERE in answer.err


# release ------------------------------------------------------------------------------------------

def test_an_address_of_another_nodes_block_is_released_there(two, fastcni):
    answer = fastcni("ipam", "release", "10.9.0.65", "--force")
    assert answer.status == 1 and f"run this command on node {OTHER}" in words(answer)
    assert "a-pod-with-a-long-name" in words(answer)


def test_an_ip_claim_of_another_node_needs_force(two, fastcni):
    answer = fastcni("ipam", "release", "10.9.1.5")
    assert answer.status == 1 and "belongs to pod ns/db-0" in answer.err and f"on node {OTHER}" in words(answer)
    assert fastcni("ipam", "release", "10.9.1.5", "--force").out.strip() == "released 10.9.1.5 of pod ns/db-0"
    assert two.store.ip_claims() == []


def test_a_kept_address_is_released(two, fastcni):
    two.store.change_ip_claim(two.store.ip_claim("default", "10.9.1.5"), state=KEPT, sticky=True)
    assert fastcni("ipam", "release", "10.9.1.5", "--json").document["released"]["state"] == KEPT
    assert two.store.ip_claims() == []


def test_an_ip_claim_of_this_node_is_released_if_its_pod_is_gone(two, fastcni):
    two.ip_claim(HERE, "10.9.1.6", container="gone")
    assert fastcni("ipam", "release", "10.9.1.6").status == 0
    two.ip_claim(HERE, "10.9.1.7", container="runs")
    two.directories.cached("runs", netns="/proc/self/ns/net")
    answer = fastcni("ipam", "release", "10.9.1.7")
    assert answer.status == 1 and "which runs" in answer.err and "--force" in answer.err
    assert [it.address for it in two.store.ip_claims()] == ["10.9.1.5", "10.9.1.7"]


def test_an_address_that_a_running_add_asks_for_is_not_released(two, fastcni):
    two.ip_claim(HERE, "10.9.0.66", ASKED, "10.9.0.64/26", since=time.time())
    answer = fastcni("ipam", "release", "10.9.0.66")
    assert answer.status == 1 and "whose ADD waits for it" in answer.err
    two.store.change_ip_claim(two.store.ip_claim("default", "10.9.0.66"), since=time.time() - 60)
    assert fastcni("ipam", "release", "10.9.0.66").status == 0


def test_a_free_address_is_not_released(two, fastcni):
    answer = fastcni("ipam", "release", "10.9.0.3")
    assert answer.status == 1 and "no pod has 10.9.0.3: it is free" in answer.err


def test_an_address_of_two_spaces_needs_the_space(two, fastcni):
    two.use(HERE, "10.9.1.0/26", ("10.9.1.5", "", "c7"), space="blue")
    answer = fastcni("ipam", "release", "10.9.1.5", "--force")
    assert answer.status == 1 and "several spaces have 10.9.1.5: blue, default" in answer.err
    assert fastcni("ipam", "release", "10.9.1.5", "--space", "default", "--force").status == 0


class Files:
    """This node's files of the address space."""

    def __init__(self, cluster):
        (net,) = site.networks_of(confs.networks(confs.read_directory(str(cluster.directories.conf))))
        self.keys = net.keys

    def give(self, ip, container, pod="ns/web-0"):
        with node_state.Space(self.keys, print, create=True) as space:
            space.files.more = node_state.more_lines("net1", pod)
            assert space.take(read_ip(ip), owner_of(container, "eth0"))

    def join(self):
        """Record the node's block in the node's files, as the plugin does after a claim."""
        with node_state.Space(self.keys, print, create=True) as space:
            state = space.state.copy()
            state.node, state.grid = HERE, {"4": 26}
            state.add_block("10.9.0.0/26", 1, 1.0)
            space.save(state)

    def held(self):
        with node_state.Space(self.keys, print, create=True) as space:
            return sorted(name for name in space.files.names() if name[0].isdigit())


@pytest.fixture
def files(two):
    return Files(two)


def test_an_address_of_an_own_block_is_released_if_its_pod_is_gone(two, files, fastcni):
    files.give("10.9.0.2", "c1")
    files.give("10.9.0.3", "c2")
    assert fastcni("ipam", "release", "10.9.0.2").out.strip() == "released 10.9.0.2 of pod ns/web-0"
    assert files.held() == ["10.9.0.3"]


def test_an_address_of_an_own_block_is_not_released_if_its_pod_runs(two, files, fastcni):
    """The store has no report about this pod yet. The node's own address file names the pod."""
    files.give("10.9.0.20", "runs")
    two.directories.cached("runs", netns="/proc/self/ns/net")
    answer = fastcni("ipam", "release", "10.9.0.20")
    assert answer.status == 1 and "container runs" in words(answer) and "which runs" in words(answer)
    assert fastcni("ipam", "release", "10.9.0.20", "--force").status == 0
    assert files.held() == []


def test_an_address_that_another_pod_has_meanwhile_is_not_released(two, files, fastcni):
    files.give("10.9.0.2", "another")
    answer = fastcni("ipam", "release", "10.9.0.2")
    assert answer.status == 1 and "has changed since" in answer.err
    assert files.held() == ["10.9.0.2"]


def test_show_has_the_attachment_of_this_node(two, files, fastcni):
    files.give("10.9.0.20", "c20")
    assert "here        orphaned: " in fastcni("ipam", "show", "10.9.0.20").out
    document = fastcni("ipam", "show", "10.9.0.20", "--json").document
    assert document["here"][0]["owners"][0]["containerID"] == "c20"
    assert document["here"][0]["owners"][0]["network"] == "net1"


# Other commands -----------------------------------------------------------------------------------

def test_explain_asks_the_store(two, fastcni):
    assert "10.9.0.65 is held by pod a-namespace" in words(fastcni("explain", "10.9.0.65"))
    assert "10.9.77.1 is not given: no node has claimed its block" in words(fastcni("explain", "10.9.77.1"))


def test_explain_says_that_the_store_does_not_answer(cluster, fastcni, tmp_path):
    (tmp_path / "file").write_text("")
    cluster.configure(store={"type": "local", "path": str(tmp_path / "file/store")})
    assert "its store does not answer" in words(fastcni("explain", "10.9.0.1"))


def findings(fastcni):
    document = fastcni("doctor", "--json", "--socket", "").document
    return [(it["severity"], it["what"], it["do"]) for it in document["findings"] if it["check"] == "cluster-addresses"]


def test_doctor_is_content_with_a_healthy_cluster(two, fastcni):
    assert findings(fastcni) == []


def test_doctor_finds_a_store_that_is_away(cluster, fastcni, tmp_path):
    (tmp_path / "file").write_text("")
    cluster.configure(store={"type": "local", "path": str(tmp_path / "file/store")})
    ((severity, what, _),) = findings(fastcni)
    assert severity == "warning" and "the store of network net1" in what and "does not answer" in what


def test_doctor_finds_dead_nodes(two, fastcni):
    for name in (HERE, OTHER):
        two.silence(name)
        two.store.declare_dead(two.node(name))
    first, second = findings(fastcni)
    assert first[:2] == ("error", f"this node, {HERE}, was declared dead in the store")
    assert second[1] == f"node {OTHER} is dead; 1 block of it is in quarantine"
    assert f"fastcni ipam forget-node {OTHER}" in second[2]


@pytest.mark.parametrize("held, found", [(12, []), (13, ["warning"]), (14, ["error"])])
def test_doctor_finds_a_range_that_is_nearly_full(cluster, fastcni, held, found):
    cluster.configure(range="10.9.0.0/28")
    cluster.use(HERE, "10.9.0.0/26", *((f"10.9.0.{number}", "", f"c{number}") for number in range(1, held + 1)))
    assert [severity for severity, _, _ in findings(fastcni)] == found


# -- the store --------------------------------------------------------------------------------------------------------

def test_without_a_cluster_network_the_error_says_what_is_missing(directories, fastcni):
    directories.configure()
    answer = fastcni("ipam", "nodes")
    assert answer.status == 1 and "no IPAM type cluster or whereabouts" in answer.err and "--conf-dir" in answer.err
    assert "networks of " in answer.err and " have no IPAM type cluster or whereabouts;" in answer.err
    answer = fastcni("ipam", "nodes", "--network", "other")
    assert "network other has no IPAM type cluster or whereabouts;" in answer.err


def test_two_stores_need_a_choice(two, fastcni, tmp_path):
    two.configure("net2", "20-net2.conflist", store={"type": "local", "path": str(tmp_path / "second")})
    answer = fastcni("ipam", "nodes")
    assert answer.status == 1 and "have 2 stores: net1: local" in answer.err and "--network net1" in answer.err
    assert fastcni("ipam", "nodes", "--network", "net2", "--json").document["nodes"] == []


def test_a_store_that_does_not_answer_is_code_11_with_the_reason(cluster, fastcni, tmp_path):
    (tmp_path / "file").write_text("")
    cluster.configure(store={"type": "local", "path": str(tmp_path / "file/store")})
    answer = fastcni("ipam", "nodes", "--json")
    assert answer.status == 1 and answer.document["code"] == 11
    assert "does not answer" in answer.document["msg"] and "Not a directory" in answer.document["msg"]
    assert "start the store" in answer.document["details"]


def test_dead_is_a_state_of_the_table(two, fastcni):
    two.silence(OTHER)
    two.store.declare_dead(two.node(OTHER))
    assert two.node(OTHER).state == DEAD
    assert "dead" in fastcni("ipam", "nodes").out
