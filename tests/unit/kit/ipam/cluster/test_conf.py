"""Configuration keys of cluster-wide addresses: ranges as whereabouts reads them, whereabouts' flat file, and
warnings."""

import json

import pytest
from unit.kit.ipam.cluster.node import Node

from fastcni.kit.ipam.cluster import conf, flat_file, grid
from fastcni.kit.ipam.cluster.requested import lenient
from fastcni.spec import address
from fastcni.spec.errors import CniError


@pytest.fixture
def a(tmp_path):
    return Node(tmp_path, "a")


def keys_of(node, ipam, **top):
    return conf.keys_for(node.request("ADD", ipam, **top))


def the_range(node, ipam):
    (one,) = keys_of(node, ipam).ranges
    return one


def bounds(one):
    return [grid.ip_text(one.bits, one.first), grid.ip_text(one.bits, one.last)]


# -- ranges ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ipam, first, last", [
    ({"range": "10.0.0.0/24"}, "10.0.0.1", "10.0.0.254"),
    ({"range": "10.0.0.77/24"}, "10.0.0.1", "10.0.0.254"),
    ({"range": "010.000.0.0/24"}, "10.0.0.1", "10.0.0.254"),
    ({"range": "192.168.2.225-192.168.2.230/28"}, "192.168.2.225", "192.168.2.230"),
    ({"range": "192.168.2.224-192.168.2.239/28"}, "192.168.2.225", "192.168.2.238"),
    ({"range": "192.168.2.225 - 192.168.2.230/28"}, "192.168.2.225", "192.168.2.230"),
    ({"range": "10.0.0.0/24", "range_start": "10.0.0.5", "range_end": "10.0.0.9"}, "10.0.0.5", "10.0.0.9"),
    ({"range": "10.0.0.0/24", "range_start": "10.0.0.005"}, "10.0.0.5", "10.0.0.254"),
    ({"range": "10.0.0.0/31"}, "10.0.0.0", "10.0.0.1"),
    ({"range": "10.0.0.7/32"}, "10.0.0.7", "10.0.0.7"),
    ({"range": "fd00::/64"}, "fd00::1", "fd00::ffff:ffff:ffff:fffe"),
    ({"range": "fd00::/127"}, "fd00::", "fd00::1"),
    ({"range": "fd00::5/128"}, "fd00::5", "fd00::5"),
    ({"range": "fd00::5-fd00::9/112"}, "fd00::5", "fd00::9"),
])
def test_the_bounds_of_a_range(a, ipam, first, last):
    assert bounds(the_range(a, ipam)) == [first, last]


@pytest.mark.parametrize("ipam, text", [
    ({"range": "10.0.0.0"}, "ipam.range: invalid CIDR address: 10.0.0.0"),
    ({"range": "nonsense"}, "invalid CIDR address: nonsense"),
    ({"range": "10.9.0.1-10.0.0.9/24"}, "its first address is not in 10.0.0.9/24"),
    ({"range": "10.0.0.9-10.0.0.3/24"}, "no address between its bounds"),
    ({"range": "10.0.0.0/30", "exclude": ["10.0.0.0/24"]}, "nothing is left of 10.0.0.0/30"),
    ({"range": "10.0.0.0/24", "exclude": ["10.0.0.x"]}, "ipam.exclude[0]: invalid IP address"),
    ({"range": "10.0.0.0/24", "range_start": "x"}, "ipam.range_start: invalid IP address"),
    ({"ipRanges": [{"gateway": "10.0.0.1"}]}, "ipam.ipRanges[0].range: missing"),
    ({"range": "10.0.0.0/24", "block_size": 8}, "ipam.block_size: expected 16 to 30"),
    ({"range": "10.0.0.0/24", "block_size": 31}, "or 32 for single addresses"),
    ({"range": "10.0.0.0/24", "node_slice_size": "x"}, "ipam.node_slice_size: expected a prefix length"),
    ({"range": "10.0.0.0/24", "sticky": "node"}, 'ipam.sticky: expected "pod"'),
    ({"range": "10.0.0.0/24", "network_name": "a/b"}, "ipam.network_name: expected letters"),
    ({"range": "10.0.0.0/24", "dataDir": "here"}, "ipam.dataDir: expected an absolute path"),
    ({"range": "10.0.0.0/24", "addresses": [{"address": "10.0.0.1"}]}, "ipam.addresses[0].address: expected CIDR"),
    ({"range": "10.0.0.0/24", "store": {"type": "zoo"}}, "ipam.store.type: expected one of etcd, kubernetes, local"),
    ({"range": "10.0.0.0/24", "store": {"type": "etcd"}}, "ipam.store.endpoints: missing"),
    ({"range": "10.0.0.0/24", "store": {"type": "local", "path": "x"}}, "ipam.store.path: expected an absolute path"),
])
def test_a_bad_key_is_refused_by_name(a, ipam, text):
    with pytest.raises(CniError) as e:
        keys_of(a, ipam)
    assert e.value.code == 7 and text in e.value.msg


