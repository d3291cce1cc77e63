"""The server keeps facts of a namespace until the kernel announces a change. The tests use the real kernel."""

import threading
from errno import ENOBUFS
from socket import SO_RCVBUF, SOL_SOCKET

import pytest
from lab.node import run, set_sysctl

from fastcni.kernel import filters, nft, sysctl, uapi, wire
from fastcni.kit.links import find


class Asked:
    """A query that counts how often it is asked."""

    def __init__(self, ask):
        self.ask, self.count = ask, 0

    def __call__(self):
        self.count += 1
        return self.ask()

    def again(self):
        """Return whether the query was asked since the last call of again()."""
        count, self.count = self.count, 0
        return count > 0


@pytest.fixture
def bridge(warm):
    """Return a function that recalls the bridge br0. The server already has the answer."""
    run("ip", "link", "add", "br0", "type", "bridge")
    ask = Asked(lambda: find.link(warm.route, "br0"))

    def recall():
        return warm.recall(("link", "br0"), ask)

    recall.ask = ask
    assert recall().name == "br0" and ask.again()
    assert recall() and not ask.again()
    return recall


@pytest.mark.parametrize(("change", "seen"), [
    ("ip link set br0 up", lambda link: link.up),
    ("ip link set br0 mtu 1400", lambda link: link.mtu == 1400),
    ("ip link set br0 address 02:00:00:00:00:09", lambda link: link.mac == "02:00:00:00:00:09"),
])
def test_a_change_is_known_without_asking(bridge, change, seen):
    assert not seen(bridge())
    run(*change.split())
    assert seen(bridge()) and not bridge.ask.again()


def test_a_change_before_the_link_is_watched_is_known(warm):
    """The first answer about a link comes before the server watches the link, so the server asks again."""
    run("ip", "link", "add", "br0", "type", "bridge")

    def ask():
        link = find.link(warm.route, "br0")
        if link.mtu == 1500:
            run("ip", "link", "set", "br0", "mtu", "1400")
        return link

    assert warm.recall(("link", "br0"), ask).mtu == 1400


def test_a_link_that_is_gone_is_asked_for_again_and_again(bridge):
    run("ip", "link", "del", "br0")
    assert bridge() is None and bridge.ask.again()
    assert bridge() is None and bridge.ask.again()


def test_a_link_made_anew_is_another_one(bridge):
    before = bridge().index
    run("ip", "link", "del", "br0")
    run("ip", "link", "add", "br0", "type", "bridge")
    assert bridge().index != before


def test_a_renamed_link_has_no_longer_its_name(bridge):
    run("ip", "link", "set", "br0", "name", "br1")
    assert bridge() is None


def test_a_link_that_took_the_name_of_another_is_it(bridge, warm):
    before = bridge().index
    run("ip", "link", "add", "br1", "type", "bridge")
    run("ip", "link", "set", "br0", "name", "br-old")
    run("ip", "link", "set", "br1", "name", "br0")
    assert bridge().index != before and bridge().name == "br0"


def test_changes_of_other_links_wake_no_thread(bridge, warm):
    received = warm.facts.received
    run("ip", "link", "add", "veth-x", "type", "veth", "peer", "name", "veth-y")
    run("ip", "link", "set", "veth-x", "up")
    run("ip", "addr", "add", "10.1.1.1/24", "dev", "veth-x")
    run("ip", "link", "del", "veth-x")
    assert bridge() and warm.facts.received == received


def test_addresses_are_asked_for_again_when_one_comes_or_goes(bridge, warm):
    index = bridge().index
    ask = Asked(lambda: find.addresses(warm.route, index, [uapi.AF_INET]))

    def recall():
        return [item.packed[-1] for item in warm.recall(("addresses", index, uapi.AF_INET), ask)]

    assert recall() == []
    assert recall() == []
    assert ask.again()
    run("ip", "addr", "add", "10.1.1.7/24", "dev", "br0")
    assert recall() == [7]
    assert ask.again()
    assert recall() == [7]
    assert not ask.again()
    run("ip", "addr", "del", "10.1.1.7/24", "dev", "br0")
    assert recall() == []


