"""multus: the pod's networks, their order and files; selection, rollback, DEL without its files, GC, STATUS."""

import base64
import json
from pathlib import Path

import pytest
from real_kernel.node import addresses, cid_of, links, routes, run

NETWORKS = "k8s.v1.cni.cncf.io/networks"
FIRST = "v1.multus-cni.io/default-network"


def network(node, letter, **keys):
    """A network on the bridge br-LETTER with the subnet 10.1.LETTER.0/24."""
    number = ord(letter) - ord("a") + 1
    return {"cniVersion": "1.1.0", "name": letter, "type": "bridge", "bridge": f"br-{letter}",
            "ipam": node.host_local(f"10.1.{number}.0/24"), **keys}


def multus(node, *delegates, annotations=None, capabilities=None, **keys):
    """A configuration of multus. annotations: of the pod, as containerd gives them."""
    runtime = {"io.kubernetes.cri.pod-annotations": annotations} if annotations is not None else {}
    return {"cniVersion": "1.1.0", "name": "multus-cni-network", "type": "multus", "binDir": "/nowhere",
            "cniDir": f"{node.data_dir}/multus", "confDir": str(conf_dir(node)),
            **({"delegates": list(delegates)} if delegates else {}),
            "runtimeConfig": {**runtime, **(capabilities or {})}, **keys}


def conf_dir(node):
    return Path(node.data_dir).with_name("definitions")


def define(node, *confs, namespace=""):
    """Write definitions to files."""
    folder = conf_dir(node) / namespace
    folder.mkdir(parents=True, exist_ok=True)
    for conf in confs:
        (folder / f"{conf['name']}.{'conf' if 'type' in conf else 'conflist'}").write_text(json.dumps(conf))


def elements(node, pod):
    """The objects of the pod's file of networks."""
    return json.loads(Path(node.data_dir, "multus", cid_of(pod)).read_text())


def kept(node):
    """The names of all files of multus."""
    root = Path(node.data_dir, "multus")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def held(node, *letters):
    return [len(node.held(letter)) for letter in letters]


@pytest.fixture
def abc(node):
    return [network(node, letter) for letter in "abc"]


@pytest.fixture
def selecting(node, abc):
    """selecting(annotation): a configuration whose pods have the network a, and select of files b and c."""
    define(node, *abc[1:])
    return lambda text="", **keys: multus(node, abc[0], annotations={NETWORKS: text} if text else {}, **keys)


# -- the networks of the configuration ------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["multus", "multus-shim"])
def test_delegates_become_interfaces_by_place_and_the_first_one_gives_the_result(node, pod, abc, kind):
    result = node.add(multus(node, *abc, type=kind), pod)
    assert list(links(pod)) == ["lo", "eth0", "net1", "net2"]
    assert [ip["address"] for ip in result["ips"]] == ["10.1.1.2/24"]
    assert [addresses(name, pod) for name in ("eth0", "net1", "net2")] == [
        ["10.1.1.2/24"], ["10.1.2.2/24"], ["10.1.3.2/24"]]


def test_del_leaves_nothing_and_can_be_repeated(node, pod, abc):
    conf = multus(node, *abc)
    before = node.left(pod)
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    node.delete(conf, pod)
    bridges = [f"br-{letter}" for letter in "abc"]
    assert [it for it in node.left(pod)["links"][0] if it[0] not in bridges] == before["links"][0]
    assert node.left(pod)["links"][1] == before["links"][1]
    assert held(node, *"abc") == [0, 0, 0]
    assert kept(node) == []
    node.delete(conf, pod)
    node.delete(conf, "", cid=cid_of(pod))


def test_a_cluster_network_is_a_name_a_directory_or_a_file(node, pod_netns, abc):
    define(node, abc[0])
    define(node, {**abc[1], "name": "a"}, namespace="kube-system")
    folder = conf_dir(node)
    for name, bridge in (("a", "10.1.2."), (str(folder), "10.1.1."), (f"{folder}/a.conf", "10.1.1.")):
        pod = pod_netns()
        result = node.add(multus(node, clusterNetwork=name), pod)
        assert result["ips"][0]["address"].startswith(bridge), name
    error = node.refused("ADD", multus(node, clusterNetwork="lost"), pod_netns())
    assert (error["code"], error["msg"]) == (7, 'no network "kube-system/lost"')
    assert str(folder) in error["details"]


def test_a_path_as_the_daemon_of_multus_sees_it_is_found_on_the_host(node, pod, abc):
    define(node, abc[0])
    conf = multus(node, clusterNetwork=f"/host{conf_dir(node)}/a.conf", type="multus-shim")
    assert node.add(conf, pod)["ips"][0]["address"] == "10.1.1.2/24"