def test_a_bound_outside_of_its_range_is_ignored_with_a_warning(a):
    keys = keys_of(a, {"range": "10.0.0.0/24", "range_start": "10.9.0.1"})
    assert bounds(keys.ranges[0]) == ["10.0.0.1", "10.0.0.254"]
    assert keys.warnings == ["ipam.range_start is ignored: it is not in 10.0.0.0/24"]


def test_the_gateway_is_not_given_unless_it_is_asked_for(a):
    assert not the_range(a, {"range": "10.0.0.0/24", "gateway": "10.0.0.1"}).has(0x0A000001)
    assert the_range(a, {"range": "10.0.0.0/24", "gateway": "10.0.0.1", "exclude_gateway": False}).has(0x0A000001)


def test_excluded_spans_are_cut_out(a):
    one = the_range(a, {"range": "10.0.0.0/28", "exclude": ["10.0.0.4/30", "10.0.0.12", "10.0.0.5/32", "fd00::/8"]})
    assert one.spans == ((0x0A000001, 0x0A000003), (0x0A000008, 0x0A00000B), (0x0A00000D, 0x0A00000E))
    assert one.size() == 9


def test_range_comes_before_ip_ranges(a):
    keys = keys_of(a, {"range": "10.1.0.0/24", "ipRanges": [{"range": "10.2.0.0/24"}, {"range": "fd00::/64"}]})
    assert [str(one) for one in keys.ranges] == ["10.1.0.0/24", "10.2.0.0/24", "fd00::/64"]


def test_old_versions_have_one_address_of_a_family(a):
    ipam = {"ipRanges": [{"range": "10.1.0.0/24"}, {"range": "10.2.0.0/24"}]}
    with pytest.raises(CniError, match="does not support more than 1 address per family"):
        keys_of(a, ipam, cniVersion="0.2.0")
    ipam = {"ipRanges": [{"range": "10.1.0.0/24"}, {"range": "fd00::/64"}]}
    assert len(keys_of(a, ipam, cniVersion="0.2.0").ranges) == 2


# -- blocks ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("range_, prefix, tiny", [
    ("10.0.0.0/8", 26, False), ("10.0.0.0/22", 26, False), ("10.0.0.0/23", 27, False), ("10.0.0.0/24", 28, False),
    ("10.0.0.0/25", 29, False), ("10.0.0.0/26", 26, True), ("10.0.0.0/30", 26, True), ("10.0.0.7/32", 26, True),
    ("fd00::/48", 122, False), ("fd00::/64", 122, False), ("fd00::/120", 124, False), ("fd00::/127", 122, True)])
def test_small_ranges_have_small_blocks_and_tiny_ones_none(a, range_, prefix, tiny):
    one = the_range(a, {"range": range_})
    assert one.wanted_prefix() == prefix
    assert one.is_tiny(prefix) is tiny


@pytest.mark.parametrize("ipam, prefix", [
    ({"block_size": 28}, 28), ({"node_slice_size": "/22"}, 22), ({"node_slice_size": "27"}, 27),
    ({"node_slice_size": "/8"}, 16), ({"block_size": 29, "node_slice_size": "/22"}, 29)])
def test_block_size_and_node_slice_size_choose_the_blocks(a, ipam, prefix):
    assert the_range(a, {"range": "10.0.0.0/12"} | ipam).wanted_prefix() == prefix


def test_a_block_is_not_larger_than_its_range(a):
    assert the_range(a, {"range": "10.0.0.0/24", "node_slice_size": "/22"}).wanted_prefix() == 24


def test_block_size_32_claims_each_address_by_itself(a):
    one = the_range(a, {"range": "10.0.0.0/16", "block_size": 32})
    assert one.wanted_prefix() == 26 and one.is_tiny(26)


# -- keys of whereabouts ----------------------------------------------------------------------------------------

def test_each_key_without_a_meaning_is_one_warning(a):
    keys = keys_of(a, {"range": "10.0.0.0/24", **dict.fromkeys(conf.IGNORED, "x"), "enable_overlapping_ranges": False})
    assert len(keys.warnings) == len(conf.IGNORED) + 1
    for key in (*conf.IGNORED, "enable_overlapping_ranges"):
        assert sum(text.startswith(f"ipam.{key} is ignored: ") for text in keys.warnings) == 1
    a.call("ADD", {"range": "10.0.0.0/24", "log_file": "/x"})
    a.call("DEL", {"range": "10.0.0.0/24", "log_file": "/x"})
    assert [text for text in a.warnings if "log_file" in text] == a.warnings and len(a.warnings) == 1


def test_the_store_is_kubernetes_with_whereabouts_key_and_else_local(a):
    ipam = a.conf({})["ipam"]
    del ipam["store"]
    a.conf = lambda more, **top: {"cniVersion": "1.0.0", "name": "net", "ipam": ipam | more}
    assert keys_of(a, {"range": "10.0.0.0/24"}).store == {"type": "local", "path": "/var/lib/cni/cluster-store"}
    kubernetes = {"kubeconfig": "/etc/x", "k8s_api_root": "https://h"}
    assert keys_of(a, {"range": "10.0.0.0/24", "kubernetes": kubernetes}).store == {"type": "kubernetes"} | kubernetes