def test_forwarding_is_asked_for_again_after_it_is_written(warm):
    name = "net/ipv4/ip_forward"
    ask = Asked(lambda: sysctl.read(name))
    assert warm.recall(("sysctl", name), ask) == warm.recall(("sysctl", name), ask) == "0" and ask.again()
    set_sysctl(name, "1")
    assert warm.recall(("sysctl", name), ask) == "1" and ask.again()


@pytest.mark.parametrize("change", ["flush ruleset", "flush table inet t", "delete table inet t",
                                    "add chain inet t other", "add rule inet t c accept"])
def test_a_table_is_asked_about_again_when_it_changes(warm, change):
    run("nft", "add", "table", "inet", "t")
    run("nft", "add", "chain", "inet", "t", "c")
    run("nft", "add", "rule", "inet", "t", "c", "accept")
    run("nft", "add", "table", "inet", "other")
    run("nft", "add", "set", "inet", "t", "s", "{ type ipv4_addr; }")
    ask = Asked(lambda: True)
    key = ("nftables", "t", 1, "c")
    assert warm.recall(key, ask)
    assert ask.again()
    assert warm.recall(key, ask)
    assert not ask.again()
    run("nft", "add", "element", "inet", "t", "s", "{ 10.0.0.1 }")
    run("nft", "add", "chain", "inet", "other", "c")
    assert warm.recall(key, ask) and not ask.again()        # a query of a chain does not depend on elements of sets
    run("nft", *change.split())
    assert warm.recall(key, ask) and ask.again()


@pytest.mark.parametrize("change, concerned", [
    ("add rule ip t other accept", {"by table"}),
    ("add rule ip t a accept; add rule ip t other accept", {"by table", "rules of a", "rules of a and b"}),
    ("flush chain ip t b", {"by table", "rules of a and b"}),
    ("add chain ip t new", {"by table", "any table"}),
    ("delete chain ip t c", {"by table", "any table", "chain c"}),
    ("chain ip t a { policy drop; }", {"by table", "any table", "rules of a", "rules of a and b"}),
    ("flush table ip t", {"by table", "rules of a", "rules of a and b"}),
    ("delete table ip t", {"by table", "any table", "table", "families", "chain c", "rules of a", "rules of a and b"}),
    ("add rule ip6 t a accept", set()),
    ("delete table ip6 t", {"any table", "families"}),
])
def test_facts_about_other_chains_stay(warm, change, concerned):
    """kube-proxy changes its own chains all day. Once, after each such change the next DEL read CNI-FORWARD again."""
    for line in ("add table ip t", "add chain ip t a { type filter hook forward priority 0; }", "add chain ip t b",
                 "add chain ip t c", "add chain ip t other", "add rule ip t a accept", "add rule ip t b accept",
                 "add table ip6 t", "add chain ip6 t a"):
        run("nft", line)
    table = "nftables", "t", nft.NFPROTO_IPV4
    keys = {"table": table, "chain c": (*table, "chain", "c"), "rules of a": (*table, "rules", "a"),
            "rules of a and b": (*table, "rules", "a", "b"), "by table": (*table, "set", "s"),
            "any table": ("nftables", ""), "families": ("nftables", "t", nft.NFPROTO_UNSPEC)}
    asked = {name: Asked(lambda: True) for name in keys}

    def recalled():
        for name, key in keys.items():
            warm.recall(key, asked[name])
        return {name for name, ask in asked.items() if ask.again()}

    assert recalled() == {*keys}
    assert recalled() == set()
    run("nft", change)
    assert recalled() == concerned
    assert recalled() == set()