def test_default_networks_are_for_pods_outside_system_namespaces(node, pod_netns, abc):
    define(node, *abc)
    conf = multus(node, clusterNetwork="a", defaultNetworks=["b"], annotations={NETWORKS: "default/c"})
    for namespace, second, names in (("default", "10.1.2.2/24", 4), ("kube-system", "10.1.3.3/24", 3)):
        pod = pod_netns()
        node.add(conf, pod, env={"CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace}"})
        assert len(links(pod)) == names
        assert addresses("net1", pod) == [second]


def test_each_delegate_speaks_its_own_version(node, pod):
    old = network(node, "a", cniVersion="0.3.1")
    new = {**network(node, "b"), "cniVersion": "1.0.0"}
    conf = multus(node, old, new)
    assert node.add(conf, pod)["cniVersion"] == "1.1.0"
    node.check(conf, pod, {})               # 0.3.1 has no CHECK
    node.delete(conf, pod)
    assert held(node, *"ab") == [0, 0]


# -- selection -------------------------------------------------------------------------------------------

def test_the_short_form_names_networks_namespaces_and_interfaces(node, pod, selecting):
    node.add(selecting("default/b@foo0 , c"), pod)
    assert list(links(pod)) == ["lo", "eth0", "foo0", "net2"]


def test_cni_args_select_networks_where_no_annotation_does(node, pod, selecting):
    conf = selecting()
    node.add(conf, pod, env={"CNI_ARGS": "FASTCNI_NETWORKS=b@foo0,c"})
    assert list(links(pod)) == ["lo", "eth0", "foo0", "net2"]
    node.delete(conf, pod)
    assert held(node, *"abc") == [0, 0, 0]


def test_the_json_form_asks_for_address_and_mac_of_this_network_alone(node, pod, abc):
    define(node, {**abc[1], "capabilities": {"mac": True, "ips": True}}, abc[2])
    asked = {"name": "b", "interface": "foo0", "ips": ["10.1.2.77/24"], "mac": "02:00:00:00:00:77"}
    node.add(multus(node, abc[0], annotations={NETWORKS: json.dumps([asked, {**asked, "name": "c",
                                                                            "interface": "net9"}])}), pod)
    assert (addresses("foo0", pod), links(pod)["foo0"]["address"]) == (["10.1.2.77/24"], "02:00:00:00:00:77")
    for name in ("eth0", "net9"):           # c declares no capability
        assert links(pod)[name]["address"] != "02:00:00:00:00:77"
    assert addresses("net9", pod) == ["10.1.3.2/24"]


def test_cni_args_of_a_selection_win_over_those_of_the_definition(node, pod, abc):
    define(node, {**abc[1], "args": {"cni": {"mac": "02:00:00:00:00:01", "ips": ["10.1.2.9/24"]}}})
    chosen = [{"name": "b", "cni-args": {"mac": "02:00:00:00:00:02"}}]
    node.add(multus(node, abc[0], annotations={NETWORKS: json.dumps(chosen)}), pod)
    assert links(pod)["net1"]["address"] == "02:00:00:00:00:02"
    assert addresses("net1", pod) == ["10.1.2.9/24"]


def test_the_same_network_twice_is_two_interfaces(node, pod, selecting):
    conf = selecting("b,b")
    node.add(conf, pod)
    assert addresses("net1", pod) + addresses("net2", pod) == ["10.1.2.2/24", "10.1.2.3/24"]
    node.delete(conf, pod)
    assert held(node, "b") == [0]


def test_a_list_runs_all_its_plugins(node, pod, abc):
    plugins = [{key: value for key, value in abc[1].items() if key not in ("name", "cniVersion")},
               {"type": "tuning", "mtu": 1400, "dataDir": f"{node.data_dir}/tuning"}]
    define(node, {"cniVersion": "1.0.0", "name": "b", "plugins": plugins})
    conf = multus(node, abc[0], annotations={NETWORKS: "b"})
    node.check(conf, pod, node.add(conf, pod))
    assert links(pod)["net1"]["mtu"] == 1400
    assert elements(node, pod)[1]["ConfList"]["plugins"] == [{"type": "bridge"}, {"type": "tuning"}]


def test_an_annotation_takes_the_place_of_the_first_network(node, pod_netns, selecting):
    conf = selecting()
    conf["runtimeConfig"] = {"io.kubernetes.cri.pod-annotations": {FIRST: "default/c"}}
    result = node.add(conf, pod_netns())
    assert result["ips"][0]["address"] == "10.1.3.2/24"
    conf["runtimeConfig"] = {"io.kubernetes.cri.pod-annotations": {FIRST: "default/c,default/b"}}
    assert "expected one network, got 2" in node.refused("ADD", conf, pod_netns())["msg"]


