"""The plugin `cluster` on the local store. Several nodes run in one process, each with its own directory."""

import threading

import pytest
from unit.kit.ipam.cluster.node import NET, pod
from unit.kit.ipam.cluster.watched import a_block, add_until_refused, calls, declare_dead, store_of

from fastcni.kit.ipam.cluster import released

DUAL = {"ipRanges": [{"range": "10.0.0.0/24"}, {"range": "fd00:9::/64"}]}
TINY = {"range": "10.0.0.0/29"}                     # the addresses .1 to .6


@pytest.fixture
def clock(monkeypatch):
    """Replace CLOCK_BOOTTIME. Return a list whose only item is the time."""
    clock = [released.boottime()]
    for module in ("released", "allocate", "hold"):
        monkeypatch.setattr(f"fastcni.kit.ipam.cluster.{module}.boottime", lambda: clock[0])
    return clock


# -- ADD, DEL, CHECK ------------------------------------------------------------------------------------------


def test_nodes_get_different_addresses(a, b):
    given = [node.add(NET, f"{node.name}{i}")[0] for i in range(40) for node in (a, b)]
    assert len(set(given)) == 80


def test_a_usual_add_and_del_make_no_call(a):
    a.add(NET, "c1")
    assert calls(a) == ["join_space", "claim"]
    a.add(NET, "c2")
    a.call("CHECK", NET, "c2")
    a.delete(NET, "c2")
    assert calls(a) == []


def test_a_block_that_is_missing_takes_one_call(a):
    for i in range(14):
        a.add(NET, f"c{i}")
    calls(a)
    a.add(NET, "c14")
    a.add(NET, "c15")
    assert calls(a) == ["claim"]


