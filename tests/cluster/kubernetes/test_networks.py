"""multus with pods and definitions from the Kubernetes API: its requests, the status that it writes, and an API server
that fails."""

import json
from pathlib import Path

import pytest
from cluster.kubernetes.api_server import documents
from cluster.kubernetes.networks_cluster import DEFINITIONS, NODE, PATCH, args, ready
from lab.networks import FIRST, NETWORKS, define, elements, held, kept, network
from lab.node import addresses, links

from fastcni.clients.errors import Away
from fastcni.kit.networks.api_objects import MIRROR, RESOURCE, ApiObjects
from fastcni.kit.networks.copies import Copies, Stored
from fastcni.testing.witnesses import eventually

# -- one-shot -------------------------------------------------------------------------------------------------------

def test_the_api_names_a_pods_networks_and_gets_their_status(node, pod, cluster, conf):
    cluster.create_pod(**{NETWORKS: "b@foo0,c"})
    result = node.add(conf(), pod, env=args())
    assert [it["address"] for it in result["ips"]] == ["10.1.1.2/24"]
    assert list(links(pod)) == ["lo", "eth0", "foo0", "net2"]
    assert [(it["name"], it["interface"], it["ips"], it.get("default")) for it in cluster.status()] == [
        ("a", "eth0", ["10.1.1.2"], True), ("shop/b", "foo0", ["10.1.2.2"], None),
        ("shop/c", "net2", ["10.1.3.2"], None)]
    assert [it["mac"] for it in cluster.status()] == [links(pod)[it]["address"] for it in ("eth0", "foo0", "net2")]
    assert [method for method, _ in cluster.log()] == ["GET", "GET", "GET", "PATCH"]
    cluster.go()
    node.delete(conf(), pod, env=args())
    assert (held(node, *"abc"), list(links(pod))) == ([0, 0, 0], ["lo"])


def test_the_status_names_the_gateways_of_default_routes_as_that_of_multus(node, pod, cluster, conf):
    """The status had only the gateways of `default-route`, not the gateway of the first network."""
    first = network(node, "a", isDefaultGateway=True)
    for annotation, gateways in (("b", [["10.1.1.1"], None]),
                                 ('[{"name": "b", "default-route": ["10.1.2.1"]}]', [None, ["10.1.2.1"]])):
        cluster.create_pod(**{NETWORKS: annotation})
        asked = conf(delegates=[first])
        node.add(asked, pod, env=args())
        assert [it.get("gateway") for it in cluster.status()] == gateways
        node.delete(asked, pod, env=args())


def test_a_pod_that_names_no_network_needs_no_api(node, pod, cluster, conf):
    cluster.go()
    reply = node.call("ADD", conf({}), pod, env=args())
    assert reply.status == 0
    assert b"network-status of pod shop/web is not written" in reply.stderr


