"""The registry in a real etcd: each subnet has one node, and a node never overwrites a subnet that it lost to another
node."""

import json
import threading
from ipaddress import ip_address

import pytest
from cluster.agent.etcd_network import CONF, PREFIX, Registry, node

from fastcni.agent.contract import ConfigurationError, Node, NoSubnetLeft, SubnetLost

BOTH = {**CONF, "EnableIPv6": True, "IPv6Network": "fd00:10::/48"}


def test_without_a_configuration_the_error_names_the_key(server):
    network = Registry(server, f"{PREFIX}/none")
    with pytest.raises(ConfigurationError, match=f"{PREFIX}/none/config"):
        network.open().conf()
    network.close()


def test_a_node_takes_a_subnet_with_a_lease(network):
    one = network.open()
    joined = one.join(one.conf(), node(1, VtepMAC="02:00:00:00:00:01"))
    pair = network.keys()[joined.name]
    assert pair.lease
    assert json.loads(pair.value)["PublicIP"] == "192.0.2.1"
    assert str(joined.subnets[4]).replace("/", "-") == joined.name
    assert one.keep(joined) > 60


def test_a_node_that_joins_again_has_the_same_subnet_and_lease(network):
    one = network.open()
    first = one.join(one.conf(), node(1, VtepMAC="02:00:00:00:00:01"))
    before = network.keys()[first.name]
    again = network.open().join(one.conf(), node(1, VtepMAC="02:00:00:00:00:02"))
    assert again.subnets == first.subnets
    assert network.keys()[first.name].lease == before.lease
    assert "02:00:00:00:00:02" in network.keys()[first.name].value


@pytest.mark.parametrize("data", [{"VtepMAC": "02:00:00:00:00:01"}, {"PublicKey": "a2V5"}], ids=["vxlan", "wireguard"])
def test_a_node_with_a_new_address_takes_over_its_record(network, data):
    """The node took another subnet. Its previous record, with the same MAC, stayed until the lease ended, so other
    nodes saw two records of one node."""
    one = network.open()
    first = one.join(one.conf(), node(1, **data))
    moved = network.open().join(one.conf(), node(9, **data))
    assert moved.subnets == first.subnets
    assert [json.loads(pair.value)["PublicIP"] for pair in network.keys().values()] == ["192.0.2.9"]
    other = network.open().join(one.conf(), node(2, VtepMAC="02:00:00:00:00:02"))
    assert other.subnets != first.subnets


def test_the_former_subnet_is_asked_for(network):
    one = network.open()
    assert str(one.join(one.conf(), node(1, "10.244.77.0/24")).subnets[4]) == "10.244.77.0/24"
    assert str(one.join(one.conf(), node(2, "10.244.77.0/24")).subnets[4]) != "10.244.77.0/24"


def test_a_reservation_stays_without_a_lease(network):
    network.put("subnets/10.244.5.0-24", '{"PublicIP":"192.0.2.1","BackendType":"vxlan"}')
    one = network.open()
    joined = one.join(one.conf(), node(1))
    assert joined.name == "10.244.5.0-24"
    assert not network.keys()["10.244.5.0-24"].lease
    one.keep(joined)
    assert not network.keys()["10.244.5.0-24"].lease


def test_a_record_that_an_operator_puts_again_without_a_lease_is_a_reservation(network):
    one = network.open()
    joined = one.join(one.conf(), node(1))
    network.put(f"subnets/{joined.name}", network.keys()[joined.name].value)
    one.keep(joined)
    assert not network.keys()[joined.name].lease
    network.delete(joined.name)
    one.keep(joined)
    assert network.keys()[joined.name].lease