def test_isolation_allows_the_own_namespace_and_the_global_ones(node, pod_netns, abc):
    for namespace in ("other", "default", "g"):
        define(node, abc[1], namespace=namespace)
    for text, shared, allowed in (("other/b", "", False), ("default/b", "", True), ("g/b", "x, g", True),
                                  ("own/b", "", None)):
        conf = multus(node, abc[0], annotations={NETWORKS: text}, namespaceIsolation=True, globalNamespaces=shared)
        env = {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=own"}
        if allowed:
            node.add(conf, pod_netns(), env=env)
        else:
            error = node.refused("ADD", conf, pod_netns(), env=env)
            assert ("is not of the pod's namespace" in error["msg"]) is (allowed is False), text


@pytest.mark.parametrize("text, why", [
    ('[{"name": ', "not JSON"), ('{"name": "b"}', "expected a list"), ("UPPER", "must consist of lower case"),
    ("b@0123456789abcdef", "interface name is too long"), ("b@eth0", 'have the interface "eth0"'),
    ("b@x0,c@x0", 'have the interface "x0"'), ("b@", "is not [namespace/]name[@interface]"), ("a/b/c", "is not ["),
    ("../b", "must consist of"), ("b,,c", "must consist of"), ("lost", 'no network "default/lost"'),
    ('[{"name": "b", "mac": "zz"}]', "invalid MAC"), ('[{"name": "b", "ips": ["10.1.1.300"]}]', "invalid IP address"),
    ('[{"name": "b", "default-route": ["10.1.2.1"]}, {"name": "c", "default-route": ["10.1.3.1"]}]',
     "two gateways of one address family"), ("b@taken0", 'has an interface "taken0" already')])
def test_a_bad_selection_is_refused_before_anything_is_added(node, pod, selecting, text, why):
    run("ip", "-n", pod, "link", "add", "taken0", "type", "veth", "peer", "name", "taken1")
    conf, before = selecting(text), node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert why in error["msg"]
    assert error["code"] in (4, 7)
    assert node.left(pod) == before
    node.delete(conf, pod)                  # the runtime deletes what failed, also the interface that was there
    assert node.left()["links"] == before["links"][:1]


@pytest.mark.parametrize("keys", [{"kubeconfig": "/nowhere"}, {"type": "multus-shim"}])
def test_a_pod_whose_annotations_are_unknown_is_refused(node, pod, abc, keys):
    """Else it would silently get its first network alone."""
    conf, env = multus(node, abc[0], **keys), {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web"}
    error = node.refused("ADD", conf, pod, env=env)
    assert (error["code"], "has not passed the pod's annotations" in error["msg"]) == (7, True)
    node.add({**conf, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {}}}, pod, env=env)


# -- default routes -----------------------------------------------------------------------------------------

def default_routes(pod):
    return [(route["dev"], route.get("gateway")) for route in routes(pod).values()
            if route["dst"] == "default"]


def with_default_routes(node, abc):
    define(node, *[{**conf, "ipam": {**conf["ipam"], "routes": [{"dst": "0.0.0.0/0"}]}} for conf in abc[1:]])
    return {**abc[0], "isDefaultGateway": True}


def test_a_gateway_of_a_selection_is_the_only_default_route(node, pod, abc):
    first = with_default_routes(node, abc)
    chosen = [{"name": "b", "default-route": ["10.1.2.9"]}, {"name": "c"}]
    conf = multus(node, first, annotations={NETWORKS: json.dumps(chosen)})
    result = node.add(conf, pod)
    assert default_routes(pod) == [("net1", "10.1.2.9")]
    assert result.get("routes", []) == []
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert held(node, *"abc") == [0, 0, 0]


def test_an_empty_list_of_gateways_takes_only_this_networks_default_route(node, pod, abc):
    first = with_default_routes(node, abc)
    conf = multus(node, first, annotations={NETWORKS: json.dumps([{"name": "b", "default-route": []}])})
    node.add(conf, pod)
    assert default_routes(pod) == [("eth0", "10.1.1.1")]


def test_a_gateway_out_of_reach_fails_and_leaves_nothing(node, pod, selecting):
    conf = selecting(json.dumps([{"name": "b", "default-route": ["192.0.2.1"]}]))
    error = node.refused("ADD", conf, pod)
    assert "add default route by 192.0.2.1" in error["msg"]
    assert (list(links(pod)), held(node, *"ab"), kept(node)) == (["lo"], [0, 0], [])


# -- capabilities ---------------------------------------------------------------------------------------------

def test_the_runtimes_capabilities_are_for_the_first_network(node, pod, abc):
    able = {"capabilities": {"mac": True}}
    define(node, {**abc[1], **able})
    node.add(multus(node, {**abc[0], **able}, annotations={NETWORKS: "b"},
                    capabilities={"mac": "02:00:00:00:00:05"}), pod)
    assert links(pod)["eth0"]["address"] == "02:00:00:00:00:05" != links(pod)["net1"]["address"]


# -- a network fails ---------------------------------------------------------------------------------------

def test_a_failing_network_removes_all_before_it(node, pod, abc):
    conf = multus(node, *abc[:2], {**abc[2], "type": "macvlan", "master": "lost0"})
    error = node.refused("ADD", conf, pod)
    assert error["msg"].startswith('network "c" (net2) failed (add): plugin type="macvlan" (index 0) failed (add): ')
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])
    node.delete(conf, pod)


