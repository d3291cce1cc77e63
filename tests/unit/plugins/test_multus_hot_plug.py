"""After a change of the annotation, handle.update() attaches networks to a running pod and detaches networks."""

import json
from pathlib import Path

import pytest
from lab.networks import NETWORKS, conf_dir, define, elements, held, kept, make_stubborn, multus, network
from lab.node import addresses, cid_of, links, routes

from fastcni.handle import update
from fastcni.kit.networks.state import STANDING
from fastcni.runtime.mode import InProcessMode

ARGS = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"}


@pytest.fixture
def conf(node):
    """Return a function conf(annotation, **keys). Its configurations have the first network a, and definitions of a to
    d are in files."""
    define(node, *(network(node, letter) for letter in "abcd"))
    return lambda text="", **keys: multus(node, annotations={NETWORKS: text}, **{"clusterNetwork": "a", **keys})


def changed(conf, pod, cid=None):
    """Change a running pod's networks by handle.update(). Return the error document, or None."""
    reply = update("multus", {"CNI_CONTAINERID": cid or cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
                              "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", **ARGS}, json.dumps(conf).encode(),
                   InProcessMode())
    return json.loads(reply.stdout) if reply.status else None


def default_routes(pod):
    return [(it["dev"], it["gateway"]) for it in routes(pod).values() if it["dst"] == "default"]


def names(pod):
    return list(links(pod))


def test_networks_come_and_leave_and_the_others_keep_their_links(node, pod, conf):
    node.add(conf("b"), pod, env=ARGS)
    index = links(pod)["net1"]["ifindex"]
    assert changed(conf("b,c,d@bak0"), pod) is None
    assert names(pod) == ["lo", "eth0", "net1", "net2", "bak0"]
    assert [addresses(name, pod) for name in ("net2", "bak0")] == [["10.1.3.2/24"], ["10.1.4.2/24"]]
    assert [it["Name"] for it in elements(node, pod)] == ["a", "shop/b", "shop/c", "shop/d"]
    assert changed(conf("b, d@bak0"), pod) is None
    assert (names(pod), held(node, *"abcd")) == (["lo", "eth0", "net1", "bak0"], [1, 1, 0, 1])
    assert links(pod)["net1"]["ifindex"] == index
    node.check(conf(), pod, {})
    node.delete(conf(), pod)
    assert (names(pod), held(node, *"abcd"), kept(node)) == (["lo"], [0, 0, 0, 0], [])


def test_an_unchanged_annotation_changes_nothing(node, pod, conf):
    node.add(conf("b,c"), pod, env=ARGS)
    before = kept(node), links(pod)
    assert changed(conf('[{"name": "b"}, {"name": "c"}]'), pod) is None
    assert (kept(node), links(pod)) == before


def test_a_network_without_an_interface_in_the_annotation_keeps_its_own(node, pod, conf):
    """The networks' positions in the annotation change. If another network has the interface name of a new network's
    position, the new network gets the first free name."""
    node.add(conf("b,c"), pod, env=ARGS)
    assert changed(conf("c,d"), pod) is None
    assert [(it["Name"], it.get("ifnameRequest")) for it in elements(node, pod)] == [
        ("a", None), ("shop/c", "net2"), ("shop/d", "net1")]
    assert changed(conf("d,c"), pod) is None
    assert (addresses("net2", pod), addresses("net1", pod)) == (["10.1.3.2/24"], ["10.1.4.2/24"])


def test_a_network_takes_the_interface_of_one_that_leaves(node, pod, conf):
    node.add(conf("b@x0"), pod, env=ARGS)
    assert changed(conf("c@x0"), pod) is None
    assert (addresses("x0", pod), held(node, *"bc")) == (["10.1.3.2/24"], [0, 1])


def test_networks_of_the_configuration_stay(node, pod, conf):
    """The pod's list marks these networks, so they stay even if the configuration changes."""
    node.add(conf("c", defaultNetworks=["b"]), pod, env=ARGS)
    assert [it.get(STANDING) for it in elements(node, pod)] == [None, True, None]
    assert changed(conf(""), pod) is None
    assert names(pod) == ["lo", "eth0", "net1"]
    assert changed(conf("d"), pod) is None
    assert names(pod) == ["lo", "eth0", "net1", "net2"]


def test_default_networks_of_a_pod_that_multus_added_stay(node, pod, conf):
    node.add(conf("c", defaultNetworks=["b"]), pod, env=ARGS)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.write_text(json.dumps([{key: value for key, value in it.items() if key != STANDING}
                                for it in json.loads(path.read_text())]))
    assert changed(conf("", defaultNetworks=["b"]), pod) is None
    assert names(pod) == ["lo", "eth0", "net1"]


def test_networks_of_cni_args_stay(node, pod, conf):
    node.add(conf(), pod, env={"CNI_ARGS": f"{ARGS['CNI_ARGS']};FASTCNI_NETWORKS=b"})
    assert changed(conf("c"), pod) is None
    assert names(pod) == ["lo", "eth0", "net1", "net2"]


