"""Addresses: the texts that Go's parser accepts and its printer writes. The tests compare them with the module
ipaddress."""

from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.spec import address


@given(st.ip_addresses())
def test_each_address_is_read_back_from_its_text(one):
    text = address.ip_text(one.packed)
    mapped = one.version == 6 and one.ipv4_mapped
    assert address.read_ip(text) == (mapped or one).packed
    assert ip_address(text) == (mapped or one)


@pytest.mark.parametrize("given_text,text", [
    ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"), ("::ffff:1.2.3.4", "1.2.3.4"), ("::1.2.3.4", "::102:304"),
    ("::1:0", "::1:0"), ("::", "::"), ("::1", "::1"), ("1:0:0:2:0:0:0:3", "1:0:0:2::3"), ("64:ff9b::1.2.3.4",
     "64:ff9b::102:304"), ("1:0:2:3:4:5:6:7", "1:0:2:3:4:5:6:7"),
])
def test_ipv6_is_printed_as_go_prints_it(given_text, text):
    assert address.ip_text(address.read_ip(given_text)) == text


@pytest.mark.parametrize("text", ["", "foo", "1.2.3", "01.2.3.4", "1.2.3.256", "1.2.3.4/24", " 1.2.3.4",
                                  "1.2.3.4\n", "fe80::1%eth0",
                                  "1::2::3", "::1/64", "1.2.3.4\0", "\udcff", "١.2.3.4"])
def test_the_error_names_an_invalid_address(text):
    with pytest.raises(ValueError) as caught:
        address.read_ip(text)
    assert str(caught.value) == f"invalid IP address: {text}"


@pytest.mark.parametrize("text,packed,prefix", [
    ("10.1.2.3/24", b"\x0a\x01\x02\x03", 24), ("10.1.2.3/024", b"\x0a\x01\x02\x03", 24),
    ("::ffff:1.2.3.4/120", b"\x01\x02\x03\x04", 24), ("::ffff:1.2.3.4/10", b"\x01\x02\x03\x04", 0),
    ("0.0.0.0/0", bytes(4), 0), ("::/128", bytes(16), 128),
])
def test_host_bits_of_a_cidr_are_kept(text, packed, prefix):
    assert address.read_cidr(text) == (packed, prefix)


@pytest.mark.parametrize("text", ["", "10.1.2.3", "10.1.2.3/", "10.1.2.3/33", "::1/129", "fe80::1%eth0/64",
                                  "10.1.2.3/255.255.255.0", "010.1.2.3/24", "10.1.2.3/-1", "10.1.2.3/+1",
                                  "10.1.2.3/1/2", "10.1.2.3/²", "10.1.2.3/ 1", "10.1.2.3/" + "9" * 5000])
def test_the_error_names_an_invalid_cidr(text):
    with pytest.raises(ValueError) as caught:
        address.read_cidr(text)
    assert str(caught.value) == f"invalid CIDR address: {text}"


@given(st.text("0123456789abcdef:./% \0é", max_size=50))
def test_no_text_raises_anything_but_a_value_error(text):
    for read in (address.read_ip, address.read_cidr):
        try:
            read(text)
        except ValueError:
            pass


@given(st.ip_addresses(), st.integers(0, 128))
def test_the_ends_of_a_network_are_those_of_ipaddress(one, cut):
    prefix = cut if one.version == 6 else cut // 4
    net = ip_interface((one, prefix)).network
    assert address.network(one.packed, prefix) == net.network_address.packed
    assert address.broadcast(one.packed, prefix) == net.broadcast_address.packed


def test_counting_stops_at_the_ends_of_the_family():
    assert address.plus(bytes([10, 0, 0, 255]), 1) == bytes([10, 0, 1, 0])
    for packed, n in ((b"\xff" * 4, 1), (bytes(16), -1)):
        with pytest.raises(OverflowError):
            address.plus(packed, n)