def test_a_change_between_question_and_answer_is_not_missed(bridge, warm):
    run("ip", "link", "set", "br0", "name", "br1")

    def slow():
        link = find.link(warm.route, "br1")
        run("ip", "link", "set", "br1", "mtu", str(link.mtu - 10))
        return link

    first = warm.recall(("link", "br1"), slow)
    assert warm.recall(("link", "br1"), lambda: find.link(warm.route, "br1")).mtu < first.mtu


def test_dropped_notifications_invalidate_all_facts(bridge, warm, monkeypatch):
    real, dropped = wire.receive, [OSError(ENOBUFS, "")]

    def receive(sock, *milliseconds):
        if dropped:
            raise dropped.pop()
        return real(sock, *milliseconds)

    monkeypatch.setattr(wire, "receive", receive)
    monkeypatch.setattr("fastcni.server.requests.facts.has_input", lambda _: True)
    assert bridge() and bridge.ask.again()


def test_more_links_than_a_filter_holds_are_asked_for_again(warm, bridge):
    for n in range(filters.MAX_LINKS + 5):
        run("ip", "link", "add", f"br-{n}", "type", "bridge")
        assert find.host_link(warm, f"br-{n}").name == f"br-{n}"
    assert len(warm.facts.watched) <= filters.MAX_LINKS
    run("ip", "link", "set", "br0", "mtu", "1300")
    run("ip", "link", "set", "br-66", "mtu", "1300")
    assert bridge().mtu == 1300 and find.host_link(warm, "br-66").mtu == 1300


def test_changes_that_do_not_fit_the_buffer_are_not_missed(bridge, warm):
    """The socket's buffer is too small for all changes, so the kernel drops notifications."""
    warm.facts.route.setsockopt(SOL_SOCKET, SO_RCVBUF, 1)
    for mtu in range(1300, 1330):
        run("ip", "link", "set", "br0", "mtu", str(mtu))
    received = warm.facts.received
    assert bridge().mtu == 1329
    assert warm.facts.received > received
    assert bridge.ask.again()
    assert bridge().mtu == 1329 and not bridge.ask.again()
    run("ip", "link", "set", "br0", "mtu", "1400")
    assert bridge().mtu == 1400


def test_an_address_that_comes_while_they_are_read_is_not_missed(bridge, warm):
    index = bridge().index

    def slow():
        found = find.addresses(warm.route, index, [uapi.AF_INET])
        run("ip", "addr", "replace", "10.1.1.7/24", "dev", "br0")
        return found

    key = ("addresses", index, uapi.AF_INET)
    warm.recall(key, slow)
    run("ip", "addr", "add", "10.1.1.8/24", "dev", "br0")
    assert len(warm.recall(key, lambda: find.addresses(warm.route, index, [uapi.AF_INET]))) == 2


def test_a_table_changed_while_it_is_read_is_not_remembered(warm):
    run("nft", "add", "table", "inet", "t")
    run("nft", "add", "chain", "inet", "t", "c")
    ask = Asked(lambda: run("nft", "add", "rule", "inet", "t", "c", "accept") or True)
    key = ("nftables", "t", 1, "c")
    assert warm.recall(key, ask)
    assert ask.again()
    assert warm.recall(key, ask)
    assert ask.again()


def test_many_threads_see_the_current_state(bridge, warm):
    """Four threads query the link while another thread changes it. A thread that begins after a change gets the state
    after this change or a later one."""
    seen, stop = [], threading.Event()

    def read_bridge():
        sock = wire.open_socket()
        while not stop.is_set():
            before = state[0]
            mtu = warm.recall(("link", "br0"), lambda: find.link(sock, "br0")).mtu
            seen.append(before <= mtu)
        sock.close()

    state = [1000]
    run("ip", "link", "set", "br0", "mtu", "1000")
    threads = [threading.Thread(target=read_bridge) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for mtu in range(1001, 1041):
            run("ip", "link", "set", "br0", "mtu", str(mtu))
            state[0] = mtu
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(seen) > 40 and all(seen)
