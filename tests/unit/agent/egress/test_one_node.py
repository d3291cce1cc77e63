"""Egress addresses of one node without etcd: rules, address and packets in the real kernel. Needs root."""

import contextlib
import json
import socket
import threading
from contextlib import closing
from ipaddress import ip_address, ip_network
from time import monotonic, sleep

import pytest
from lab.loggers import logger_to
from unit.agent.egress.test_objects import document as egress_address
from unit.agent.nodes import conf
from unit.agent.policy.test_service import Running

from fastcni._netlink import Batch
from fastcni.agent.contract import ConfigurationError, Node, Route
from fastcni.agent.egress import flows
from fastcni.agent.egress import table as table_module
from fastcni.agent.egress.claims import open_claims
from fastcni.agent.egress.lending import of_all_hosts
from fastcni.agent.egress.objects import EgressAddress
from fastcni.agent.egress.part import EgressPart
from fastcni.agent.egress.routes import NextHop, Routes
from fastcni.agent.egress.service import Egress
from fastcni.agent.egress.table import Table
from fastcni.agent.policy.objects import EVERYTHING, Group
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.agent.run import remove_egress
from fastcni.kernel import rtnl, wire
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, ip, run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")
ADDRESS, POD, OUTSIDE, PORT = "192.0.2.50", "10.244.1.5", "192.0.2.200", 8000
ME = Node("one", {4: ip_network("10.244.1.0/24")}, {4: ip_address("192.0.2.1")}, "host-gw")
OTHER = Node("two", {4: ip_network("10.244.2.0/24")}, {4: ip_address("192.0.2.2")}, "host-gw")
WAY = Route("eth0", OTHER.subnets[4], OTHER.public[4])


