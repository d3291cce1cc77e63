"""Bad input gives one error document with the spec's code. Its text names the key and the value, and the node stays
unchanged."""

import json

import pytest
from lab.node import cid_of, ip_json, links, run

from fastcni.kit.call.request import MAX_STDIN_BYTES
from fastcni.plugins import IPAM as IPAM_PLUGINS
from fastcni.plugins import TABLE

BRIDGE, PTP, LOOPBACK, HOST_LOCAL, STATIC = "bridge", "ptp", "loopback", "host-local", "static"
PLUGINS = (BRIDGE, PTP, LOOPBACK, HOST_LOCAL, STATIC)
INVALID_ENVIRONMENT, DECODING_FAILURE, INVALID_CONFIG, INVALID_NETNS = 4, 6, 7, 8


@pytest.fixture(params=PLUGINS)
def conf(node, request):
    """Return a valid configuration of one plugin."""
    if request.param == STATIC:
        return node.conf(type=STATIC, ipam={"type": STATIC, "addresses": [{"address": "10.22.0.9/24"}]})
    return node.conf(type=request.param, ipMasq=True, isGateway=True)


@pytest.fixture
def refuse(node, pod):
    """Return a function that runs an ADD which must fail, and asserts that nothing has changed. It returns (code,
    text)."""
    def refuse(conf, to=pod, **more):
        before = node.left(pod)
        error = node.refused("ADD", conf, to, **more)
        assert node.left(pod) == before, error
        return error["code"], f"{error['msg']}; {error.get('details', '')}"
    return refuse


# -- configurations that every plugin rejects -------------------------------------------------------------------------

MALFORMED = {b"": "unexpected end of JSON input", b"{": "unexpected end of JSON input",
             b"{'name': 1}": "invalid character", b'{"name": "a"} x': "after top-level value",
             b"[]": "error unmarshall network config", b'"a"': "error unmarshall network config",
             b"\xff\xfe": "invalid character", b'{"name": NaN}': "invalid character", b"[" * 100_000: "depth"}


@pytest.mark.parametrize("stdin", MALFORMED, ids=lambda stdin: str(stdin[:12]))
def test_malformed_json_is_refused(refuse, conf, stdin):
    code, msg = refuse(stdin, plugin=conf["type"])
    assert code == DECODING_FAILURE
    assert "error unmarshall network config" in msg
    assert MALFORMED[stdin] in msg


def test_configuration_larger_than_the_limit_is_refused(refuse, conf):
    code, msg = refuse(b" " * (MAX_STDIN_BYTES + 1), plugin=conf["type"])
    assert code == DECODING_FAILURE
    assert str(MAX_STDIN_BYTES) in msg


@pytest.mark.parametrize("version", ["0.5.0", "2.0.0", "1.1", "latest"])
def test_unknown_version_is_refused(refuse, conf, version):
    code, msg = refuse({**conf, "cniVersion": version})
    assert code == 1
    assert "incompatible CNI versions" in msg
    assert f'config is "{version}"' in msg


@pytest.mark.parametrize("key, value, code", [
    ("name", 7, DECODING_FAILURE), ("cniVersion", ["1.1.0"], DECODING_FAILURE),
    ("name", "../../etc", INVALID_CONFIG), ("name", "a/b", INVALID_CONFIG), ("name", "..", INVALID_CONFIG),
    ("name", "", INVALID_CONFIG), ("name", None, INVALID_CONFIG)])
def test_bad_network_name_or_version_is_refused(refuse, conf, key, value, code):
    found, msg = refuse({**conf, key: value})
    assert found == code
    assert "name" in msg or key in msg
    assert value in (None, "", ["1.1.0"], 7) or value in msg