@pytest.mark.parametrize("text, why", [("b,lost", 'no network "shop/lost"'), ("b,", 'name string "" must'),
                                       ("c@net1", 'have the interface "net1"')])
def test_a_bad_annotation_is_refused_before_anything_changes(node, pod, conf, text, why):
    node.add(conf("b", defaultNetworks=["d"] if "@" in text else []), pod, env=ARGS)
    before = names(pod), elements(node, pod)
    assert why in changed(conf(text), pod)["msg"]
    assert (names(pod), elements(node, pod)) == before


def test_a_network_that_fails_is_rolled_back_and_can_be_tried_again(node, pod, conf):
    """The networks before the failed network stay attached."""
    node.add(conf(), pod, env=ARGS)
    define(node, network(node, "d", type="macvlan", master="late0"))
    error = changed(conf("b,d,c"), pod)
    assert error["msg"].startswith('network "shop/d" (net2) failed (add): ')
    assert (names(pod), held(node, *"bcd")) == (["lo", "eth0", "net1"], [1, 0, 0])
    assert [it["Name"] for it in elements(node, pod)] == ["a", "shop/b"]
    define(node, network(node, "d"))
    assert changed(conf("b,d,c"), pod) is None
    assert names(pod) == ["lo", "eth0", "net1", "net2", "net3"]


def test_a_network_whose_rollback_fails_stays_in_the_list_and_is_added_again(node, pod, conf, tmp_path):
    """Once, the list no longer named the network. A plugin that had rejected its DEL got no further DEL."""
    make_stubborn(tmp_path)
    both = {"cniVersion": "1.1.0", "name": "d", "plugins": [{"type": "stubborn"}, network(node, "d")]}
    (conf_dir(node) / "d.conf").unlink()
    define(node, both)
    node.add(conf(), pod, env=ARGS)
    error = changed(conf('[{"name": "d", "default-route": ["10.55.0.1"]}]', binDir=str(tmp_path)), pod)
    assert ("default route" in error["msg"], "not now" in error["details"]) == (True, True), error
    assert (names(pod), [it["Name"] for it in elements(node, pod)]) == (["lo", "eth0"], ["a", "shop/d"])
    (tmp_path / "refuses").unlink()
    assert changed(conf("d", binDir=str(tmp_path)), pod) is None
    assert (tmp_path / "calls").read_text().split() == ["ADD", "DEL", "DEL", "ADD"]
    assert (names(pod), held(node, "d")) == (["lo", "eth0", "net1"], [1])


def test_a_network_that_was_not_added_completely_is_added_again(node, pod, conf):
    """The process was killed after it had written the list of networks, and before the network's result."""
    node.add(conf("b,c"), pod, env=ARGS)
    result, = Path(node.data_dir, "multus", "results").glob("c-*")
    result.unlink()
    index = links(pod)["net2"]["ifindex"]
    assert changed(conf("b,c"), pod) is None
    assert links(pod)["net2"]["ifindex"] != index
    assert (addresses("net2", pod), held(node, "c"), result.exists()) == (["10.1.3.3/24"], [1], True)


def test_a_pod_whose_del_has_come_gets_no_network(node, pod, conf):
    node.add(conf("b"), pod, env=ARGS)
    node.delete(conf(), pod)
    assert changed(conf("b,c"), pod) is None
    assert (names(pod), kept(node)) == (["lo"], [])


def test_a_damaged_list_of_networks_changes_nothing(node, pod, conf):
    node.add(conf("b"), pod, env=ARGS)
    Path(node.data_dir, "multus", cid_of(pod)).write_text("[{")
    assert "is damaged" in changed(conf(""), pod)["msg"]
    assert names(pod) == ["lo", "eth0", "net1"]
    node.delete(conf(), pod)
    assert (names(pod), held(node, *"ab")) == (["lo"], [0, 0])


def test_a_file_that_a_killed_process_has_left_goes_with_the_pod(node, pod, conf):
    node.add(conf("b"), pod, env=ARGS)
    Path(node.data_dir, "multus", f"{cid_of(pod)}.new").write_text("[{")
    node.delete(conf(), pod)
    assert kept(node) == []


def test_a_default_route_is_of_the_network_that_comes(node, pod, conf):
    define(node, network(node, "a", isGateway=True, ipam=node.host_local("10.1.1.0/24") | {
        "routes": [{"dst": "0.0.0.0/0"}]}))
    node.add(conf(), pod, env=ARGS)
    assert default_routes(pod) == [("eth0", "10.1.1.1")]
    assert changed(conf('[{"name": "b", "default-route": ["10.1.2.1"]}]'), pod) is None
    assert default_routes(pod) == [("net1", "10.1.2.1")]
    node.check(conf(), pod, {})