class Place:
    """A node in the test's namespace, a pod, and a host outside. The host answers each caller with the caller's
    address."""

    def __init__(self, pod, outside, directory):
        self.pod, self.outside, self.opened = pod, outside, contextlib.ExitStack()
        ip("link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", outside)
        ip("link", "add", "pod", "type", "veth", "peer", "eth0", "netns", pod)
        for name, netns in (("eth0", None), ("pod", None), ("eth0", outside), ("eth0", pod)):
            ip("link", "set", name, "up", netns=netns)
        ip("addr", "add", "192.0.2.1/24", "dev", "eth0")
        ip("addr", "add", f"{OUTSIDE}/24", "dev", "eth0", netns=outside)
        ip("addr", "add", f"{POD}/32", "dev", "eth0", netns=pod)
        ip("route", "add", f"{POD}/32", "dev", "pod")
        ip("route", "add", "default", "dev", "eth0", netns=pod)
        with open("/proc/sys/net/ipv4/conf/pod/proxy_arp", "w", encoding="ascii") as file:
            file.write("1")
        with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="ascii") as file:
            file.write("1")
        run("nft", "-f", "-", stdin="table ip usual {\nchain nat {\ntype nat hook postrouting priority srcnat\n"
                                    "ip saddr 10.244.0.0/16 oifname eth0 masquerade\n}\n}")
        with Inside(outside):
            self.server = socket.create_server((OUTSIDE, PORT))
            self.receiver = self.opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.receiver.bind((OUTSIDE, PORT))
        self.receiver.setblocking(False)
        self.nodes = directory / "nodes.json"
        self.write("one")
        self.log, self.stopped = [], threading.Event()
        self.it = Egress(logger_to(self._note))
        self.claims = open_claims("static", {"path": str(self.nodes), "name": "one"}, "one")
        self.it.see(conf(), ME, [ME, OTHER], [WAY])
        self.thread = threading.Thread(target=self.it.run, args=(self.claims, self.stopped))

    def write(self, *names):
        self.nodes.write_text(json.dumps({"network": {"Network": "10.244.0.0/16"}, "nodes": [
            {"name": name, "subnets": [f"10.244.{number}.0/24"], "public": [f"192.0.2.{number}"]}
            for number, name in enumerate(names, 1)]}))

    def _note(self, event):
        self.log.append(event["event"])

    def put(self, *addresses):
        document = EgressAddress("billing", Group(EVERYTHING, EVERYTHING), tuple(map(read_ip, addresses)))
        self.it.put({"billing": document}, {read_ip(POD): document})

    def source(self, to=(OUTSIDE, PORT), server=None):
        """Return the pod's source address as the host outside or another server sees it; "" without an answer."""
        with Inside(self.pod), socket.socket() as sock:
            sock.settimeout(0.3)
            try:
                sock.connect(to)
            except OSError:
                return ""
        one, (host, _) = (server or self.server).accept()
        one.close()
        return host

    def datagrams(self):
        """Return a socket of the pod for asked_from()."""
        with Inside(self.pod):
            found = self.opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        found.settimeout(0.3)
        found.connect((OUTSIDE, PORT))
        return found

    def asked_from(self, sock, port=False):
        """Return the source address of a pod's datagram as the host outside sees it, or (address, port) if `port`; ""
        if no datagram arrives."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.receiver.recv(64)
        sock.send(b"x")
        self.receiver.setblocking(True)
        self.receiver.settimeout(0.3)
        try:
            found = self.receiver.recvfrom(64)[1]
        except TimeoutError:
            return ""
        finally:
            self.receiver.setblocking(False)
        return found if port else found[0]

    def has_address(self):
        return ADDRESS in ip("addr", "show", "dev", "eth0")

    def end(self):
        self.stopped.set()
        self.it.changed()
        if self.thread.ident:
            self.thread.join()

    def close(self):
        self.end()
        self.it.close()
        self.server.close()
        self.opened.close()


@pytest.fixture
def place(host_netns, pod_netns, tmp_path):
    found = Place(pod_netns(), pod_netns(), tmp_path)
    try:
        assert eventually(lambda: found.source() == "192.0.2.1")        # masqueraded, as for any pod
        yield found
    finally:
        found.close()


def test_a_pod_is_closed_until_the_node_holds_its_address_then_leaves_from_it_and_is_closed_at_the_end(place):
    place.put(ADDRESS)
    assert place.source() == ""
    place.thread.start()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    assert place.has_address()
    place.end()
    assert not place.has_address()
    assert place.source() == ""


def test_the_kernel_takes_address_and_permission_from_a_node_that_no_longer_renews(place):
    """The agent hangs. The kernel deletes the address and the set elements when their time is over."""
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    place.it.table.hold = lambda until: None
    place.it.table.sock.close()
    hang = threading.Event()
    place.claims.renew = lambda held: hang.wait(60) and {}
    try:
        assert eventually(lambda: not place.has_address())
        assert eventually(lambda: place.source() == "")
        assert "elements" not in run("nft", "list", "set", "inet", "fastcni-egress", "held4")
    finally:
        hang.set()


def test_a_way_to_another_nodes_address_is_a_rule_for_the_pod_and_a_table_for_the_node(place):
    place.claims.holders = lambda: {read_ip(ADDRESS): "two"}
    place.claims.free_at = lambda address: float("inf")
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: f"from {POD} fwmark 0x1000/0x1000" in ip("rule")), place.log
    (rule,) = [line for line in ip("rule").splitlines() if POD in line]
    assert ip("route", "show", "table", rule.split("lookup")[1].split()[0]).startswith("default via 192.0.2.2 dev eth0")
    assert eventually(lambda: f"{POD} . 192.0.2.2" in run("nft", "list", "set", "inet", "fastcni-egress", "ways4"))
    ip("rule", "del", "priority", "900")
    assert place.source() == ""  # without the rule, the main table routes the packet past the holder's node
    assert eventually(lambda: "fwmark 0x1000/0x1000" in ip("rule"))
    place.it.put({}, {})
    assert eventually(lambda: "fwmark" not in ip("rule"))
    assert eventually(lambda: "fastcni-egress" not in run("nft", "list", "tables"))


def test_no_packet_leaves_with_the_pods_own_address_when_its_document_is_deleted(place, monkeypatch):
    """The pod's connections keep a translation to the pod's own address until the agent deletes them from conntrack.
    Such packets may leave only to the holder. Here the deletion takes half a second."""
    place.claims.holders = lambda: {read_ip(ADDRESS): "two"}
    place.claims.free_at = lambda address: float("inf")
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: f"{POD} . 192.0.2.2" in run("nft", "list", "set", "inet", "fastcni-egress", "ways4"))
    sock = place.datagrams()
    # The datagram goes to the holder, which does not exist. The agent deletes the pod's flows after it has written the
    # set.
    assert eventually(lambda: sock.send(b"x") and f"src={POD}" in run("conntrack", "-L", "-p", "udp"))
    end = flows.end
    monkeypatch.setattr(flows, "end", lambda *of: sleep(0.5) or end(*of))
    place.it.put({}, {})
    seen = []
    assert eventually(lambda: seen.append(place.asked_from(sock)) or seen[-1] == "192.0.2.1"), seen
    assert set(seen) <= {"", "192.0.2.1"}
    assert eventually(lambda: "fastcni-egress" not in run("nft", "list", "tables"))


def test_new_subjects_and_those_that_are_subjects_again_stay_closed_when_connections_have_ended(place, monkeypatch):
    place.thread.start()
    place.put(ADDRESS)
    assert eventually(lambda: place.source() == ADDRESS), place.log
    ending, goes_on = threading.Event(), threading.Event()
    end = flows.end
    monkeypatch.setattr(flows, "end", lambda *of: ending.set() or (goes_on.wait(10) and end(*of)))
    place.it.put({}, {})
    assert ending.wait(10)
    place.it.protect([read_ip("10.244.1.6")])           # an ADD, before put() adds the pod
    goes_on.set()
    assert eventually(lambda: POD not in run("nft", "list", "set", "inet", "fastcni-egress", "subjects4"))
    assert "10.244.1.6" in run("nft", "list", "set", "inet", "fastcni-egress", "subjects4")
    ending.clear()
    goes_on.clear()
    place.put(ADDRESS)
    place.it.put({}, {})
    assert ending.wait(10)
    place.put(ADDRESS)
    goes_on.set()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    assert POD in run("nft", "list", "set", "inet", "fastcni-egress", "subjects4")


def test_with_several_nodes_in_the_file_no_node_holds_an_address(place):
    place.write("one", "two")
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: "egress_claims_away" in place.log)
    assert not place.has_address()
    assert place.source() == ""


def test_all_that_egress_addresses_have_made_can_be_removed(place):
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    place.end()
    with closing(Routes()) as routes:
        routes.put({read_ip(POD): NextHop("eth0", read_ip("192.0.2.2"), False)})
    assert "fwmark" in ip("rule")
    place.it.table.close()
    remove_egress()
    assert "fwmark" not in ip("rule")
    assert "fastcni-egress" not in run("nft", "list", "tables")
    assert eventually(lambda: place.source() == "192.0.2.1")


def test_the_next_agent_keeps_the_ways_of_the_former_one_until_it_knows_its_own(host_netns):
    """The second agent adds an element that exists already. The kernel once rejected its first write (EEXIST)."""
    pods, ways = ({read_ip(POD) + more: None} for more in (b"", read_ip("192.0.2.2")))
    given = {read_ip(POD): read_ip(ADDRESS)}
    for former in (False, True):
        with closing(Table()) as table:
            table.adopt()
            table.put("subjects", pods)
            if former:
                assert ADDRESS in run("nft", "list", "map", "inet", "fastcni-egress", "to4")
            table.put("to", given)
            table.put("ways", ways)
    assert f"{POD} . 192.0.2.2" in run("nft", "list", "set", "inet", "fastcni-egress", "ways4")
    with closing(Table()) as table:
        table.put("subjects", pods)
        table.put("ways", {})
        assert "elements" not in run("nft", "list", "set", "inet", "fastcni-egress", "ways4")
        table.remove()


@pytest.mark.needs("nft-owned-tables")
def test_no_other_program_removes_the_table_and_the_next_agent_takes_it_over(place):
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    for words in (("delete", "table", "inet", "fastcni-egress"), ("flush", "ruleset")):
        run("nft", *words, check=False)
        assert "flags owner" in run("nft", "list", "table", "inet", "fastcni-egress")
    with pytest.raises(wire.NetlinkError, match="errno 1"):
        remove_egress()
    with closing(Table()) as table, pytest.raises(ConfigurationError, match="belongs to another process"):
        table.adopt()
    place.end()
    place.it.table.close()
    with closing(Table()) as table:
        table.adopt()
        run("nft", "flush", "ruleset")
        assert "chain leaving" in run("nft", "list", "table", "inet", "fastcni-egress")
        table.remove()
    assert "fastcni-egress" not in run("nft", "list", "tables")


def test_the_table_is_written_again_each_time_that_another_program_deletes_it(host_netns, tmp_path, monkeypatch):
    """Before Linux 6.9 a table has no owner, so any program can delete it."""
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    monkeypatch.setattr(table_module, "OWNED", 0)
    running = Running(tmp_path)
    try:
        running.write(egress_address(addresses=[ADDRESS]))
        assert eventually(lambda: "fastcni-egress" in run("nft", "list", "tables"))
        for times in range(1, 5):
            run("nft", "delete", "table", "inet", "fastcni-egress")
            assert eventually(lambda times=times: running.events().count("egress_restored") == times)
            assert "chain leaving" in run("nft", "list", "table", "inet", "fastcni-egress")
    finally:
        running.stop()


def test_what_the_kernel_refuses_is_tried_again_after_a_pause(host_netns, tmp_path, monkeypatch):
    """Once, the policies' thread repeated the rejected write without a pause."""
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")

    def refuse(*_):
        tries.append(monotonic())
        raise OSError("no memory")

    tries = []
    monkeypatch.setattr(Egress, "put", refuse)
    running = Running(tmp_path)
    try:
        running.write(egress_address(addresses=[ADDRESS]))
        (part,) = (part for part in running.it.parts if isinstance(part, EgressPart))
        assert eventually(lambda: len(tries) > 1 and part.due > tries[-1])
    finally:
        running.stop()


