"""static: the configured addresses, which source of addresses overrides which, and the texts of errors."""

import pytest

from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import static
from fastcni.spec.errors import CniError


def call(command, ipam, args="", version="1.0.0", **top):
    conf = {"cniVersion": version, "name": "net", "type": "x", "ipam": ipam} | top
    req = Request(Mode(), plugin="static", command=command, container_id="pod", ifname="eth0", args=args, conf=conf,
                  name="net", version=version)
    record = static.read(req)
    if command == "ADD":
        with Undo() as undo:
            return static.add(req, record, undo)
    return {"DEL": static.delete, "CHECK": static.check}[command](req, record)


def refused(*args, **more):
    with pytest.raises(CniError) as e:
        call(*args, **more)
    return e.value


TWO = {"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}]}


def test_addresses_routes_and_dns_are_in_the_result(tmp_path):
    more = {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.1.0.9"}],
            "dns": {"nameservers": ["10.1.0.1"], "domain": "example", "search": [], "options": None}}
    assert call("ADD", TWO | more) == {
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}],
        "routes": more["routes"], "dns": {"nameservers": ["10.1.0.1"], "domain": "example"}}


def test_no_address_is_a_result_without_addresses():
    assert call("ADD", {}) == {"ips": []}


def test_cni_args_are_appended_and_their_gateways_are_theirs():
    result = call("ADD", {"addresses": [{"address": "10.1.0.5/24"}]},
                  args="IP=10.1.0.6/24, 10.2.0.6/24,fd00::6/64;GATEWAY=10.1.0.1,fd00::1")
    assert result["ips"] == [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24", "gateway": "10.1.0.1"},
                             {"address": "10.2.0.6/24"}, {"address": "fd00::6/64", "gateway": "fd00::1"}]


def test_args_replace_and_the_capability_replaces_again():
    args = {"cni": {"ips": ["10.3.0.7/24"]}}
    assert call("ADD", TWO, args="IP=10.9.0.1/24")["ips"][2] == {"address": "10.9.0.1/24"}
    conf = {"cniVersion": "1.0.0", "name": "net", "ipam": TWO, "args": args}
    req = Request(Mode(), command="ADD", conf=conf, name="net", version="1.0.0", args="IP=10.9.0.1/24")
    assert static.add(req, static.read(req), None)["ips"] == [{"address": "10.3.0.7/24"}]
    assert call("ADD", TWO, runtimeConfig={"ips": ["10.4.0.7/24", "fd00::9/64"]})["ips"] == \
        [{"address": "10.4.0.7/24"}, {"address": "fd00::9/64"}]
    assert len(call("ADD", TWO, runtimeConfig={"ips": []})["ips"]) == 2


@pytest.mark.parametrize("ipam, more, code, text", [
    ({"addresses": [{"address": "10.1.0.5"}]}, {}, 7,
     "the 'address' field is expected to be in CIDR notation, got: '10.1.0.5'"),
    ({"addresses": [{"gateway": "10.1.0.1"}]}, {}, 7,
     "the 'address' field is expected to be in CIDR notation, got: ''"),
    ({}, {"args": "IP=10.1.0.5"}, 4, "the 'ip' field is expected to be in CIDR notation, got: '10.1.0.5'"),
    ({}, {"args": "IP=10.1.0.5/24,"}, 4, "the 'ip' field is expected to be in CIDR notation, got: ''"),
    ({}, {"args": "IP=10.1.0.5/24;GATEWAY=10.1.0.1/24"}, 4, "invalid gateway address: 10.1.0.1/24"),
    ({}, {"runtimeConfig": {"ips": ["10.1.0.5"]}}, 7,
     "an entry in the 'ips' field is NOT in CIDR notation, got: '10.1.0.5'"),
    (None, {}, 7, "IPAM config missing 'ipam' key"),
    ({"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.2.0.5/24"}]}, {"version": "0.2.0"}, 7,
     "CNI version 0.2.0 does not support more than 1 address per family"),
])
def test_bad_input_is_refused_with_the_text_of_the_reference(ipam, more, code, text):
    for command in ("ADD", "CHECK"):
        e = refused(command, ipam, **more)
        assert (e.code, e.msg) == (code, text)
    assert call("DEL", ipam, **more) is None


def test_a_bad_gateway_is_named():
    e = refused("ADD", {"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]})
    assert e.code == 7
    assert "ipam.addresses[0].gateway" in str(e)
    assert "invalid IP address: x" in str(e)


def test_check_compares_the_gateways_of_the_addresses_that_are_there():
    def previous(*ips):
        return {"cniVersion": "1.0.0", "ips": list(ips)}

    assert refused("CHECK", TWO).msg == "Required prevResult missing"
    call("CHECK", TWO, prevResult=previous({"address": "10.1.0.5/24", "gateway": "10.1.0.1"}))
    call("CHECK", TWO, prevResult=previous({"address": "10.7.0.5/24", "gateway": "10.7.0.1"}))
    call("CHECK", TWO, prevResult=previous({"address": "fd00::5/64", "gateway": "fd00::1"}))
    for wrong in ({"gateway": "10.1.0.2"}, {}):
        e = refused("CHECK", TWO, prevResult=previous({"address": "10.1.0.5/24"} | wrong))
        assert e.msg == "static: Failed to match addr 10.1.0.5 on interface eth0"


def test_del_does_not_read_the_configuration():
    assert call("DEL", {"addresses": "nonsense"}, args="=;=") is None
