"""podman's networks as CNI lists, the command `create`, and answers in netavark's protocol."""

import json

import pytest

from fastcni.kit.podman import create, network
from fastcni.spec import netavark
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

pytestmark = pytest.mark.usefixtures("fake_sockets")
NETWORK = {"name": "net", "id": "2f259bab93aa", "driver": "fastcni", "network_interface": "podman1",
           "subnets": [{"subnet": "10.1.0.0/16", "gateway": "10.1.0.1"}], "ipam_options": {"driver": "host-local"}}


def made(own=None, container=None, **keys):
    """Return the plugins of a container's CNI list, and the capability arguments."""
    document = {"network": {**NETWORK, **keys}, "network_options": {
        "interface_name": "eth0", "static_ips": ["10.1.0.5"], **(own or {})}, **(container or {})}
    found = network.read_setup(Section(document))
    return found.document["plugins"], found.capability_args


def completed(**keys):
    document, warnings = create.complete(json.dumps({**NETWORK, **keys}).encode())
    return json.loads(document), warnings


def test_the_list_is_that_of_podmans_own_cni_network():
    plugins, args = made({"static_mac": "0a:00:00:00:00:01"}, {"port_mappings": [
        {"container_port": 80, "host_port": 8080, "protocol": "", "range": 0, "host_ip": ""}]})
    assert plugins == [
        {"type": "bridge", "bridge": "podman1", "hairpinMode": True, "ipMasq": True, "isGateway": True,
         "isDefaultGateway": True, "capabilities": {"mac": True},
         "ipam": {"type": "static", "routes": [], "addresses": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}}, {"type": "firewall"},
        {"type": "tuning", "sysctl": {"net/ipv4/conf/eth0/rp_filter": "2"}}]
    assert args == {"mac": "0a:00:00:00:00:01",
                    "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}


def test_options_become_keys_of_the_plugins():
    plugins, _ = made(options={"mtu": "1400", "vlan": "7", "isolate": "true", "no_default_route": "1"})
    assert (plugins[0]["mtu"], plugins[0]["vlan"], plugins[0]["isDefaultGateway"]) == (1400, 7, False)
    assert plugins[2] == {"type": "firewall", "ingressPolicy": "same-bridge"}


def test_a_network_without_ipam_is_a_bridge_alone():
    plugins, _ = made({"static_ips": None}, subnets=[], ipam_options={"driver": "none"})
    assert [plugin["type"] for plugin in plugins] == ["bridge", "tuning"]
    assert "ipam" not in plugins[0] and not plugins[0]["ipMasq"]


@pytest.mark.parametrize("keys, said", [
    ({"options": {"isolate": "strict"}}, "isolate=strict"), ({"options": {"metric": "5"}}, "the option metric"),
    ({"options": {"mtu": "x"}}, "mtu: expected a number up to 65535"),
    ({"options": {"vlan": "4095"}}, "vlan: expected a number up to 4094"),
    ({"options": {"isolate": "perhaps"}}, "isolate: expected true or false"),
    ({"options": {"conflist": "../x"}}, "invalid characters"), ({"options": {"mtu": 5}}, "expected a string"),
    ({"options": {"conflist": "x", "mtu": "1400"}}, "mtu together with conflist"),
    ({"options": {"conflist": "x"}}, 'no network list "x" in /nowhere'),
    ({"ipam_options": {"driver": "dhcp"}}, "the IPAM driver"), ({"network_interface": "a/b"}, "name contains /"),
    ({"subnets": []}, "--subnet 10.89"), ({"ipv6_enabled": True}, "--subnet fd00"),
    ({"subnets": [{"subnet": "10.1/8"}]}, "invalid CIDR address"),
    ({"routes": [{"destination": "10.2.0.0/16", "route_type": "blackhole"}]}, "a route of the type blackhole"),
])
def test_create_refuses_what_fastcni_cannot_do(monkeypatch, keys, said):
    monkeypatch.setattr(network, "CONF_DIR", "/nowhere")
    with pytest.raises(CniError) as caught:
        completed(**keys)
    assert said in str(caught.value)


@pytest.mark.parametrize("options, container, said", [
    ({"static_ips": []}, {}, "podman has given no address"), ({"static_ips": ["10.2.0.1"]}, {}, "in no subnet"),
    ({"static_ips": ["x"]}, {}, "invalid IP address"), ({"options": {"host_interface_name": "x"}}, {}, "host_inter"),
    ({}, {"port_mappings": [{"container_port": 65535, "host_port": 1, "range": 2}]}, "a port would be above 65535"),
    ({}, {"port_mappings": [{"container_port": 0, "host_port": 1}]}, "container_port: expected an integer from 1"),
])
def test_setup_refuses_what_fastcni_cannot_do(options, container, said):
    with pytest.raises(CniError) as caught:
        made(options, container)
    assert said in str(caught.value)


def test_create_completes_the_network():
    found, warnings = completed(network_interface="", dns_enabled=True, ipam_options=None, labels={"a": "b"})
    assert found == {**NETWORK, "network_interface": "podman-2f259bab", "dns_enabled": False, "labels": {"a": "b"}}
    assert len(warnings) == 1 and "no DNS" in warnings[0]
    assert completed() == (NETWORK, [])


def test_the_list_of_a_network_may_be_fused(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "CONF_DIR", str(tmp_path))
    fused = {"name": "mine", "plugins": [{"type": "chain", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}]}
    (tmp_path / "a.conflist").write_text(json.dumps(fused))
    assert made(options={"conflist": "mine"})[0] == [{"type": "bridge"}, {"type": "portmap"}]
    (tmp_path / "a.conflist").write_text('{"name": "mine", "plugins": []}')
    with pytest.raises(CniError, match=r"a\.conflist has no list of plugins"):
        made(options={"conflist": "mine"})


def test_create_leaves_addresses_to_the_ipam_of_a_list_of_ones_own(monkeypatch, tmp_path):
    monkeypatch.setattr(network, "CONF_DIR", str(tmp_path))
    (tmp_path / "a.conflist").write_text('{"name": "mine", "plugins": [{"type": "bridge"}]}')
    found, _ = completed(subnets=[], options={"conflist": "mine"})
    assert found["ipam_options"] == {"driver": "none"}


@pytest.mark.parametrize("stdin", [b"", b"[]", b"null", b"{", b'{"network": 1}', b'{"container_id": 1}'])
def test_json_that_is_not_podmans_is_refused(stdin):
    with pytest.raises(CniError):
        netavark.as_cni({"CNI_COMMAND": "ADD"}, stdin)


def test_the_name_of_a_network_cannot_add_keys_to_the_configuration():
    """podman's JSON becomes one JSON value of the configuration. Quotes in a network's name add no key."""
    name = 'x","type":"bridge'
    _, stdin = netavark.as_cni({"CNI_COMMAND": "ADD"}, json.dumps({"network": {"name": name}}).encode())
    assert json.loads(stdin) == {"cniVersion": "1.1.0", "name": name, "type": "netavark",
                                 "setup": {"network": {"name": name}}}


def test_answers_have_netavarks_form():
    error = json.dumps({"code": 7, "msg": "no", "details": "why"}).encode()
    assert json.loads(netavark.answer(1, error)) == {"error": "no; why"}
    versions = json.loads(netavark.answer(0, b'{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'))
    assert versions["api_version"] == "1.0.0"
    assert netavark.answer(0, b"") == b""
    result = {"interfaces": [{"name": "br0", "mac": "1"}, {"name": "eth0", "mac": "2", "sandbox": "/x"}],
              "ips": [{"address": "10.1.0.5/16"}], "dns": {"nameservers": ["10.1.0.1"], "search": ["a"]}}
    assert json.loads(netavark.answer(0, json.dumps(result).encode())) == {
        "dns_search_domains": ["a"], "dns_server_ips": ["10.1.0.1"],
        "interfaces": {"eth0": {"mac_address": "2", "subnets": [{"ipnet": "10.1.0.5/16"}]}}}