KUBE_PROXY = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-OUTSIDE - [0:0]
:KUBE-SVC-NODE - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-OUTSIDE
-A KUBE-SERVICES -d 10.96.0.2/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-NODE
-A KUBE-SVC-OUTSIDE {unless} -j KUBE-MARK-MASQ
-A KUBE-SVC-OUTSIDE -p tcp -m tcp -j DNAT --to-destination {outside}
-A KUBE-SVC-NODE {unless} -j KUBE-MARK-MASQ
-A KUBE-SVC-NODE -p tcp -m tcp -j DNAT --to-destination {node}
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
"""


@pytest.mark.parametrize("unless", ["! -s 10.244.0.0/16", ""], ids=["--cluster-cidr", "--masquerade-all"])
def test_with_the_rules_of_kube_proxy_services_inside_see_the_pod_and_those_outside_the_egress_address(place, unless):
    # without a route to services, proxy_arp does not answer the pod's ARP request
    ip("route", "add", "default", "via", OUTSIDE)
    with socket.create_server(("192.0.2.1", 0)) as node:
        run("iptables-restore", "--noflush", stdin=KUBE_PROXY.format(
            unless=unless, outside=f"{OUTSIDE}:{PORT}", node=f"192.0.2.1:{node.getsockname()[1]}"))
        assert eventually(lambda: place.source(("10.96.0.1", 80)) == "192.0.2.1")
        place.put(ADDRESS)
        place.thread.start()
        assert eventually(lambda: place.source(("10.96.0.1", 80)) == ADDRESS), place.log
        assert eventually(lambda: place.source() == ADDRESS)
        assert eventually(lambda: place.source(("10.96.0.2", 80), node) == POD)


def test_connections_that_begin_while_there_is_no_table_get_the_egress_address_afterwards(place, monkeypatch):
    """Before Linux 6.9, a connection that began without the table kept the node's address, and its packets were
    dropped. Connections that began with the table keep their port."""
    monkeypatch.setattr(table_module, "OWNED", 0)
    place.it.table.flags = 0
    place.put(ADDRESS)
    place.thread.start()
    assert eventually(lambda: place.source() == ADDRESS), place.log
    flows = []
    for expected in (ADDRESS, "192.0.2.1"):
        flows.append(place.datagrams())
        assert place.asked_from(flows[-1]) == expected
        if expected == ADDRESS:
            before = place.asked_from(flows[0], port=True)
            run("nft", "delete", "table", "inet", "fastcni-egress")
    place.it.restore()
    assert eventually(lambda: place.asked_from(flows[1]) == ADDRESS)
    assert place.asked_from(flows[0], port=True) == before


@pytest.mark.parametrize("address", ["192.0.2.1", "192.0.2.2", "192.0.2.7", "192.0.2.255", "10.244.2.9"])
def test_a_node_takes_no_address_that_it_or_another_node_or_a_pod_has(place, address):
    """Once, the agent took the node's own address, and deleted that address with the document."""
    ip("addr", "add", "192.0.2.7/24", "dev", "eth0")
    place.thread.start()
    place.put(address)
    place.put(address, ADDRESS)
    assert eventually(lambda: place.it.held == 1)
    place.put()
    assert eventually(lambda: place.it.held == 0)
    assert addresses_of("eth0") == {"192.0.2.1/24", "192.0.2.7/24"}