@pytest.mark.parametrize("name", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"])
def test_missing_variable_is_refused(refuse, conf, name):
    code, msg = refuse(conf, env={name: None})
    assert code == INVALID_ENVIRONMENT
    assert f"required env variables [{name}] missing" in msg


BAD_VARIABLES = {("CNI_CONTAINERID", "../x"): "invalid characters in containerID; ../x",
                 ("CNI_CONTAINERID", "a/b"): "invalid characters in containerID; a/b",
                 ("CNI_IFNAME", ".."): "interface name is . or ..",
                 ("CNI_IFNAME", "a/b"): "interface name contains / or : or whitespace characters",
                 ("CNI_IFNAME", "a b"): "interface name contains / or : or whitespace characters",
                 ("CNI_IFNAME", "sixteencharacter"): "interface name is too long",
                 ("CNI_COMMAND", "PLUG"): "unknown CNI_COMMAND: PLUG"}


@pytest.mark.parametrize("name, value", BAD_VARIABLES)
def test_invalid_variable_is_refused(refuse, conf, name, value):
    code, msg = refuse(conf, env={name: value})
    assert code == INVALID_ENVIRONMENT
    assert BAD_VARIABLES[name, value] in msg


def test_network_namespace_of_the_caller_is_refused(refuse, node, conf):
    code, msg = refuse(conf, to=node.name)
    assert code == INVALID_NETNS
    assert "should not be the same" in msg
    code, _ = refuse(conf, to="/proc/thread-self/ns/net")
    assert code == INVALID_NETNS


@pytest.mark.parametrize("plugin", [BRIDGE, PTP, LOOPBACK])
def test_a_netns_that_is_not_a_namespace_is_refused(refuse, node, plugin, tmp_path):
    conf = node.conf(type=plugin, ipMasq=True)
    plain = tmp_path / "file"
    plain.write_text("")
    for path, why in ((tmp_path / "nowhere", "no such file or directory"), (plain, "not a network namespace"),
                      (tmp_path, "not a network namespace"), ("/proc/self/ns/uts", "network namespace")):
        code, msg = refuse(conf, to=str(path))
        assert code == INVALID_NETNS
        assert str(path) in msg
        assert why in msg


# -- keys -------------------------------------------------------------------------------------------------

WRONG = {
    BRIDGE: {"bridge": 7, "isGateway": "yes", "isDefaultGateway": 1, "forceAddress": [], "ipMasq": "true",
             "ipMasqBackend": False, "mtu": "1400", "hairpinMode": {}, "promiscMode": 0, "vlan": "5",
             "vlanTrunk": {"id": 5}, "macspoofchk": "no", "enabledad": 1, "disableContainerInterface": "x",
             "portIsolation": 2, "ipspoofchk": "on", "preserveDefaultVlan": 1,
             "ipam": "host-local", "dns": [], "runtimeConfig": 3, "args": "MAC=x"},
    PTP: {"ipMasq": "true", "ipMasqBackend": 1, "mtu": 1.5, "ipam": [], "dns": "192.0.2.1", "runtimeConfig": "x",
          "enabledad": 1},
}


@pytest.mark.parametrize("plugin, key", [(plugin, key) for plugin, keys in WRONG.items() for key in keys])
def test_wrong_type_names_key_and_value(refuse, node, plugin, key):
    value = WRONG[plugin][key]
    code, msg = refuse(node.conf(type=plugin, **{key: value}))
    shown = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    assert code == INVALID_CONFIG, msg
    assert key in msg, msg
    assert shown in msg, msg


BAD_KEYS = {
    "vlan": (4095, "invalid VLAN ID 4095 (must be between 0 and 4094)"),
    "vlanTrunk": ([{"minID": 5}], "minID and maxID should be configured simultaneously, maxID is missing"),
    "bridge": ("a/b", 'bridge "a/b"'),
    "runtimeConfig": ({"mac": "02:00:00:00:00:0g"}, "02:00:00:00:00:0g: invalid MAC address"),
    "dns": ({"nameservers": "192.0.2.1"}, "192.0.2.1"),
}


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_value_of_a_bridge_key_is_refused(refuse, node, key):
    value, expected = BAD_KEYS[key]
    code, msg = refuse(node.conf(isGateway=True, **{key: value}))
    assert code == INVALID_CONFIG
    assert expected in msg


@pytest.mark.parametrize("plugin", [BRIDGE, PTP])
@pytest.mark.parametrize("mtu", [1, 67, 65536, 1 << 40])
def test_mtu_outside_the_range_of_a_veth_is_refused(refuse, node, plugin, mtu):
    code, msg = refuse(node.conf(type=plugin, mtu=mtu))
    assert code == INVALID_CONFIG
    assert "mtu" in msg
    assert str(mtu) in msg


@pytest.mark.parametrize("keys, expected", [
    ({"hairpinMode": True, "promiscMode": True}, "cannot set hairpin mode and promiscuous mode at the same time"),
    ({"disableContainerInterface": True}, "cannot use IPAM when DisableContainerInterface flag is set")])
def test_keys_that_exclude_each_other_are_refused(refuse, node, keys, expected):
    assert expected in refuse(node.conf(**keys))[1]


@pytest.mark.parametrize("args, expected", [
    ("MAC", 'ARGS: invalid pair "MAC"'), ("MAC=zz", "zz: invalid MAC address"), ("COLOUR=red", "COLOUR=red")])
def test_bad_cni_args_are_refused(refuse, node, args, expected):
    assert expected in refuse(node.conf(), env={"CNI_ARGS": args})[1]


IPAM = {
    "too small": ({"ranges": [[{"subnet": "10.22.0.0/31"}]]}, "10.22.0.0/31 too small to allocate from"),
    "host bits": ({"ranges": [[{"subnet": "10.22.0.5/24"}]]}, "host bits set"),
    "no CIDR": ({"ranges": [[{"subnet": "10.22.0.0"}]]}, "invalid CIDR address: 10.22.0.0"),
    "overlap in a set": ({"ranges": [[{"subnet": "10.22.0.0/16"}, {"subnet": "10.22.7.0/24"}]]}, "overlap"),
    "overlap of sets": ({"ranges": [[{"subnet": "10.22.0.0/16"}], [{"subnet": "10.22.7.0/24"}]]}, "overlaps with"),
    "start outside": ({"ranges": [[{"subnet": "10.22.0.0/24", "rangeStart": "10.23.0.1"}]]}, "10.23.0.1"),
    "families mixed": ({"ranges": [[{"subnet": "10.22.0.0/24"}, {"subnet": "fd00::/64"}]]}, "mixed address families"),
    "no range": ({"ranges": []}, "no IP ranges specified"),
    "bad route": ({"routes": [{"dst": "nowhere"}]}, "nowhere"),
    "ranges no list": ({"ranges": "10.22.0.0/24"}, "10.22.0.0/24"),
    "relative dataDir": ({"dataDir": "var"}, "dataDir"),
}


@pytest.mark.parametrize("plugin", [BRIDGE, PTP, HOST_LOCAL])
@pytest.mark.parametrize("what", IPAM)
def test_bad_ranges_are_refused_by_every_plugin_that_asks_for_an_address(refuse, node, plugin, what):
    keys, expected = IPAM[what]
    code, msg = refuse(node.conf(type=plugin, ipam={**node.host_local(), **keys}, isGateway=True))
    assert code == INVALID_CONFIG, msg
    assert expected in msg, msg


@pytest.mark.parametrize("plugin", [BRIDGE, PTP, HOST_LOCAL])
def test_requested_address_out_of_range_is_refused(refuse, node, plugin):
    conf = node.conf(type=plugin, runtimeConfig={"ips": ["10.99.0.7"]})
    code, msg = refuse(conf)
    assert code == INVALID_CONFIG
    assert "10.99.0.7" in msg
    assert "10.22.0" in msg


@pytest.mark.parametrize("plugin", [BRIDGE, PTP, HOST_LOCAL])
def test_full_range_names_the_network(refuse, node, pod_netns, plugin):
    conf = node.conf("10.22.0.0/30", type=plugin)
    node.add(conf, pod_netns())
    code, msg = refuse(conf)
    assert code == 11
    assert "no IP addresses available in range set" in msg
    assert "10.22.0.0/30" in msg
    assert "net-a" in msg


def test_ipam_plugin_that_does_not_exist(refuse, node):
    _, msg = refuse(node.conf(isGateway=True, ipam={"type": "nosuch"}))
    assert 'failed to find plugin "nosuch" in path [/nowhere]' in msg


@pytest.mark.parametrize("kind", sorted({*TABLE} - {*IPAM_PLUGINS}))
@pytest.mark.parametrize("plugin", [BRIDGE, PTP, "macvlan", "tap"])
def test_an_interface_plugin_as_ipam_type_is_refused_and_ignored_by_del(refuse, node, pod, plugin, kind):
    """Once, bridge called itself until the stack was full, and DEL never succeeded."""
    conf = node.conf(type=plugin, isGateway=True, master="lo", ipam={**node.host_local(), "type": kind})
    code, msg = refuse(conf)
    assert code == INVALID_CONFIG
    assert f'ipam.type: "{kind}" is not an IPAM plugin' in msg
    node.delete(conf, pod)


# -- names that exist already -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("plugin", [BRIDGE, PTP])
def test_interface_name_in_use(refuse, node, pod, plugin):
    conf = node.conf(type=plugin, ipMasq=True, macspoofchk=True)
    node.add(conf, pod)
    _, msg = refuse(conf, cid="another")
    assert 'container veth name ("eth0") peer provided ("veth' in msg
    assert "already exists" in msg
    assert node.held()["10.22.0.2"].startswith(cid_of(pod))


@pytest.mark.parametrize("plugin", [BRIDGE, PTP, HOST_LOCAL])
def test_second_add_fails_and_keeps_the_result_of_the_first(refuse, node, pod, plugin):
    conf = node.conf(type=plugin, ipMasq=True)
    node.add(conf, pod)
    refuse(conf)
    assert len(node.held()) == 1


@pytest.mark.parametrize("kind", ["ifb", "veth", "lo"])
def test_bridge_name_of_another_kind_of_link(refuse, node, kind):
    name = "lo" if kind == "lo" else "other0"
    if kind != "lo":
        run("ip", "link", "add", "name", name, "type", kind)
    before = ip_json("link", "show", "dev", name)
    _, msg = refuse(node.conf(isGateway=True, promiscMode=True, bridge=name))
    assert f'"{name}" already exists but is not a bridge' in msg
    assert ip_json("link", "show", "dev", name) == before
    assert set(links()) >= {name}


# -- DEL --------------------------------------------------------------------------------------------------

def test_del_with_a_configuration_that_cannot_be_read_touches_nothing(node, pod):
    conf = node.conf(isGateway=True)
    node.add(conf, pod)
    before = node.left(pod)
    for ipam in ("host-local", {**conf["ipam"], "type": 7}):
        assert node.refused("DEL", {**conf, "ipam": ipam}, pod)["code"] == INVALID_CONFIG
    assert node.refused("DEL", b"{", pod)["code"] == DECODING_FAILURE
    assert node.left(pod) == before
    node.delete(conf, pod)
