"""multus: the pod's networks and their order, selection by the annotation, default routes, capabilities, rollback."""

import json

import pytest
from lab.networks import FIRST, NETWORKS, conf_dir, define, elements, held, kept, multus, network
from lab.node import addresses, cid_of, links, routes, run
from unit.agent.policy.stub_agent import StubAgent

from fastcni.kit.networks.devices import Devices
from fastcni.kit.networks.network import Definition, Network
from fastcni.kit.networks.network_status import text_of
from fastcni.spec.config import Section

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
    directory = conf_dir(node)
    for name, bridge in (("a", "10.1.2."), (str(directory), "10.1.1."), (f"{directory}/a.conf", "10.1.1.")):
        pod = pod_netns()
        result = node.add(multus(node, clusterNetwork=name), pod)
        assert result["ips"][0]["address"].startswith(bridge), name
    error = node.refused("ADD", multus(node, clusterNetwork="lost"), pod_netns())
    assert (error["code"], error["msg"]) == (7, 'no network "kube-system/lost"')
    assert str(directory) in error["details"]


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
    node.check(conf, pod, {})               # the network of version 0.3.1 has no CHECK
    node.delete(conf, pod)
    assert held(node, *"ab") == [0, 0]


def test_keys_of_the_daemon_and_the_log_of_multus_are_ignored_with_a_warning_each(node, pod, abc):
    """The daemon of thick Multus writes a configuration with some of these keys."""
    conf = multus(node, abc[0], daemonSocketDir="/run/multus", logLevel="debug", retryDeleteOnError=True)
    assert node.call("ADD", conf, pod).stderr.decode().splitlines() == [
        "logLevel is ignored: fastcni has its own log",
        "daemonSocketDir is ignored: a key of the daemon of Multus, which fastcni does not need"]
    assert node.call("DEL", conf, pod).stderr == b""


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
    for name in ("eth0", "net9"):           # c does not declare the capability `mac`
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
    ("b@lo", 'annotation k8s.v1.cni.cncf.io/networks: interface "lo"'),
    ("b@x0,c@x0", 'have the interface "x0"'), ("b@", "is not [namespace/]name[@interface]"), ("a/b/c", "is not ["),
    ("../b", "must consist of"), ("b,,c", "must consist of"), ("lost", 'no network "default/lost"'),
    ('[{"name": "b", "mac": "zz"}]', "invalid MAC"), ('[{"name": "b", "ips": ["10.1.1.300"]}]', "invalid IP address"),
    ('[{"name": "b", "default-route": ["10.1.2.1"]}, {"name": "c", "default-route": ["10.1.3.1"]}]',
     "two gateways of one address family"), ("b@taken0", 'has an interface "taken0" already')])
def test_a_bad_selection_is_refused_before_anything_is_added(node, pod, selecting, text, why):
    run("ip", "link", "add", "taken0", "type", "veth", "peer", "name", "taken1", netns=pod)
    conf, before = selecting(text), node.left(pod)
    error = node.refused("ADD", conf, pod)
    assert why in error["msg"]
    assert error["code"] in (4, 7)
    assert node.left(pod) == before
    # after a failed ADD, a runtime calls DEL. DEL also deletes the interface that existed before
    node.delete(conf, pod)
    assert node.left()["links"] == before["links"][:1]


@pytest.mark.parametrize("keys, code, why", [
    ({"kubeconfig": "/nowhere"}, 11, "pod default/web: kubernetes: read the kubeconfig /nowhere: "),
    ({"type": "multus-shim"}, 7, "the runtime has not passed the pod's annotations")])
def test_a_pod_whose_annotations_are_unknown_is_refused(node, pod, abc, keys, code, why):
    """If ADD succeeded, the pod would get only its first network."""
    conf, env = multus(node, abc[0], **keys), {"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web"}
    error = node.refused("ADD", conf, pod, env=env)
    assert (error["code"], error["msg"].startswith(why)) == (code, True), error
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
    chosen[0]["default-route"] = ["10.55.0.1"]
    error = node.refused("ADD", multus(node, first, annotations={NETWORKS: json.dumps(chosen)}), pod)
    assert "add default route by 10.55.0.1, the default-route of b" in error["msg"]
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


@pytest.fixture
def recorder(tmp_path):
    """Install the plugin acme, which writes its stdin to a file, and return its directory. asked() reads the file."""
    (tmp_path / "acme").write_text(f'#!/bin/sh\ncat > {tmp_path}/$CNI_IFNAME\necho \'{{"cniVersion": "1.1.0"}}\'\n')
    (tmp_path / "acme").chmod(0o755)
    return tmp_path


def asked(recorder, ifname):
    return json.loads((recorder / ifname).read_text())


