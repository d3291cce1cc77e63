"""Cluster policies in the kernel: packets from a pod to its own node, ended connections, and rules that remain. Needs
root."""

import socket
import subprocess

import pytest
from unit.agent.policy.pods import ADDRESSES, NODE, ROUTED_NODE, TCP, UDP, batch, mac_of_pod
from unit.agent.policy.test_cluster_policies import policy, rule, tcp
from unit.agent.policy.test_cut import Session
from unit.agent.policy.test_cut import policed as cutting  # noqa: F401 - fixture
from unit.agent.policy.test_kernel import policed, tables  # noqa: F401 - fixture
from unit.agent.policy.test_policy_command_kernel import asked  # noqa: F401 - fixture
from unit.agent.policy.test_service import node, running  # noqa: F401 - fixtures

from fastcni.agent.policy.attached import Attachment
from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.objects import read_policy
from fastcni.agent.policy.ports import Port, elements
from fastcni.agent.policy.rules import GUARD, add_guard
from fastcni.agent.policy.ruleset import Transaction
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

ALL = {"networks": ["0.0.0.0/0", "::/0"]}
EVERY_POD = {"namespaces": {}}
CLOSED = policy(subject=EVERY_POD, egress=[rule("Accept", ALL, key="to", protocols=[tcp(number=81)]),
                                           rule("Deny", ALL, key="to", name="all else")])


@pytest.fixture
def listening(host_netns):
    """Let the node listen on two ports."""
    found = [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) for port in (80, 81)]
    yield found
    for each in found:
        each.close()


def put(policed, *documents):  # noqa: F811
    for document in documents:
        policed.compiler.put_policy(read_cluster_policy(document))
    policed.rules.write(policed.compiler.take())


def own(ports, *names):
    """Return connections from pods to their own node."""
    return {(name, address, TCP, port) for name in names
            for address in (NODE if name in "abc" else ROUTED_NODE) for port in ports}


def test_rules_by_networks_hold_for_the_pods_own_node_and_the_node_still_reaches_its_pods(policed, listening):  # noqa: F811
    reached = policed.node.reached
    assert reached(own((80, 81), "a", "d"), own((80, 81), "a", "d")) == own((80, 81), "a", "d")
    put(policed, CLOSED)
    batch(None, "neigh flush all")          # the rules must let neighbour discovery pass
    batch(policed.node.names["a"], "neigh flush all")
    assert reached(own((80, 81), "a", "d"), own((81,), "a", "d")) == own((81,), "a", "d")
    probes = {(None, address, TCP, 80) for addresses in ADDRESSES.values() for address in addresses}
    assert reached(probes, probes) == probes
    policed.load()                          # load() writes the complete table, as after another program's change
    assert reached(own((80, 81), "a", "d"), own((81,), "a", "d")) == own((81,), "a", "d")


def test_a_link_local_address_is_no_way_past_the_rules_for_the_own_node(policed, listening):  # noqa: F811
    """Each process of a pod can send from the pod's link-local address. No record of a pod contains this address."""
    def connects(name, seconds):
        with Inside(policed.node.names[name]), socket.socket(socket.AF_INET6) as it:
            it.settimeout(seconds)
            link = socket.if_nametoindex("eth0")
            it.bind((f"fe80::{ord(name):x}", 0, 0, link))
            try:
                it.connect((f"fe80::1:{ord(name):x}", 80, 0, link))
                return True
            except TimeoutError:
                return False

    for name, link in (("a", "br0"), ("d", "port-d")):
        batch(None, f"address add fe80::1:{ord(name):x}/64 dev {link} nodad")
        batch(policed.node.names[name], f"address add fe80::{ord(name):x}/64 dev eth0 nodad")
        assert connects(name, 10)
    policed.compiler.put_policy(read_cluster_policy(CLOSED))
    hold_ports(policed, "ad")
    assert not any(connects(name, 0.15) for name in "ad")


def hold_ports(policed, names):  # noqa: F811
    """Add the MACs and links of pods to the table, as after ADDs."""
    for name in names:
        for set_name, key in ports_of(name):
            policed.compiler._hold((set_name, key))
    policed.rules.write(policed.compiler.take())


def ports_of(name):
    mac = bytes.fromhex(mac_of_pod(name).replace(":", ""))
    port = Port(f"port-{name}", name in "abc", mac)
    return elements(port, tuple(map(read_ip, (*ADDRESSES[name], f"fe80::{ord(name):x}"))), shut=False, mute=True)


def test_a_tightened_rule_cuts_connections_to_the_own_node_and_their_answers(cutting, listening):  # noqa: F811
    it = cutting
    sessions = {}
    for name in "ad":
        client = it.node.connect(name, NODE[0] if name == "a" else ROUTED_NODE[1], 80)
        assert eventually(lambda client=client: not client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        session = Session.__new__(Session)
        session.client, session.server = client, listening[0].accept()[0]
        session.server.setblocking(False)
        sessions[name] = session
        assert session.is_alive(5)
    it.engine.compiler.put_policy(read_cluster_policy(policy(
        subject=EVERY_POD, egress=[rule("Deny", {"networks": ["10.0.0.0/24"]}, key="to")])))
    it.engine.commit()
    assert it.cut() == 1
    # if this packet began a new conntrack entry, it would count as a connection of the node
    sessions["a"].server.send(b"x")
    assert (sessions["a"].is_alive(), sessions["d"].is_alive(5)) == (False, True)
    it.engine.compiler.delete_policy("c")
    it.engine.commit()
    it.engine.reopen()
    assert sessions["a"].is_alive(5)


def test_a_peer_that_a_deny_rule_gains_is_cut(cutting):  # noqa: F811
    """A label gives a Deny rule one more peer. In a NetworkPolicy one more peer never ends a connection."""
    near, far = Session(cutting.node, "b", "c"), Session(cutting.node, "a", "c")
    web = {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "bad"}}}}
    cutting.engine.compiler.put_policy(read_cluster_policy(policy(subject=EVERY_POD, ingress=[rule("Deny", web)])))
    cutting.engine.commit()
    assert cutting.cut() == 0
    assert cutting.set(labels={"b": {"app": "bad"}}) == 1
    assert (near.is_alive(), far.is_alive(5)) == (False, True)