def test_the_manifest_gives_the_rights_that_the_server_needs(pod, cluster, conf, warm):
    rules = documents("networks.yaml")[0]["rules"]
    cluster.mock.do(lambda api: setattr(api, "rules", [{**rule, "namespace": "*"} for rule in rules]))
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, conf())
    warm.ok("ADD", conf(), pod, env=args())
    assert len(cluster.status()) == 2
    asked = {(verb, what) for verb, _, what in cluster.mock.do(lambda api: set(api.asked))}
    asked |= {("get", DEFINITIONS), ("get", "pods")}        # the rights that one-shot requests use
    assert asked == {(verb, what) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


def test_status_is_not_written_for_system_namespaces(node, pod, cluster, conf):
    node.add(conf({}, systemNamespaces=["shop"]), pod, env=args())
    assert cluster.log() == []


@pytest.mark.parametrize("given", [{}, {"io.kubernetes.cri.pod-annotations": {NETWORKS: "c"}}])
def test_annotations_of_the_request_are_used_before_those_of_the_api(node, pod, cluster, conf, given):
    cluster.create_pod(**{NETWORKS: "b"})
    node.add(conf() | {"runtimeConfig": given}, pod, env=args())
    assert addresses("net1", pod) == ["10.1.3.2/24" if given else "10.1.2.2/24"]


@pytest.mark.parametrize("uid, annotations, code", [
    ("uid-1", {}, 0), ("uid-2", {}, 11), ("uid-2", {"kubernetes.io/config.mirror": "uid-2"}, 0)])
def test_a_pod_with_another_uid_is_refused_but_for_static_pods(node, pod, cluster, conf,
                                                               uid, annotations, code):
    cluster.create_pod(**{NETWORKS: "b", **annotations})
    if code:
        error = node.refused("ADD", conf(), pod, env=args(uid))
        assert (error["code"], 'has the uid "uid-1"' in error["msg"]) == (11, True)
        assert (list(links(pod)), kept(node)) == (["lo"], [])
    else:
        node.add(conf(), pod, env=args(uid))
        assert len(cluster.status()) == 2
    node.delete(conf(), pod, env=args(uid))
    assert held(node, *"ab") == [0, 0]


def test_a_pod_that_the_api_does_not_know_is_refused(node, pod, cluster, conf):
    error = node.refused("ADD", conf(), pod, env=args())
    assert (error["code"], error["msg"]) == (11, "the Kubernetes API has no pod shop/web")
    assert kept(node) == []
    node.delete(conf(), pod, env=args())


def test_the_status_of_another_pod_of_that_name_is_not_written(node, pod, cluster, conf):
    cluster.create_pod(uid="uid-2")
    assert node.call("ADD", conf({NETWORKS: "b"}), pod, env=args("uid-1")).status == 0
    assert cluster.log()[-1:] == PATCH
    assert cluster.status() is None


def test_a_definition_without_a_configuration_is_in_a_file(node, pod, cluster, conf):
    define(node, network(node, "c") | {"name": "d"})
    cluster.define(None, name="d")
    cluster.define({key: value for key, value in network(node, "b").items() if key != "name"}, name="e")
    node.add(conf({NETWORKS: "d,e"}), pod, env=args())
    assert [it["Name"] for it in elements(node, pod)] == ["a", "shop/d", "shop/e"]
    assert held(node, "d", "e") == [1, 1]


def test_networks_that_name_a_resource_get_the_pods_devices(node, pod, cluster, conf, tmp_path, monkeypatch):
    """For a static pod, multus asks the kubelet by the uid that the kubelet gave the pod. DEL reads the devices from
    the pod's files."""
    monkeypatch.setattr("fastcni.kit.networks.devices.CHECKPOINT", str(tmp_path / "checkpoint"))
    (tmp_path / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [
        {"PodUID": "uid-2", "ResourceName": "a/x", "DeviceIDs": {"-1": ["dev2", "dev1"]}}]}}))
    (tmp_path / "acme").write_text(f'#!/bin/sh\ncat > {tmp_path}/$CNI_COMMAND-$CNI_IFNAME\n'
                                   'echo \'{"cniVersion": "1.1.0"}\'\n')
    (tmp_path / "acme").chmod(0o755)
    cluster.define({"cniVersion": "1.1.0", "name": "x", "type": "acme"}, annotations={RESOURCE: "a/x"})
    cluster.create_pod(**{NETWORKS: "x,b,x", MIRROR: "uid-2"})
    made = conf(binDir=str(tmp_path))
    node.add(made, pod, env=args("uid-2"))
    node.delete(made, pod, env=args("uid-2"))
    for command in ("ADD", "DEL"):
        found = [json.loads((tmp_path / f"{command}-{name}").read_text()) for name in ("net1", "net3")]
        assert [(it["deviceID"], it["pciBusID"]) for it in found] == [("dev1", "dev1"), ("dev2", "dev2")]


