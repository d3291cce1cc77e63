"""Read the addresses that whereabouts has allocated."""

import pytest
from cluster.kubernetes.api_server import kubeconfig

from fastcni.clients.errors import Away
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.whereabouts_pools import Allocation, Pool, Reservation, Slices, read_whereabouts

GROUP = "whereabouts.cni.cncf.io"


@pytest.fixture
def store(mock, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url))
    store = open_store({"type": "kubernetes", "kubeconfig": str(tmp_path / "kubeconfig")})
    yield store
    store.close()


def put(mock, plural, name, namespace="kube-system", **parts):
    mock.do(lambda api: api.put(f"{plural}.{GROUP}", {"metadata": {"name": name}} | parts, namespace, "v1alpha1"))


def put_pool(mock, name, cidr, namespace="kube-system", **allocations):
    put(mock, "ippools", name, namespace, spec={"range": cidr, "allocations": {
        offset[1:]: {"id": f"c{offset}", "podref": pod, "ifname": "net1"} for offset, pod in allocations.items()}})


def put_reservation(mock, name, pod="ns/p"):
    put(mock, "overlappingrangeipreservations", name, spec={"containerid": "c", "podref": pod, "ifname": "net1"})


@pytest.fixture
def empty(mock):
    """Return a cluster in which whereabouts has allocated no address."""
    put_pool(mock, "10.0.0.0-24", "10.0.0.0/24")
    put(mock, "overlappingrangeipreservations", "192.0.2.1", "elsewhere", spec={"podref": ""})


def test_a_pool_has_its_allocations_by_offset(mock, store, empty):
    put_pool(mock, "10.1.0.0-16", "10.1.0.0/16", _10="ns/b", _2="ns/a", _300="ns/c")
    found = read_whereabouts(store)
    assert found.pools[0] == Pool("10.0.0.0-24", "10.0.0.0/24", "", "", [])
    assert found.pools[1].allocations == [
        Allocation("10.1.0.2", "c_2", "ns/a", "net1"), Allocation("10.1.0.10", "c_10", "ns/b", "net1"),
        Allocation("10.1.1.44", "c_300", "ns/c", "net1")]
    assert (found.reservations, found.slices, found.unreadable) == ([], [], [])


def test_ipv6_and_offsets_beyond_64_bits(mock, store, empty):
    put_pool(mock, "net1-fd00---48", "fd00::/48", _18446744073709551617="ns/a")
    (_, pool) = read_whereabouts(store).pools
    assert (pool.network, pool.range, pool.allocations[0].address) == ("net1", "fd00::/48", "fd00:0:0:1::1")


def test_a_pool_of_a_node_slice_has_its_node(mock, store, empty):
    put(mock, "nodeslicepools", "net1", spec={"range": "10.2.0.0/16", "sliceSize": "/24"}, status={"allocations": [
        {"nodeName": "node-7", "sliceRange": "10.2.0.0/24"}, {"nodeName": "", "sliceRange": "10.2.1.0/24"}]})
    put_pool(mock, "net-1-node-7-10.2.0.0-24", "10.2.0.0/24")
    put_pool(mock, "node-7-10.2.0.0-24", "10.2.0.0/24")
    put_pool(mock, "net-1-node-8-10.2.0.0-24", "10.2.0.0/24")
    found = read_whereabouts(store)
    assert found.slices == [Slices("net1", [("node-7", "10.2.0.0/24"), ("", "10.2.1.0/24")])]
    assert {(pool.name, pool.network, pool.node) for pool in found.pools} == {
        ("10.0.0.0-24", "", ""), ("net-1-node-7-10.2.0.0-24", "net-1", "node-7"),
        ("net-1-node-8-10.2.0.0-24", "net-1-node-8", ""), ("node-7-10.2.0.0-24", "", "node-7")}


@pytest.mark.parametrize("name, network, address", [
    ("10.0.0.7", "", "10.0.0.7"), ("net-1-10.0.0.7", "net-1", "10.0.0.7"), ("fd00--7", "", "fd00::7"),
    ("net-1-fd00--0", "net-1", "fd00::"), ("1-2-3-4-5-6-7-8", "", "1:2:3:4:5:6:7:8")])
def test_a_reservation_has_the_address_in_its_name(mock, store, empty, name, network, address):
    put_pool(mock, "net-1-10.9.0.0-24", "10.9.0.0/24", _1="ns/q")
    put_reservation(mock, name)
    assert read_whereabouts(store).reservations == [Reservation(name, network, address, "c", "ns/p", "net1")]


def test_a_name_with_two_readings_is_that_of_an_address_that_was_given(mock, store, empty):
    put_pool(mock, "a-fd00---64", "fd00::/64", _7="ns/p")
    put_reservation(mock, "a-fd00--7")          # a:fd00::7, or fd00::7 of network "a"
    (found,) = read_whereabouts(store).reservations
    assert (found.network, found.address) == ("a", "fd00::7")


def test_what_cannot_be_understood_is_told_and_left_out(mock, store, empty):
    put_pool(mock, "other", "10.3.0.0/24")
    put_pool(mock, "10.4.0.0-24", "nonsense")
    put_pool(mock, "10.5.0.0-24", "10.5.0.0/24", _x="ns/p", _1="ns/q")
    put_reservation(mock, "none")
    found = read_whereabouts(store)
    assert [pool.name for pool in found.pools] == ["10.0.0.0-24", "10.5.0.0-24"]
    assert [one.pod for one in found.pools[1].allocations] == ["ns/q"]
    assert found.unreadable == [
        "IPPool 10.4.0.0-24: invalid CIDR address: nonsense", "IPPool 10.5.0.0-24: allocation 'x' of ns/p",
        "IPPool other: its name does not end with its range 10.3.0.0/24",
        "OverlappingRangeIPReservation none: its name has no address"]


def test_the_namespace_is_the_contexts(mock, store, empty, tmp_path):
    put_pool(mock, "10.6.0.0-24", "10.6.0.0/24", "net")
    assert [pool.range for pool in read_whereabouts(store, "net").pools] == ["10.6.0.0/24"]
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url, context={"namespace": "net"}))
    store.close()
    assert [pool.range for pool in read_whereabouts(store).pools] == ["10.6.0.0/24"]


def test_a_cluster_without_whereabouts(store):
    with pytest.raises(Away, match="/ippools: the cluster has no such objects"):
        read_whereabouts(store)