def test_an_address_that_the_administrator_adds_is_not_taken_away(place):
    place.thread.start()
    place.put(ADDRESS)
    assert eventually(lambda: place.it.held == 1)
    ip("addr", "add", f"{ADDRESS}/24", "dev", "eth0")
    assert eventually(lambda: addresses_of("eth0") == {"192.0.2.1/24", f"{ADDRESS}/24"})
    assert eventually(lambda: place.it.held == 0)


@pytest.mark.parametrize("address, network, possible", [
    ("192.0.2.0", "192.0.2.0/24", False), ("192.0.2.255", "192.0.2.0/24", False), ("192.0.2.1", "192.0.2.0/24", True),
    ("192.0.2.0", "192.0.2.0/31", True), ("2001:db8::", "2001:db8::/64", False), ("2001:db8::", "2001:db8::/127", True),
    ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::/64", True)])
def test_an_address_that_is_of_no_single_host_of_its_network_is_not_taken(address, network, possible):
    assert of_all_hosts(read_ip(address), ip_network(network)) is not possible


def test_an_address_is_deleted_with_its_own_prefix_only(host_netns):
    """If a request names another prefix than the link's, Linux deletes the link's first IPv4 address."""
    ip("link", "add", "eth0", "type", "veth", "peer", "eth1")
    for prefix in (24, 32):
        ip("addr", "add", f"{ADDRESS}/{prefix}", "dev", "eth0")
    with closing(wire.open_socket()) as sock:
        wire.exchange(sock, rtnl.del_address(Batch(), wire.index_of("eth0"), read_ip(ADDRESS), 32))
    assert addresses_of("eth0") == {f"{ADDRESS}/24"}


def addresses_of(link):
    return {f"{it['local']}/{it['prefixlen']}" for each in json.loads(ip("-j", "-4", "addr", "show", "dev", link))
            for it in each["addr_info"]}