@pytest.mark.parametrize("written_by", ["device plugin", "CNI plugin"])
def test_the_status_has_the_information_of_a_networks_device(node, pod, cluster, conf, tmp_path, monkeypatch,
                                                             written_by):
    """multus copies the device plugin's file, and removes the copy with the pod. The CNI plugin may replace the
    copy."""
    monkeypatch.setattr("fastcni.kit.networks.devices.CHECKPOINT", str(tmp_path / "checkpoint"))
    monkeypatch.setattr("fastcni.kit.networks.device_info.ROOT", str(tmp_path / "devinfo"))
    (tmp_path / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [
        {"PodUID": "uid-1", "ResourceName": "a/x", "DeviceIDs": {"-1": ["0000:01:00.1"]}}]}}))
    info = {"type": "pci", "version": "1.1.0", "pci": {"pci-address": "0000:01:00.1"}}
    (tmp_path / "devinfo" / "dp").mkdir(parents=True)
    (tmp_path / "devinfo" / "dp" / "a-x-0000:01:00.1-device.json").write_text(json.dumps(info))
    change = "" if written_by == "device plugin" else "sed -i s/0000:01/0000:02/ $file; "
    (tmp_path / "acme").write_text(
        f"""#!/bin/sh
cat > {tmp_path}/$CNI_COMMAND
file=$(sed 's/.*CNIDeviceInfoFile": *"//; s/".*//' {tmp_path}/$CNI_COMMAND | grep devinfo)
[ $CNI_COMMAND = ADD ] && {{ cp $file {tmp_path}/seen; {change} }}
echo '{{"cniVersion": "1.1.0", "interfaces": [{{"name": "net1", "sandbox": "/x"}}]}}'
""")
    (tmp_path / "acme").chmod(0o755)
    cluster.define({"cniVersion": "1.1.0", "name": "x", "type": "acme", "capabilities": {"CNIDeviceInfoFile": True}},
                   annotations={RESOURCE: "a/x"})
    cluster.create_pod(**{NETWORKS: "x"})
    made = conf(binDir=str(tmp_path))
    node.add(made, pod, env=args())
    assert json.loads((tmp_path / "seen").read_text()) == info
    if written_by == "CNI plugin":
        info["pci"]["pci-address"] = "0000:02:00.1"
    assert cluster.status()[1]["device-info"] == info
    assert len(list((tmp_path / "devinfo" / "cni").iterdir())) == 1
    node.delete(made, pod, env=args())
    assert list((tmp_path / "devinfo" / "cni").iterdir()) == []


def test_clusternetwork_is_in_the_api_then_in_files(node, pod_netns, cluster, conf):
    """As with Multus, the status names the network by the file's name, or by the name of the API object."""
    define(node, network(node, "c") | {"name": "x"})
    for number, name in ((3, "x"), (2, "kube-system/x")):
        pod = pod_netns()
        cluster.create_pod()
        conf_ = conf({}, clusterNetwork="x")
        del conf_["delegates"]
        assert node.add(conf_, pod, env=args())["ips"][0]["address"].startswith(f"10.1.{number}.")
        assert ([it["name"] for it in cluster.status()], elements(node, pod)[0]["Name"]) == ([name], name)
        cluster.define(network(node, "b") | {"name": "x"}, "kube-system")


def test_the_first_network_by_annotation_is_in_the_api(node, pod, cluster, conf):
    cluster.define(network(node, "c"), "kube-system")
    cluster.create_pod()
    result = node.add(conf({FIRST: "c"}), pod, env=args())
    assert result["ips"][0]["address"] == "10.1.3.2/24"
    assert [(it["name"], it["default"]) for it in cluster.status()] == [("kube-system/c", True)]


@pytest.mark.parametrize("text, why", [("{", "NetworkAttachmentDefinition shop/b: "), ("[]", "expected an object"),
                                       ('{"type": "multus", "name": "b"}', "inside itself")])
def test_a_bad_definition_is_refused_before_anything_is_added(node, pod, cluster, conf, text, why):
    cluster.define(text, name="b")
    before = node.left(pod)
    error = node.refused("ADD", conf({NETWORKS: "c,b"}), pod, env=args())
    assert (error["code"], why in error["msg"]) == (7, True), error
    assert node.left(pod)["links"] == before["links"]


# -- an unavailable API ------------------------------------------------------------------------------------------------

def test_definitions_are_the_last_seen_ones_when_the_api_is_gone(node, pod_netns, cluster, conf):
    first, second = pod_netns(), pod_netns()
    node.add(conf({NETWORKS: "b"}), first, env=args())
    cluster.go()
    reply = node.call("ADD", conf({NETWORKS: "b"}), second, env=args())
    assert (reply.status, addresses("net1", second)) == (0, ["10.1.2.3/24"])
    assert b"network shop/b: using a stored copy of the definition: kubernetes at http://127.0.0.1:" in reply.stderr
    error = node.refused("ADD", conf({NETWORKS: "c"}), pod_netns(), env=args())
    assert error["code"] == 11
    assert 'network "shop/c": kubernetes at http://127.0.0.1:' in error["msg"]
    assert "/multus/definitions/shop/c has no copy" in error["msg"]
    for each in (first, second):
        node.delete(conf({NETWORKS: "b"}), each, env=args())
    assert held(node, *"ab") == [0, 0]