@pytest.fixture
def flat(tmp_path, monkeypatch):
    """Return a function that writes whereabouts' flat file."""
    monkeypatch.setattr(flat_file, "PATHS", (str(tmp_path / "whereabouts.d/whereabouts.conf"),))
    monkeypatch.setattr(conf, "FLAT_S", 0.0)
    (tmp_path / "whereabouts.d").mkdir()

    def write(document):
        (tmp_path / "whereabouts.d/whereabouts.conf").write_text(
            document if isinstance(document, str) else json.dumps(document))
    return write


def test_the_flat_file_is_the_base_and_the_networks_keys_win(a, flat):
    flat({"range": "10.5.0.0/24", "gateway": "10.5.0.1", "cool_down": 7, "enable_overlapping_ranges": False})
    keys = keys_of(a, {"range": "10.6.0.0/24", "gateway": ""})
    assert [str(one) for one in keys.ranges] == ["10.6.0.0/24"]
    assert (keys.cool_down, keys.warnings) == (7, [])
    assert str(keys_of(a, {}).ranges[0]) == "10.5.0.0/24"
    a.call("DEL", {})


@pytest.mark.parametrize("key, flat_value, own", [
    ("cool_down", 7, 0), ("serve_after_loss", 7, 0), ("fsync", True, False), ("exclude_gateway", True, False)])
def test_a_networks_own_0_and_false_win(a, flat, key, flat_value, own):
    """Once, the values 0 and false counted as absent. With exclude_gateway in the flat file, no network could give its
    gateway's address to a pod."""
    flat({key: flat_value})
    ipam = {"range": "10.5.0.0/24", "gateway": "10.5.0.1"}
    base, keys = keys_of(a, ipam), keys_of(a, ipam | {key: own})
    if key == "exclude_gateway":
        assert (base.ranges[0].has(0x0A050001), keys.ranges[0].has(0x0A050001)) == (False, True)
    else:
        assert (getattr(base, key), getattr(keys, key)) == (flat_value, own)


def test_a_flat_file_that_changes_counts(a, flat):
    flat({"range": "10.5.0.0/24"})
    req = a.request("ADD", {})
    assert str(conf.keys_for(req).ranges[0]) == "10.5.0.0/24"
    flat({"range": "10.55.0.0/24"})
    assert str(conf.keys_for(req).ranges[0]) == "10.55.0.0/24"


def test_configuration_path_is_first_and_may_be_a_directory_with_nodename(a, flat, tmp_path):
    flat({"range": "10.5.0.0/24"})
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "nodename").write_text("worker-7\n")
    ipam = {"configuration_path": str(directory), "node_name": ""}
    assert keys_of(a, ipam).node == "worker-7"
    assert str(keys_of(a, ipam).ranges[0]) == "10.5.0.0/24"
    (directory / "whereabouts.conf").write_text('{"range": "10.7.0.0/24"}')
    assert str(keys_of(a, ipam).ranges[0]) == "10.7.0.0/24"
    ipam["configuration_path"] = str(directory / "whereabouts.conf")
    assert (keys_of(a, ipam).node, str(keys_of(a, ipam).ranges[0])) == ("worker-7", "10.7.0.0/24")


@pytest.mark.parametrize("content, text", [("{", "whereabouts.conf: unexpected end"), ("[]", "expected an object")])
def test_a_bad_flat_file_is_named(a, flat, content, text):
    flat(content)
    with pytest.raises(CniError) as e:
        keys_of(a, {"range": "10.0.0.0/24"})
    assert e.value.code == 7 and text in e.value.msg


@pytest.mark.parametrize("text, plain", [
    ("010.001.000.09", "10.1.0.9"), ("10.0.0.1", "10.0.0.1"), ("000.0.0.0/08", "0.0.0.0/08"),
    ("::ffff:010.0.0.1", "::ffff:10.0.0.1"), ("fd00::0", "fd00::0"), ("10..0.1", "10..0.1")])
def test_leading_zeros(text, plain):
    assert lenient(text) == plain


# -- block sizes ------------------------------------------------------------------------------------------------------

def test_blocks_of_overlapping_ranges_are_the_same():
    first = grid.block_of(address.read_ip("10.0.0.77"), 28)
    assert first == "10.0.0.64/28" == grid.cidr_text(*[*grid.read_block("10.0.0.77/28")][:2], 28)
    assert grid.block_of(address.read_ip("fd00::ffff:ffff:ffff:fffe"), 122) == "fd00::ffff:ffff:ffff:ffc0/122"


def test_spans_of_a_block_are_those_of_the_range():
    one = grid.make_range(32, 0, 0, (5, 90), [(20, 30), (60, 70)])
    assert list(one.inside(0, 26)) == [(5, 19), (31, 59)]
    assert list(one.inside(64, 26)) == [(71, 90)]
    assert list(one.inside(128, 26)) == []


def test_overlapping_and_adjacent_spans_are_one_span():
    assert grid.merged([(0, 3), (3, 5), (6, 7), (9, 9)]) == [[0, 7], [9, 9]]