def test_the_result_has_prefix_gateway_routes_dns_and_more_addresses(a):
    ipam = {"range": "10.0.0.0/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["10.0.0.53"]}, "addresses": [{"address": "192.168.0.7/24"}]}
    result = a.call("ADD", ipam)
    assert result["ips"][1:] == [{"address": "192.168.0.7/24"}]
    first = result["ips"][0]
    assert first["address"].endswith("/24") and first["gateway"] == "10.0.0.1" and first["address"] != "10.0.0.1/24"
    assert (result["routes"], result["dns"]) == ([{"dst": "0.0.0.0/0"}], {"nameservers": ["10.0.0.53"]})


def test_each_range_gives_one_address_and_a_gateway_of_its_family(a):
    ipam = {"range": "10.0.0.0/24", "gateway": "10.0.0.1", "ipRanges": [
        {"range": "fd00:9::/64", "gateway": "fd00:9::1"}, {"range": "10.7.0.0/24"}]}
    ips = a.call("ADD", ipam)["ips"]
    assert [ip["address"].rpartition("/")[2] for ip in ips] == ["24", "64", "24"]
    assert [ip.get("gateway") for ip in ips] == ["10.0.0.1", "fd00:9::1", "10.0.0.1"]


def test_several_missing_blocks_are_one_claim(a):
    assert len(a.add(DUAL)) == 2
    assert calls(a).count("claim") == 1


def test_two_equal_ranges_give_two_addresses(a):
    ipam = {"ipRanges": [{"range": "10.0.0.0/24"}] * 2}
    first, second = a.add(ipam)
    assert first != second
    assert a.add(ipam) == [first, second]
    a.delete(ipam)
    assert a.files() == {}


def test_a_repeated_add_gives_the_same_address(a):
    first = a.add(DUAL, "c1")
    calls(a)
    assert a.add(DUAL, "c1") == first
    assert calls(a) == []
    assert a.add(DUAL, "c1", ifname="eth1") != first


def test_another_sandbox_of_a_pod_takes_over_its_address(a):
    first = a.add(NET, "c1", args=pod("web"))
    assert a.add(NET, "c2", args=pod("web")) == first
    assert a.add(NET, "c3", args=pod("web", "other")) != first
    assert a.add(NET, "c4", args=pod("web"), ifname="eth1") != first
    a.delete(NET, "c1")                     # the earlier sandbox's DEL comes late
    assert a.files()[first[0]] == b"c2\r\neth0\r\nnet\r\nns/web"
    a.call("CHECK", NET, "c2")
    a.delete(NET, "c2")
    assert first[0] not in a.files()


def test_a_failed_add_gives_the_former_sandbox_its_address_back(a):
    first = a.add(NET, "c1", args=pod("web"))
    both = {"ipRanges": [NET, {"range": "10.9.0.0/24"}]}
    a.mode.watched.away = True
    assert a.refused("ADD", both, "c2", args=pod("web")).code == 11
    assert a.files() == {first[0]: b"c1\r\neth0\r\nnet\r\nns/web"}
    a.call("CHECK", NET, "c1")


def test_a_failed_add_leaves_nothing(a):
    """In this case, whereabouts leaves the address of the first range (whereabouts issue 712 and others)."""
    a.add(NET, "c0")
    held = a.files()
    a.mode.watched.away = True
    e = a.refused("ADD", DUAL, "c1")
    assert (e.code, "is unavailable: no route to host" in e.msg) == (11, True)
    assert "fd00:9::/64: this node has no block of this range" in e.details
    assert a.files() == held


def test_del_releases_in_each_range_and_is_fine_again(a):
    a.add(DUAL, "c1")
    a.delete(DUAL, "c1")
    assert a.files() == {}
    a.delete(DUAL, "c1")
    a.delete({"range": "nonsense"}, "c1")


def test_del_needs_neither_directory_nor_store(a):
    a.mode.watched.away = True
    a.delete(NET, "c1")
    assert calls(a) == [] and not (a.root / "default").exists()


def test_check_misses_an_address(a):
    assert a.refused("CHECK", NET, "c1").code == 999
    a.add(NET, "c1")
    a.call("CHECK", NET, "c1")
    assert "has no address of fd00:9::/64" in a.refused("CHECK", DUAL, "c1").msg


def test_without_a_pod_name_all_works(a):
    """Whereabouts rejects an empty K8S_POD_NAME."""
    assert a.add(NET, "c1", args="") and a.add(NET, "c2", args="IgnoreUnknown=1;K8S_POD_NAMESPACE=ns")


def test_ranges_that_overlap_give_an_address_once(a, b):
    narrow, wide = {"range": "10.0.0.0/25"}, {"range": "10.0.0.0/24"}
    given = [node.add(ipam, f"{node.name}{i}{name}", name=name)[0] for i in range(30)
             for node in (a, b) for name, ipam in (("n", narrow), ("w", wide))]
    assert len(set(given)) == 120


def test_spaces_have_their_own_addresses(a, b):
    one, other = a.add(NET | {"network_name": "one"}), a.add(NET | {"network_name": "other"})
    assert one == other
    assert {block.space for block in store_of(a).blocks()} == {"one", "other"}


def test_what_is_excluded_is_not_given(a):
    ipam = {"range": "10.0.0.0/27", "exclude": ["10.0.0.8/29", "10.0.0.3"], "range_start": "10.0.0.2",
            "range_end": "10.0.0.20", "gateway": "10.0.0.4", "block_size": 29}
    given = sorted(int(a.add(ipam, f"c{i}")[0].rpartition(".")[2]) for i in range(9))
    assert given == [2, 5, 6, 7, 16, 17, 18, 19, 20]
    assert a.refused("ADD", ipam, "more").code == 11


@pytest.mark.parametrize("range_, count", [
    ("10.0.0.0/30", 2), ("10.0.0.0/31", 2), ("10.0.0.7/32", 1), ("10.0.0.0/29", 6), ("10.0.0.0/28", 14),
    ("fd00::/126", 2), ("fd00::/127", 2), ("fd00::1/128", 1)])
def test_small_ranges_are_given_completely_by_several_nodes(a, b, range_, count):
    ipam = {"range": range_}
    given = [(a, b)[i % 2].add(ipam, f"c{i}")[0] for i in range(count)]
    assert len(set(given)) == count
    e = b.refused("ADD", ipam, "more")
    assert e.code == 11 and f"range {range_} of space" in e.msg
    a.delete(ipam, "c0")
    assert b.add(ipam, "more") == given[:1]


@pytest.mark.parametrize("range_", ["fd00::/8", "fd00::/48", "fd00::/64", "fd00::ffff:ffff:ffff:0/112"])
def test_large_ranges_of_ipv6_are_used_in_full(a, range_):
    """Whereabouts has 64 bits for an offset, some of them signed (whereabouts issue 83)."""
    given = [a.add({"range": range_}, f"c{i}")[0] for i in range(70)]
    assert len(set(given)) == 70 and all(one.startswith("fd00:") for one in given)


def test_the_last_addresses_of_a_large_range_can_be_given(a):
    ipam = {"range": "fd00::/64", "range_start": "fd00::ffff:ffff:ffff:ff00"}
    assert a.add(ipam)[0].startswith("fd00::ffff:ffff:ffff:ff")
    assert a.add(ipam, "c2", args="IP=fd00::ffff:ffff:ffff:fffe") == ["fd00::ffff:ffff:ffff:fffe"]


# -- order ------------------------------------------------------------------------------------------------




def test_a_released_address_is_given_last(a, clock):
    """First come addresses that no pod has had, then the address that was released longest ago."""
    given = [a.add(NET, f"c{i}")[0] for i in range(7)]
    for name in ("c3", "c1", "c5"):
        a.delete(NET, name)
        clock[0] += 1
    left = a_block(a) - 7
    assert not set(given) & {a.add(NET, f"d{i}")[0] for i in range(left)}
    assert [a.add(NET, f"e{i}")[0] for i in range(3)] == [given[3], given[1], given[5]]
    assert len(store_of(a).blocks()) == 1


def test_a_gateway_in_a_block_is_not_given_as_an_address_that_no_pod_has_had(a):
    """No pod has ever had the gateway's address. The search for a free address must not reach the gateway."""
    ipam = {"range": "10.0.0.0/24", "gateway": "10.0.0.7",
            "exclude": ["10.0.0.16/28", "10.0.0.32/27", "10.0.0.64/26", "10.0.0.128/25"]}
    given = {a.add(ipam, f"c{i}")[0] for i in range(14)}
    assert given == {f"10.0.0.{number}" for number in (*range(1, 7), *range(8, 16))}


def test_an_address_that_cools_down_waits_while_another_is_free(a):
    first = [a.add(NET, f"c{i}")[0] for i in range(3)]
    a.delete(NET, "c0")
    (fourth,) = a.add(NET, "d0")
    assert fourth not in first


def test_an_address_that_cools_down_waits_while_one_is_free_in_the_last_of_many_blocks(a, clock):
    """Once, the plugin searched only four blocks. With more blocks, it gave an address again that was released a moment
    ago."""
    ipam = {"range": "10.0.0.0/24", "block_size": 29}
    given = [a.add(ipam, f"c{i}")[0] for i in range(56)]            # 56 addresses fill seven blocks
    a.delete(ipam, "c55")
    clock[0] += 31
    for i in range(55):
        a.delete(ipam, f"c{i}")
    clock[0] += 2                       # the time of a release is rounded up to whole seconds
    assert a.add(ipam, "d0")[0] not in given[:55]


# -- full ranges, GC, STATUS ------------------------------------------------------------------------------------------




def test_a_full_range_names_the_holders_and_what_to_do(a, b):
    ipam = {"range": "10.0.0.0/27", "block_size": 29}
    b.add(ipam, "b0")
    e = add_until_refused(a, ipam)
    assert e.code == 11
    assert e.msg == 'range 10.0.0.0/27 of space "default" is full for node "a": a has 3 blocks, b has 1 block'
    assert "fastcni ipam list" in e.details
    declare_dead(a, "b")
    e = a.refused("ADD", ipam, "more")
    assert "in quarantine" in e.msg and "forget-node" in e.details


def test_shared_blocks_serve_when_no_other_is_free(a):
    ipam = {"range": "10.0.0.0/27", "block_size": 29}
    a.add(ipam, "fixed", args="IP=10.0.0.30")
    given = [a.add(ipam, f"c{i}")[0] for i in range(29)]
    assert len({*given, "10.0.0.30"}) == 30
    assert a.refused("ADD", ipam, "more").code == 11


def test_gc_releases_what_is_not_valid_in_its_network_only(a):
    mine, other = a.add(NET, "c1", name="n1"), a.add(NET, "c2", name="n2")
    gone = a.add(NET, "c3", name="n1")
    a.call("GC", NET, "", name="n1", **{"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]})
    assert set(a.files()) == {mine[0], other[0]}
    assert a.req.released == [{"plugin": "cluster", "what": f"address {gone[0]}", "of": "c3 eth0"}]


def test_gc_releases_ip_claims_in_the_store(a):
    a.add(TINY, "c1")
    a.call("GC", TINY, "", **{"cni.dev/valid-attachments": []})
    assert store_of(a).ip_claims() == [] and a.files() == {}


def test_status_is_fine_while_addresses_can_be_given(a, b):
    a.call("STATUS", NET, "")
    assert not (a.root / "default").exists()
    a.add(NET, "c1")
    a.call("STATUS", NET, "")
    a.call("STATUS", {}, "")


def test_status_is_51_if_the_store_is_away_and_50_if_nothing_is_left(a):
    a.mode.watched.away = True
    assert a.refused("STATUS", NET, "").code == 50
    a.mode.watched.away = False
    a.add(NET, "c1")
    a.mode.watched.away = True
    e = a.refused("STATUS", NET, "")
    assert e.code == 51 and "is unavailable: no route to host" in e.msg


@pytest.mark.parametrize("ipam, count", [({"range": "10.0.0.0/27", "block_size": 29}, 30), (TINY, 6)])
def test_status_is_50_if_the_range_is_full(a, b, ipam, count):
    for i in range(count):
        b.add(ipam, f"c{i}")
    e = a.refused("STATUS", ipam, "")
    assert e.code == 50 and "is full" in e.msg


# -- at the same time ---------------------------------------------------------------------------------------


def test_many_requests_at_once_give_each_address_once(a, b):
    ipam, given, faults = {"range": "10.0.0.0/23"}, [], []
    start = threading.Barrier(8)

    def work(node, number):
        start.wait()
        try:
            for i in range(20):
                given.extend(node.add(ipam, f"{node.name}{number}-{i}"))
                if i % 3 == 2:
                    node.delete(ipam, f"{node.name}{number}-{i}")
        except Exception as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(node, n)) for n in range(4) for node in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    held = [*a.files(), *b.files()]
    assert len(held) == len(set(held)) == 8 * 14


def test_a_directory_of_another_node_is_refused(a):
    a.add(NET, "c1")
    a.name = "renamed"
    e = a.refused("ADD", NET, "c2")
    assert e.code == 7 and 'is the state of node "a"' in e.msg


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"{", b"[]", b'{"blocks": [[1]]}'])
def test_a_damaged_state_is_replaced_by_what_the_store_knows(a, content):
    """For example, a power cut leaves an empty file."""
    first = a.add(NET, "c1")
    blocks = store_of(a).blocks()
    path = a.root / "default/.cluster/blocks.json"
    path.write_bytes(content)
    assert a.add(NET, "c2") != first
    assert f"{path} is damaged" in a.warnings[0]
    assert store_of(a).blocks() == blocks and len(a.files()) == 2
    path.write_bytes(content)
    a.delete(NET, "c1")
    assert len(a.files()) == 1