def test_an_error_of_a_network_says_that_its_definition_is_an_old_one(node, pod_netns, cluster, conf):
    cluster.define(network(node, "b", type="macvlan", master="lost0"))
    node.refused("ADD", conf({NETWORKS: "b"}), pod_netns(), env=args())
    cluster.go()
    error = node.refused("ADD", conf({NETWORKS: "b"}), pod_netns(), env=args())
    assert error["msg"].startswith('network "shop/b" (net1) failed (add; its definition is the last seen one: kubern')


def test_a_removed_definition_leaves_no_copy(node, pod_netns, cluster, conf):
    node.add(conf({NETWORKS: "b"}), pod_netns(), env=args())
    cluster.undefine("b")
    error = node.refused("ADD", conf({NETWORKS: "b"}), pod_netns(), env=args())
    assert (error["code"], error["msg"]) == (7, 'no network "shop/b"')
    assert "the Kubernetes API has none" in error["details"]
    cluster.go()
    assert node.refused("ADD", conf({NETWORKS: "b"}), pod_netns(), env=args())["code"] == 11


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"config": "{}"}'])
def test_a_damaged_copy_is_none(tmp_path, content):
    copies = Copies(str(tmp_path))
    copies.keep("shop", "b", Stored("{}"))
    Path(copies.path("shop", "b")).write_bytes(content)
    assert copies.read("shop", "b") is None
    with pytest.raises(Away, match="has no copy of it"):
        ApiObjects("/nowhere", copies).definition("shop", "b")


def test_a_copy_that_cannot_be_written_fails_no_request(node, pod, cluster, conf):
    directory = Path(node.data_dir, "multus", "definitions")
    directory.parent.mkdir(parents=True)
    directory.write_text("")
    node.add(conf({NETWORKS: "b"}), pod, env=args())
    assert addresses("net1", pod) == ["10.1.2.2/24"]


# -- the server --------------------------------------------------------------------------------------------------------

def test_a_warm_add_asks_the_api_only_to_write_the_status(node, pod_netns, cluster, conf, warm):
    cluster.create_pod(**{NETWORKS: "b,c"})
    cluster.create_pod("elsewhere", on="node-2")
    for given in (None, {NETWORKS: "b,c"}):
        source = ready(warm, conf())
        cluster.log()
        pod = pod_netns()
        warm.ok("ADD", conf(given), pod, env=args())
        assert cluster.log() == PATCH
        assert [it["interface"] for it in cluster.status()] == ["eth0", "net1", "net2"]
        warm.ok("DEL", conf(given), pod, env=args())
        assert cluster.log() == []
    assert [*source.pods.found] == [("shop", "web")]


def test_the_server_watches_no_pods_for_annotations_that_come_with_requests(warm, cluster, conf):
    source = ready(warm, conf() | {"capabilities": {"io.kubernetes.cri.pod-annotations": True}})
    assert (source.pods_wanted, len(source.definitions.found)) == (False, 2)


def test_the_server_asks_for_what_the_watch_does_not_have(node, pod, cluster, conf, warm, monkeypatch):
    monkeypatch.setattr("fastcni.server.networks.watched.SEEN_S", 0.1)
    ready(warm, conf())
    cluster.create_pod(on="", **{NETWORKS: "b"})            # the watch does not see this change in time
    warm.ok("ADD", conf(), pod, env=args())
    assert addresses("net1", pod) == ["10.1.2.2/24"]


def test_changes_of_definitions_are_seen(node, pod_netns, cluster, conf, warm):
    source = ready(warm, conf())
    old = pod_netns()
    warm.ok("ADD", conf({NETWORKS: "b"}), old, env=args())
    cluster.define(network(node, "c") | {"name": "b"})
    cluster.undefine("c")
    assert eventually(lambda: ("shop", "c") not in source.definitions.found
                      and "br-c" in source.definitions.found["shop", "b"].config)
    new = pod_netns()
    warm.ok("ADD", conf({NETWORKS: "b"}), new, env=args())
    assert (addresses("net1", old), addresses("net1", new)) == (["10.1.2.2/24"], ["10.1.3.2/24"])
    assert warm.refused("ADD", conf({NETWORKS: "c"}), pod_netns(), env=args())["code"] == 7
    for each in (old, new):
        warm.ok("DEL", conf({NETWORKS: "b"}), each, env=args())
        assert list(links(each)) == ["lo"]
    assert held(node, *"ab") == [0, 0]