def test_without_cluster_policies_the_table_is_as_if_there_had_never_been_one(policed):  # noqa: F811
    policed.put({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})
    before = tables()
    put(policed, CLOSED, policy("d", tier="Baseline", subject=EVERY_POD, ingress=[rule("Pass", EVERY_POD)]))
    changed = tables()
    assert {"to-node", "from-node"} <= changed[1].keys() and changed != before
    policed.load()
    assert tables() == changed
    for name in "cd":
        policed.compiler.delete_policy(name)
    policed.rules.write(policed.compiler.take())
    assert tables() == before


def test_while_the_tables_are_replaced_pods_begin_no_connection_to_their_own_node(policed):  # noqa: F811
    put(policed, CLOSED)
    requests = Transaction()
    add_guard(requests, policed.compiler.state, 0)
    requests.commit(policed.rules.sock)
    listed = subprocess.run(["nft", "list", "table", "inet", GUARD], check=True, text=True, capture_output=True).stdout
    chain = listed.partition("chain input")[2].partition("}")[0]
    assert "hook input" in chain
    assert all(f"ct state new {family} saddr @node{family.removeprefix('ip') or 4} drop" in chain
               for family in ("ip", "ip6"))
    assert ADDRESSES["a"][0] in listed.partition("set node4")[2].partition("}")[0]


def test_no_way_through_the_chains_branches_twice(policed):  # noqa: F811
    """A chain of a tier has no jump and no goto. test_kernel.py checks the other chains."""
    put(policed, CLOSED)
    _, rules = tables()
    tiers = [name for name in rules if name.startswith("admin-")]
    assert tiers and not any("jump" in text or "goto" in text for name in tiers for text in rules[name])


def test_a_pod_is_closed_to_its_own_node_when_its_add_answers(cutting, listening):  # noqa: F811
    """The agent drops the new pod's traffic until it has written the pod's rules. Then the rules apply."""
    it = cutting.engine
    it.compiler.put_policy(read_cluster_policy(CLOSED))
    it.commit()
    new = Attachment(("net", "new", "eth0"), "default/new", {}, tuple(map(read_ip, ("10.0.0.77", "fd00::77"))))
    it.protect(new)
    assert {"node4", "node6"} <= it._dropped.keys()
    it.commit()
    assert read_ip("10.0.0.77") in it.compiler.state.elements["node4"]


def test_the_command_names_policy_and_rule_also_for_the_own_node(running, node, asked, listening):  # noqa: F811
    running.write(CLOSED)
    running.add("a", app="web")
    running.add("b", app="db")
    for to in (ADDRESSES["b"][0], NODE[0]):
        status, document = asked("a", to)
        (found,) = document["connections"]
        assert (status, found["by"], found["egress"]["rule"]) == (1, "kernel", "c egress[1] (all else)"), to
        assert found["egress"]["kernel"]["text"] == "denied by c egress[1] (all else)"
    reached = node.reached(own((80, 81), "a") | {("a", ADDRESSES["b"][0], UDP, 80)}, own((81,), "a"))
    assert reached == own((81,), "a")
    running.write()
    assert eventually(lambda: asked("a", NODE[0])[0] == 0)
    status, document = asked("a", NODE[0])
    assert "own node" in document["connections"][0]["egress"]["text"]


def test_a_restarted_agent_enforces_what_was_kept_while_its_directory_is_away(running, node, listening):  # noqa: F811
    running.write(CLOSED)
    running.add("a", app="web")
    running.stop()
    running.directory.rename(running.directory.with_name("away"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12):
        running.start()
    assert node.reached(own((80, 81), "a"), own((81,), "a")) == own((81,), "a")
    assert running.it.figures()["cluster_policies"] == 1
    running.directory.with_name("away").rename(running.directory)


def test_network_policies_and_tiers_stay_apart_in_what_the_agent_explains(running, node):  # noqa: F811
    running.write(CLOSED, {"kind": "NetworkPolicy", "metadata": {"name": "np"}, "spec": {"podSelector": {}}})
    running.add("a", app="web")
    (pod,) = running.it.answers.to({"do": "explain", "address": ADDRESSES["a"][0]}, 0)["pods"]
    assert pod == {"pod": "default/a", "ingress": ["default/np"], "egress": [],
                   "admin": {"ingress": [], "egress": ["c"]}, "baseline": {"ingress": [], "egress": []}}
    assert read_policy({"metadata": {"name": "np"}, "spec": {"podSelector": {}}}).key == "default/np"