def test_del_goes_on_after_a_network_that_fails_and_keeps_the_files(node, pod, abc, tmp_path):
    script = tmp_path / "acme"
    script.write_text('#!/bin/sh\nif [ $CNI_COMMAND = ADD ]; then echo \'{"cniVersion": "1.1.0"}\'; else '
                      f'[ -e {tmp_path}/mended ] || {{ echo \'{{"code": 77, "msg": "not now"}}\'; exit 1; }}; fi\n')
    script.chmod(0o755)
    conf = multus(node, abc[0], {"name": "x", "type": "acme", "cniVersion": "1.1.0"}, abc[1], binDir=str(tmp_path))
    node.add(conf, pod)
    error = node.refused("DEL", conf, pod)
    assert (error["code"], "not now" in error["msg"]) == (77, True)
    assert (list(links(pod)), held(node, *"ab")) == (["lo"], [0, 0])
    assert cid_of(pod) in kept(node)
    (tmp_path / "mended").touch()
    node.delete(conf, pod)
    assert kept(node) == []


def test_a_program_gets_the_variables_of_its_network(node, pod, abc, tmp_path):
    script = tmp_path / "acme"
    script.write_text(f'#!/bin/sh\nenv >{tmp_path}/env\necho \'{{"cniVersion": "1.1.0"}}\'\n')
    script.chmod(0o755)
    conf = multus(node, abc[0], {"name": "x", "type": "acme", "cniVersion": "1.1.0"}, binDir=str(tmp_path))
    node.add(conf, pod, env={"CNI_ARGS": "IP=10.1.1.7;K8S_POD_NAME=web;FASTCNI_NETWORKS="})
    found = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text().splitlines())
    assert (found["CNI_IFNAME"], found["CNI_ARGS"]) == ("net1", "IgnoreUnknown=true;K8S_POD_NAME=web")
    assert found["CNI_PATH"].split(":")[0] == str(tmp_path)
    assert addresses("eth0", pod) == ["10.1.1.7/24"]


# -- the files ----------------------------------------------------------------------------------------------

def test_the_files_are_those_of_multus(node, pod, selecting):
    node.add(selecting("b@foo0"), pod)
    first, second = elements(node, pod)
    assert (first["Name"], first["Conf"]["name"], first["Conf"]["type"]) == ("a", "a", "bridge")
    assert json.loads(base64.b64decode(first["Bytes"]))["bridge"] == "br-a"
    assert (second["Name"], second["ifnameRequest"]) == ("default/b", "foo0")
    cached = json.loads(Path(node.data_dir, "multus", "results", f"b-{cid_of(pod)}-foo0").read_text())
    assert (cached["kind"], cached["networkName"], cached["ifName"]) == ("cniCacheV1", "b", "foo0")
    assert cached["result"]["ips"][0]["address"] == "10.1.2.2/24"


def test_a_pod_of_multus_is_deleted(node, pod, abc):
    """The files are as Multus 4 writes them: "Conf" of a single plugin in full, "Bytes" as the definition has them."""
    conf = multus(node, abc[0])
    node.add(conf, pod)
    node.add(abc[1], pod, ifname="net1")
    empty = {"cniVersion": "", "name": "", "ipam": {}, "dns": {}}
    written = [{"Conf": {**empty, "name": it["name"], "type": "bridge"}, "ConfList": {"cniVersion": "", "name": "",
                                                                                     "plugins": None},
                "Name": title, "IsFilterV4Gateway": False, "IsFilterV6Gateway": False,
                "Bytes": base64.b64encode(json.dumps(it).encode()).decode()}
               for it, title in ((abc[0], "a"), (abc[1], "default/b"))]
    Path(node.data_dir, "multus", cid_of(pod)).write_text(json.dumps(written))
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"ab"), kept(node)) == (["lo"], [0, 0], [])