def test_many_nodes_at_once_have_subnets_of_their_own(network):
    """The network has as many subnets as nodes, of both families."""
    network.configure({**BOTH, "SubnetMin": "10.244.1.0", "SubnetMax": "10.244.12.0"})
    found, errors = [], []

    def join(number):
        registry = network.open()
        public = {4: ip_address(f"192.0.2.{number}"), 6: ip_address(f"2001:db8::{number}")}
        while True:
            try:
                found.append(registry.join(registry.conf(), Node("", {}, public, "host-gw")))
                return
            except (SubnetLost, NoSubnetLeft) as e:      # full of claims that other nodes will take back
                errors.append(e)

    threads = [threading.Thread(target=join, args=(number,)) for number in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for family in (4, 6):
        assert len({each.subnets[family] for each in found}) == 12
    assert {each.name for each in found} == set(network.keys())


def test_a_full_network_is_an_error(network):
    network.configure({"Network": "10.244.0.0/28", "SubnetLen": 30})
    one = network.open()
    for number in range(1, 4):
        one.join(one.conf(), node(number))
    with pytest.raises(NoSubnetLeft, match="3 are taken"):
        one.join(one.conf(), node(9))


def test_a_record_that_was_deleted_is_written_again(network):
    one = network.open()
    joined = one.join(one.conf(), node(1))
    network.delete(joined.name)
    one.keep(joined)
    assert network.keys()[joined.name].lease


def test_a_subnet_that_another_node_has_now_is_never_overwritten(network):
    """The node could not reach etcd for longer than its lease."""
    one, two = network.open(), network.open()
    joined = one.join(one.conf(), node(1))
    network.delete(joined.name)
    other = two.join(two.conf(), node(2, str(joined.subnets[4])))
    assert other.subnets == joined.subnets
    before = network.keys()[joined.name]
    with pytest.raises(SubnetLost, match="another node has"):
        one.keep(joined)
    assert network.keys()[joined.name].revision == before.revision
    assert one.join(one.conf(), node(1, str(joined.subnets[4]))).subnets != other.subnets


# Values that another program writes, in place of the record or of one field of the record
DAMAGED_VALUES = ["", "[", "null", "5", "{}", "[" * 5000, '"text"', "\x00"]
DAMAGED_FIELDS = [
    *({"PublicIP": value} for value in (None, 5, "", "nonsense", "2001:db8::7", [1], "192.0.2.99")),
    *({"PublicIPv6": value} for value in (5, "nonsense", "192.0.2.7", "2001:db8::99")),
    *({"BackendType": value} for value in (None, 5, "", "host-gw")),
    *({"BackendData": value} for value in (None, 5, "nonsense", [], {}, {"VNI": 2, "VtepMAC": "02:00:00:00:00:01"},
                                           {"VNI": 1, "VtepMAC": 5}, {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"})),
    {"PublicIP": "192.0.2.99", "BackendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"}}]


def shown(damage):
    return str(damage).strip("{}").replace("[" * 40, "[...")[:70] or "empty"


def damaged(value, damage):
    return damage if isinstance(damage, str) else json.dumps(json.loads(value) | damage)


@pytest.mark.parametrize("damage", [*DAMAGED_VALUES, *DAMAGED_FIELDS], ids=shown)
@pytest.mark.parametrize("loses_lease", [False, True])
def test_a_damaged_record_is_written_again(network, damage, loses_lease):
    """The node took another subnet, or failed for ever with "other nodes have taken 10 subnets before this one
    could"."""
    one = network.open()
    joined = one.join(one.conf(), node(1, VtepMAC="02:00:00:00:00:01"))
    before = network.keys()[joined.name]
    network.put(f"subnets/{joined.name}", damaged(before.value, damage), 0 if loses_lease else before.lease)
    assert one.keep(joined) > 1
    after = network.keys()[joined.name]
    assert (after.value, after.lease) == (before.value, before.lease)
    assert [event["event"] for event in network.log].count("record_restored") == 1


@pytest.mark.parametrize("damage", [
    *DAMAGED_VALUES, *({"PublicIP": value} for value in (5, "nonsense", "192.0.2.99")), {"BackendType": "host-gw"},
    {"BackendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:99"}}], ids=shown)
def test_a_restarted_node_keeps_its_subnet_although_its_record_is_damaged(network, damage):
    one = network.open()
    joined = one.join(one.conf(), node(1, VtepMAC="02:00:00:00:00:01"))
    before = network.keys()[joined.name].value
    network.put(f"subnets/{joined.name}", damaged(before, damage))
    again = network.open().join(one.conf(), node(1, str(joined.subnets[4]), VtepMAC="02:00:00:00:00:01"))
    assert again == joined
    assert {key: pair.value for key, pair in network.keys().items()} == {joined.name: before}


def test_after_a_reboot_a_node_whose_record_cannot_be_read_takes_another_subnet(network):
    """After the reboot the node does not know its previous subnet, and the damaged record names no node."""
    one = network.open()
    joined = one.join(one.conf(), node(1))
    network.put(f"subnets/{joined.name}", "[")
    again = network.open().join(one.conf(), node(1))
    assert again.subnets != joined.subnets
    assert network.keys()[joined.name].value == "["


def test_the_subnet_of_a_record_that_cannot_be_read_is_taken(network):
    """The agent took the subnet for a free one, and failed after 10 attempts to claim it. With both address families
    the keys of the two records differed, so two nodes had the same subnet."""
    network.configure({"Network": "10.244.0.0/28", "SubnetLen": 30})
    network.put("subnets/10.244.0.4-30", "[")
    network.put("subnets/10.244.0.8-30&fd00:10:0:8::-64", "[")
    one = network.open()
    assert one.join(one.conf(), node(1)).name == "10.244.0.12-30"
    with pytest.raises(NoSubnetLeft, match="3 are taken"):
        one.join(one.conf(), node(2))


def test_a_record_that_names_another_node_twice_is_that_nodes(network):
    """The node corrects its record once. If the other node's name returns immediately, that node also has the subnet
    and writes the record."""
    one = network.open()
    joined = one.join(one.conf(), node(1))
    lease = network.keys()[joined.name].lease
    other = '{"PublicIP":"192.0.2.2","BackendType":"vxlan"}'
    network.put(f"subnets/{joined.name}", other, lease)
    one.keep(joined)
    network.put(f"subnets/{joined.name}", other, lease)
    with pytest.raises(SubnetLost, match="another node has"):
        one.keep(joined)
    assert network.keys()[joined.name].value == other


def test_a_node_takes_its_own_record_and_not_the_damaged_one_of_another(network):
    """Another node's damaged record had this node's address, and its key sorts before the key of this node's record."""
    one, two = network.open(), network.open()
    first = one.join(one.conf(), node(1, "10.244.1.0/24", VtepMAC="02:00:00:00:00:01"))
    second = two.join(two.conf(), node(2, "10.244.2.0/24", VtepMAC="02:00:00:00:00:02"))
    network.put(f"subnets/{first.name}", '{"PublicIP":"192.0.2.2","BackendType":"vxlan"}')
    for former in ("10.244.2.0/24", None):
        again = network.open().join(two.conf(), node(2, former, VtepMAC="02:00:00:00:00:02"))
        assert again == second


def test_a_node_that_leaves_removes_its_damaged_record(network):
    one = network.open()
    joined = one.join(one.conf(), node(1))
    network.put(f"subnets/{joined.name}", "[")
    one.leave(joined)
    assert network.keys() == {}


def test_an_ended_lease_is_replaced(network):
    one = network.open()
    joined = one.join(one.conf(), node(1))
    network.client.call("/lease/revoke", {"ID": network.keys()[joined.name].lease})
    assert network.keys() == {}
    one.keep(joined)
    assert network.keys()[joined.name].lease


def test_a_node_that_leaves_has_no_record(network):
    one, two = network.open(), network.open()
    joined, other = one.join(one.conf(), node(1)), two.join(two.conf(), node(2))
    one.leave(joined)
    assert list(network.keys()) == [other.name]
    third = two.join(two.conf(), node(3, str(joined.subnets[4])))
    one.leave(joined)                   # another node has the subnet now
    assert {*network.keys()} == {other.name, third.name}