def test_port_mappings_and_bandwidth_are_for_the_network_that_asks_for_them(node, pod, recorder):
    able = {"cniVersion": "1.1.0", "type": "acme", "capabilities": {"portMappings": True, "bandwidth": True}}
    define(node, {**able, "name": "b"}, {**able, "name": "c"})
    first, second = [{"hostPort": 80, "containerPort": 80}], [{"hostPort": 81, "containerPort": 81}]
    rates = {"ingressRate": 8000, "ingressBurst": 8000}
    chosen = [{"name": "b", "portMappings": second, "bandwidth": rates}, {"name": "c"}]
    node.add(multus(node, {**able, "name": "a"}, binDir=str(recorder), annotations={NETWORKS: json.dumps(chosen)},
                    capabilities={"portMappings": first}), pod)
    assert [asked(recorder, name).get("runtimeConfig") for name in ("eth0", "net1", "net2")] == [
        {"portMappings": first}, {"portMappings": second, "bandwidth": rates}, None]


def test_addresses_of_a_further_network_are_unique_in_the_cluster(node, pod, abc):
    ipam = {"type": "whereabouts", "range": "10.1.2.0/24", "dataDir": f"{node.data_dir}/b", "node_name": "a",
            "store": {"type": "local", "path": f"{node.data_dir}-store"}}
    define(node, {**abc[1], "ipam": ipam})
    conf = multus(node, abc[0], annotations={NETWORKS: "b,b"})
    node.check(conf, pod, node.add(conf, pod))
    assert len({*addresses("net1", pod), *addresses("net2", pod)}) == 2
    node.delete(conf, pod)
    assert (list(links(pod)), kept(node)) == (["lo"], [])


def test_a_further_network_has_its_own_protection_by_policies(node, pod, abc, tmp_path):
    """The plugin asks the agent for protection of each interface whose list has `policy`, with that interface's
    addresses."""
    plugins = [{key: value for key, value in abc[1].items() if key not in ("name", "cniVersion")},
               {"type": "policy", "agentSocketPath": str(tmp_path / "agent.sock")}]
    define(node, {"cniVersion": "1.1.0", "name": "b", "plugins": plugins})
    conf = multus(node, abc[0], annotations={NETWORKS: "b"})
    with StubAgent(str(tmp_path / "agent.sock"), lambda: tmp_path) as agent:
        node.add(conf, pod, env={"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"})
        about = next(it for it in agent.asked if it["do"] == "protect")
        assert (about["id"], about["pod"], about["addresses"]) == (["b", cid_of(pod), "net1"], "shop/web", ["10.1.2.2"])
        node.delete(conf, pod)
    assert agent.asked[-1] == {"do": "forget", "id": ["b", cid_of(pod), "net1"]}


@pytest.mark.parametrize("ids", [{"-1": ["0000:00:02.0"], "1": ["0000:00:01.0"]}, ["0000:00:02.0", "0000:00:01.0"]])
def test_each_network_of_a_resource_gets_a_device_in_sorted_order(tmp_path, monkeypatch, ids):
    def entry(uid, resource, devices):
        return {"PodUID": uid, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": devices, "AllocResp": ""}

    path, warnings = tmp_path / "checkpoint", []
    monkeypatch.setattr("fastcni.kit.networks.devices.CHECKPOINT", str(path))
    path.write_text(json.dumps({"Data": {"PodDeviceEntries": [
        entry("uid-2", "a/x", {"0": ["0000:00:00.0"]}), entry("uid-1", "a/x", ids),
        entry("uid-1", "a/y", {"0": ["0000:00:03.0"]})], "RegisteredDevices": {}}, "Checksum": 1}))
    devices = Devices("shop", "web", "uid-1", warnings.append)
    assert [devices.take(name) for name in ("a/x", "a/y", "a/x")] == ["0000:00:01.0", "0000:00:03.0", "0000:00:02.0"]
    assert warnings == []
    assert (devices.take("a/x"), devices.take("a/z"), len(warnings)) == ("", "", 2)
    for content in ("", "[]", '{"Data": {"PodDeviceEntries": [{"PodUID": "uid-1"}]}}'):
        path.write_text(content)
        assert Devices("shop", "web", "uid-1", warnings.append).take("a/x") == ""


# -- a network fails ---------------------------------------------------------------------------------------

def test_the_status_has_each_interface_that_a_network_gives_to_the_pod():
    """As with Multus, the interface with a gateway is the default. Once, the status had only one of the two
    interfaces."""
    a, b = (Network(Definition(name, {}, Section({"name": name})), "eth0") for name in "ab")
    result = {"interfaces": [{"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}, {"name": "eth1", "sandbox": "/n"}],
              "ips": [{"address": "10.1.2.2/24", "interface": 1}, {"address": "10.1.3.2/24"},
                      {"address": "10.1.4.2/24", "interface": 2, "gateway": "10.1.4.1"}]}
    status = json.loads(text_of([(a, result), (b, result), (b, {})]))
    assert [(it["name"], it["interface"], it["ips"], it.get("default")) for it in status] == [
        ("a", "eth0", ["10.1.2.2"], None), ("a", "eth1", ["10.1.3.2", "10.1.4.2"], True),
        ("b", "eth0", ["10.1.2.2"], None), ("b", "eth1", ["10.1.3.2", "10.1.4.2"], None)]


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