def test_a_definition_that_is_edited_or_removed_does_not_change_del(node, pod, selecting, abc):
    node.add(selecting("b,c"), pod)
    define(node, {**abc[1], "ipam": node.host_local("10.9.9.0/24", dataDir="/nowhere")})
    (conf_dir(node) / "c.conf").unlink()
    node.delete(selecting("b,c"), pod)
    assert (list(links(pod)), held(node, *"abc")) == (["lo"], [0, 0, 0])


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b"{}", b'[{"Bytes": "%%"}]', None])
def test_a_lost_or_damaged_list_of_networks_leaves_nothing(node, pod, selecting, content):
    conf = selecting("b,c@foo0")
    node.add(conf, pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.unlink() if content is None else path.write_bytes(content)
    node.delete(multus(node, clusterNetwork="lost"), pod)       # no definition helps
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


def test_del_without_files_deletes_what_the_configuration_names(node, pod, abc):
    conf = multus(node, *abc)
    node.add(conf, pod)
    run("rm", "-r", f"{node.data_dir}/multus")
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"abc")) == (["lo"], [0, 0, 0])


def test_a_damaged_list_is_an_error_if_nothing_else_names_the_networks(node, pod):
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.parent.mkdir(parents=True)
    path.write_text("[")
    error = node.refused("DEL", multus(node, clusterNetwork="lost"), pod)
    assert (error["code"], "is damaged" in error["msg"]) == (5, True)


def test_the_namespace_is_gone_and_del_frees_the_addresses(node, pod_netns, abc):
    conf, pod = multus(node, *abc), pod_netns()
    node.add(conf, pod)
    run("ip", "netns", "del", pod)
    node.delete(conf, pod)
    assert (held(node, *"abc"), kept(node)) == ([0, 0, 0], [])


# -- CHECK, GC, STATUS -----------------------------------------------------------------------------------------

def test_check_notices_a_missing_second_interface(node, pod, abc):
    define(node, abc[0])
    conf = multus(node, clusterNetwork="a", annotations={NETWORKS: "default/b"})
    define(node, abc[1])
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    run("ip", "-n", pod, "link", "del", "net1")
    assert 'network "default/b" (net1) failed (check)' in node.check_refused(conf, pod, result)


def test_gc_keeps_all_networks_of_living_pods_and_deletes_those_of_dead_ones(node, pod_netns, selecting):
    conf = selecting("b")
    living, other, dead = pod_netns(), pod_netns(), pod_netns()
    for pod in (living, other, dead):
        node.add(conf, pod)
    run("ip", "netns", "del", dead)
    valid = [{"containerID": cid_of(living), "ifname": "eth0"}]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert held(node, *"ab") == [2, 2]              # `other` may be another runtime's: its namespace exists
    assert [name for name in kept(node) if cid_of(dead) in name] == []
    assert list(links(living)) == ["lo", "eth0", "net1"]


def test_gc_deletes_addresses_that_no_container_has(node, pod, abc):
    conf = multus(node, *abc)
    Path(node.data_dir, "b").mkdir(parents=True)
    Path(node.data_dir, "b", "10.1.2.50").write_text("lost\r\nnet1")
    node.add(conf, pod)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(pod), "ifname": "eth0"}]})
    assert list(node.held("b")) == ["10.1.2.2"]


def test_status_asks_each_network(node, abc):
    node.ok("STATUS", multus(node, *abc))
    error = node.refused("STATUS", multus(node, abc[0], {**abc[1], "type": "macvlan", "master": "lost0"}))
    assert error["code"] == 50
    assert 'network "b"' in error["msg"]
    assert node.refused("STATUS", multus(node, clusterNetwork="lost"))["code"] == 50


def test_an_add_waits_for_the_readiness_file_and_del_does_not(node, pod, abc, tmp_path, monkeypatch):
    monkeypatch.setattr("fastcni.kit.networks.ready.READY_TIMEOUT_S", 0.2)
    conf = multus(node, abc[0], readinessindicatorfile=str(tmp_path / "ready"))
    assert node.refused("ADD", conf, pod)["code"] == 11
    assert node.refused("STATUS", conf)["code"] == 50
    node.delete(conf, pod)
    (tmp_path / "ready").touch()
    node.add(conf, pod)