def test_the_server_goes_on_with_what_it_has_seen(node, pod_netns, cluster, conf, warm):
    """A definition is removed while the API server is unavailable. The server sees this in its next list."""
    cluster.create_pod(**{NETWORKS: "b"})
    source = ready(warm, conf())
    cluster.go()
    assert eventually(lambda: source.away)
    pods = pod_netns(), pod_netns()
    warm.ok("ADD", conf(), pods[0], env=args())
    assert addresses("net1", pods[0]) == ["10.1.2.2/24"]
    assert source.describe()["statusesUnwritten"] == 1
    cluster.undefine("c")
    cluster.come_back()
    assert eventually(lambda: not source.away)
    source.keep()
    assert (len(cluster.status()), source.describe()["statusesUnwritten"]) == (2, 0)
    assert [*source.definitions.found] == [("shop", "b")]
    assert not Path(node.data_dir, "multus", "definitions", "shop", "c").exists()
    assert warm.lines("networks_watch_lost")
    assert eventually(lambda: warm.lines("networks_watch_restored"))


def test_a_hanging_api_holds_up_no_add(node, pod, cluster, conf, warm):
    """The server writes the pod's status when the API server answers again."""
    cluster.create_pod()
    source = ready(warm, conf() | {"capabilities": {"io.kubernetes.cri.pod-annotations": True}})
    cluster.thawed.clear()
    warm.ok("ADD", conf({NETWORKS: "b"}), pod, env=args())
    assert source.describe()["statusesUnwritten"] == 1
    cluster.thawed.set()

    def written():
        source.keep()
        return cluster.status()

    assert len(eventually(written)) == 2


def test_a_server_that_starts_without_the_api_has_the_copies(node, pod, cluster, conf, warm):
    node.add(conf({NETWORKS: "b"}), pod, env=args())
    node.delete(conf({NETWORKS: "b"}), pod, env=args())
    cluster.go()
    warm.ok("ADD", conf({NETWORKS: "b"}), pod, env=args())
    assert addresses("net1", pod)[0].startswith("10.1.2.")


def test_copies_of_definitions_that_no_longer_exist_go_with_the_first_list(node, cluster, conf, warm):
    copies = Copies(f"{node.data_dir}/multus")
    copies.keep("shop", "gone", Stored("{}"))
    Path(copies.directory, ".new-1-2").touch()
    ready(warm, conf())
    assert eventually(lambda: sorted(copies.names()) == [("shop", "b"), ("shop", "c")])
    assert not Path(copies.directory, ".new-1-2").exists()


def test_a_server_that_cannot_keep_copies_goes_on(node, pod, cluster, conf, warm):
    """If a file was in the place of the directory for copies, the watch ended each second."""
    directory = Path(node.data_dir, "multus", "definitions")
    directory.parent.mkdir(parents=True)
    directory.write_text("")
    ready(warm, conf())
    warm.ok("ADD", conf({NETWORKS: "b"}), pod, env=args())
    assert (addresses("net1", pod), cluster.log()[-1:]) == (["10.1.2.2/24"], PATCH)
    assert eventually(lambda: warm.lines("networks_copies_unreadable"))
    assert not warm.lines("server_fault")


def test_a_killed_server_leaves_definitions_to_one_shot_requests(node, pod_netns, cluster, conf, start,
                                                                 tmp_path):
    server = start(env={"NODE_NAME": NODE})
    first, second = pod_netns(), pod_netns()
    server.ok("ADD", conf({NETWORKS: "b,c"}), first, env=args())
    server.process.kill()
    server.process.wait()
    cluster.go()
    node.add(conf({NETWORKS: "b,c"}), second, env=args())
    for each in (first, second):
        node.delete(conf({NETWORKS: "b,c"}), each, env=args())
        assert list(links(each)) == ["lo"]
    assert (held(node, *"abc"), [name for name in kept(node) if not name.startswith("definitions")]) == ([0, 0, 0], [])


def test_networks_by_names_that_no_pod_can_have(node, pod, cluster, conf):
    error = node.refused("ADD", conf(), pod, env={"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=../x"})
    assert (error["code"], "no pod can have the name default/../x" in error["msg"]) == (11, True)
    assert list(links(pod)) == ["lo"]
