"""Records in etcd: flannel's keys and values, byte for byte."""

from ipaddress import ip_address, ip_network

import pytest

from fastcni.agent.contract import Node
from fastcni.agent.registries import flannel_records

V4, V6 = ip_network("10.5.52.0/24"), ip_network("2001:cafe:42:1::/64")
VXLAN = {"VNI": 1, "VtepMAC": "82:4b:b6:2f:54:4e"}


@pytest.mark.parametrize(("subnets", "key"), [
    ({4: V4}, "10.5.52.0-24"), ({4: V4, 6: V6}, "10.5.52.0-24&2001:cafe:42:1::-64"),
    ({6: V6}, "0.0.0.0-0&2001:cafe:42:1::-64")])
def test_a_key_has_the_subnets(subnets, key):
    assert flannel_records.key_of(subnets) == key
    assert flannel_records.read_subnets(key) == subnets


def test_a_value_has_these_bytes():
    public = {4: ip_address("192.0.2.7")}
    assert flannel_records.value_of(Node("", {4: V4}, public, "vxlan", {4: VXLAN})) == (
        '{"PublicIP":"192.0.2.7","PublicIPv6":null,"BackendType":"vxlan",'
        '"BackendData":{"VNI":1,"VtepMAC":"82:4b:b6:2f:54:4e"}}')
    assert flannel_records.value_of(Node("", {6: V6}, {6: ip_address("2001:db8::7")}, "host-gw")) == (
        '{"PublicIP":"0.0.0.0","PublicIPv6":"2001:db8::7","BackendType":"host-gw"}')


@pytest.mark.parametrize("node", [
    Node("10.5.52.0-24", {4: V4}, {4: ip_address("192.0.2.7")}, "vxlan", {4: VXLAN}),
    Node("10.5.52.0-24&2001:cafe:42:1::-64", {4: V4, 6: V6}, {4: ip_address("192.0.2.7"), 6: ip_address("2001:db8::7")},
         "vxlan", {4: VXLAN, 6: VXLAN}),
    Node("0.0.0.0-0&2001:cafe:42:1::-64", {6: V6}, {6: ip_address("2001:db8::7")}, "host-gw", {})])
def test_what_is_written_is_read_again(node):
    assert flannel_records.read(flannel_records.key_of(node.subnets), flannel_records.value_of(node)) == node


@pytest.mark.parametrize(("key", "value"), [
    ("10.5.52.0-24", "["), ("10.5.52.0-24", "[]"), ("10.5.52.0-24", '{"PublicIP": "nonsense"}'), ("nonsense", "{}"),
    ("10.5.52.1-24", "{}"), ("10.5.52.0-24&10.6.0.0-24", "{}"), ("0.0.0.0-0", "{}"), ("", "{}"),
    ("10.5.52.0-24", "[" * 100000),
    ("10.5.52.0-24", '{"PublicIP": "2001:db8::7"}'), ("10.5.52.0-24", '{"PublicIPv6": "192.0.2.7"}')])
def test_a_damaged_record_is_a_value_error(key, value):
    with pytest.raises(ValueError):
        flannel_records.read(key, value)
