"""The network's configuration: flannel's keys, with their defaults and limits."""

import json

import pytest

from fastcni.agent import conf
from fastcni.agent.contract import ConfigurationError

BOTH = {"Network": "10.244.0.0/16", "EnableIPv6": True, "IPv6Network": "fd00:10::/48"}


@pytest.mark.parametrize(("keys", "family", "length", "first", "last"), [
    ({"Network": "10.244.0.0/16"}, 4, 24, "10.244.1.0/24", "10.244.255.0/24"),
    ({"Network": "10.0.0.0/23"}, 4, 25, "10.0.0.128/25", "10.0.1.128/25"),
    ({"Network": "10.0.0.0/28"}, 4, 30, "10.0.0.4/30", "10.0.0.12/30"),
    ({"Network": "10.244.3.7/16", "SubnetLen": 20}, 4, 20, "10.244.16.0/20", "10.244.240.0/20"),
    ({"Network": "10.244.0.0/16", "SubnetMin": "10.244.10.0", "SubnetMax": "10.244.20.0"}, 4, 24, "10.244.10.0/24",
     "10.244.20.0/24"),
    (BOTH, 6, 64, "fd00:10:0:1::/64", "fd00:10:0:ffff::/64"),
    ({**BOTH, "IPv6SubnetLen": 56}, 6, 56, "fd00:10:0:100::/56", "fd00:10:0:ff00::/56"),
    ({"network": "10.244.0.0/16", "SUBNETLEN": 26}, 4, 26, "10.244.0.64/26", "10.244.255.192/26"),
])
def test_a_family_has_these_subnets(keys, family, length, first, last):
    found = conf.read(json.dumps(keys)).families[family]
    assert (found.length, str(found.first), str(found.last)) == (length, first, last)


def test_ipv6_alone_needs_no_ipv4_network():
    found = conf.read(json.dumps({"EnableIPv4": False, "EnableIPv6": True, "IPv6Network": "fd00:10::/48"}))
    assert list(found.families) == [6]


@pytest.mark.parametrize(("backend", "expected"), [
    (None, {"Type": "vxlan"}), ({"Type": "host-gw"}, {"Type": "host-gw"}),
    ({"type": "vxlan", "VNI": 7}, {"type": "vxlan", "Type": "vxlan", "VNI": 7})])
def test_the_backend_is_vxlan_without_one(backend, expected):
    assert conf.read(json.dumps({"Network": "10.244.0.0/16", "Backend": backend})).backend == expected


@pytest.mark.parametrize(("keys", "words"), [
    ("{", "not JSON"), ("[" * 100000, "not JSON"), ("[]", "not a JSON object"), ({}, "Network"),
    ({"Network": "10.244.0.0"}, "Network"),
    ({"Network": 7}, "Network"), ({"Network": "fd00::/48"}, "Network"), ({"Network": "10.0.0.0/29"}, "/28 at most"),
    ({"Network": "10.0.0.0/24", "SubnetLen": 25}, "SubnetLen 25: 26 to 30"),
    ({"Network": "10.0.0.0/24", "SubnetLen": 31}, "SubnetLen"),
    ({"Network": "10.0.0.0/24", "SubnetLen": "26"}, "SubnetLen"),
    ({"Network": "10.0.0.0/16", "SubnetMin": "10.1.0.0"}, "SubnetMin 10.1.0.0 is not in"),
    ({"Network": "10.0.0.0/16", "SubnetMax": "10.0.7.1"}, "SubnetMax"), ({**BOTH, "IPv6Network": ""}, "IPv6Network"),
    ({**BOTH, "EnableIPv6": "yes"}, "EnableIPv6"), ({"EnableIPv4": False}, "both false"),
    ({"Network": "10.0.0.0/16", "Backend": []}, "Backend")])
def test_an_error_names_the_key(keys, words):
    with pytest.raises(ConfigurationError, match=words):
        conf.read(keys if isinstance(keys, str) else json.dumps(keys))
