"""multus: the files of Multus, DEL without these files, CHECK, GC, STATUS."""

import base64
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab.networks import NETWORKS, conf_dir, define, elements, held, kept, make_stubborn, multus
from lab.node import cid_of, links, run

from fastcni.handle import restore
from fastcni.kit.links import find
from fastcni.kit.networks import keys, lost, other_caches
from fastcni.plugins import multus as plugin
from fastcni.runtime import RuntimeConf
from fastcni.runtime.cache import Cache
from fastcni.runtime.mode import InProcessMode
from fastcni.spec.errors import CniError

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
    """The files are as Multus 4 writes them. "Conf" is a single plugin with all keys, "Bytes" is the definition in
    base64."""
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
def test_a_lost_or_damaged_list_of_networks_leaves_nothing(node, pod, selecting, content, monkeypatch):
    """If tunnel modules are loaded, the kernel creates links in each namespace. These links belong to no network."""
    tunnel = SimpleNamespace(name="tunl0", kind="ipip", flags=0)
    monkeypatch.setattr(lost, "find", SimpleNamespace(all_links=lambda sock: [*find.all_links(sock), tunnel]))
    conf = selecting("b,c@foo0")
    node.add(conf, pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.unlink() if content is None else path.write_bytes(content)
    # this configuration does not lead to the networks' definitions
    node.delete(multus(node, clusterNetwork="lost"), pod)
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


@pytest.mark.parametrize("content", [b"[", None])
def test_a_lost_list_and_a_lost_result_leave_nothing(node, pod, selecting, content):
    """A power cut may damage several files that were written at the same time. Here the remaining results do not name
    network c."""
    conf = selecting("b,c@foo0")
    node.add(conf, pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.unlink() if content is None else path.write_bytes(content)
    next((path.parent / "results").glob("c-*")).write_bytes(b"")
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


def damage(node, pod, results):
    """Empty the pod's list of networks and the results that match the patterns, as a power cut may. Return the results'
    paths."""
    path = Path(node.data_dir, "multus", cid_of(pod))
    found = [it for pattern in results for it in (path.parent / "results").glob(pattern)]
    for it in (path, *found):
        it.write_bytes(b"")
    return found


@pytest.mark.parametrize("results", [["c-*"], ["*"]])
def test_a_damaged_list_and_damaged_results_leave_nothing_without_the_annotation(node, pod, selecting, abc, results):
    """The name of c's damaged file contains the network. Once, a DEL without the annotation succeeded and left network
    c."""
    node.add(selecting("b,c@foo0"), pod)
    damage(node, pod, results)
    node.delete(multus(node, abc[0]), pod)
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


def test_a_damaged_result_whose_network_is_unknown_fails_the_del_and_the_check(node, pod, selecting, abc):
    node.add(selecting("b,c@foo0"), pod)
    definition = conf_dir(node) / "c.conf"
    definition.unlink()
    conf, [path] = multus(node, abc[0]), damage(node, pod, ["c-*"])
    for command in ("CHECK", "DEL", "DEL"):
        error = node.refused(command, conf, pod)
        assert (error["code"], error["msg"]) == (5, f"{path} is damaged"), command
        assert 'the interface foo0 of network "c"' in error["details"]
    # DEL has deleted the other two networks
    assert (list(links(pod)), held(node, *"abc")) == (["lo", "foo0"], [0, 0, 1])
    define(node, abc[2])
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


@pytest.mark.parametrize("content", [b"[{", None])
def test_a_damaged_list_and_a_missing_result_fail_the_check_and_the_del(node, pod, selecting, abc, content):
    """Once, CHECK and DEL without the annotation succeeded. The interface and the address of network c remained."""
    conf, known = selecting("b,c"), multus(node, abc[0])
    node.add(conf, pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.unlink() if content is None else path.write_bytes(content)
    next((path.parent / "results").glob("c-*")).unlink()
    error = node.refused("CHECK", conf, pod)
    assert (error["code"], error["msg"]) == (5, f"{path} is {'missing' if content is None else 'damaged'}")
    if content is None:                 # a missing list is no error: it is missing after a DEL and before an ADD, too
        assert b"is missing, and the pod still has net2 of unknown networks" in node.call("DEL", known, pod).stderr
    for _ in range(2) if content else ():
        error = node.refused("DEL", known, pod)
        assert (error["code"], error["msg"]) == (5, f"{path} is damaged")
        assert "the pod still has net2 of unknown networks; delete" in error["details"]
    assert (list(links(pod)), held(node, *"abc")) == (["lo", "net2"], [0, 0, 1])
    node.delete(conf, pod)              # this annotation names network c
    assert (list(links(pod)), held(node, *"abc"), kept(node)) == (["lo"], [0, 0, 0], [])


def test_a_damaged_list_of_a_pod_without_a_namespace_fails_the_del_without_the_annotation(node, pod_netns, selecting,
                                                                                         abc):
    """Once, DEL succeeded, and the address of a network whose result was missing remained."""
    conf, pod = selecting("b"), pod_netns()
    node.add(conf, pod)
    path = Path(node.data_dir, "multus", cid_of(pod))
    path.write_text("[{")
    next((path.parent / "results").glob("b-*")).unlink()
    run("ip", "netns", "del", pod)
    known = multus(node, abc[0])
    error = node.refused("DEL", known, pod)
    assert (error["code"], error["msg"], held(node, *"ab")) == (5, f"{path} is damaged", [0, 1])
    assert "namespace and annotation are unknown" in error["details"]
    node.delete({**known, "runtimeConfig": conf["runtimeConfig"]}, pod)
    assert (held(node, *"ab"), kept(node)) == ([0, 0], [])


def test_del_deletes_the_networks_of_results_that_the_list_lacks(node, pod, selecting, abc):
    """The list lacks a network or has another interface, or a result has another interface than its file name. Once,
    DEL succeeded and left the network."""
    def lacks(path):
        path.write_text(json.dumps(json.loads(path.read_text())[:-1]))

    def renames(path):
        path.write_text(path.read_text().replace("foo0", "net7"))

    def contradicts(path):
        result = next((path.parent / "results").glob("c-*"))
        result.write_text(result.read_text().replace('"ifName": "foo0"', '"ifName": "zz"').replace(
            '"ifName":"foo0"', '"ifName":"zz"'))
        assert '"zz"' in result.read_text()

    for damages in (lacks, renames, contradicts):
        node.add(selecting("b,c@foo0"), pod)
        damages(Path(node.data_dir, "multus", cid_of(pod)))
        if damages is lacks:
            run("ip", "link", "set", "foo0", "down", netns=pod)
            run("ip", "addr", "flush", "dev", "foo0", netns=pod)
            assert 'network "c" (foo0) failed (check)' in node.refused("CHECK", multus(node, abc[0]), pod)["msg"]
        node.delete(multus(node, abc[0]), pod)
        left = list(links(pod)), held(node, *"abc"), kept(node)
        assert left == (["lo"], [0, 0, 0], []), damages.__name__


def test_check_and_restore_name_a_damaged_result(node, pod, selecting, abc):
    """Once, the error was "Required prevResult missing", or that the network has no definition, although the plugin had
    not read the definition."""
    conf = selecting("b,c@foo0")
    node.add(conf, pod)
    path = next(Path(node.data_dir, "multus", "results").glob("c-*"))
    path.write_bytes(b"")
    env = {"CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}", "CNI_IFNAME": "eth0", "CNI_PATH": "/no"}

    def errors():
        with pytest.raises(CniError) as caught:
            restore("multus", env, json.dumps(conf).encode(), InProcessMode())
        return node.refused("CHECK", conf, pod), caught.value.as_document()

    for error in errors():
        assert (error["code"], f"{path} is damaged" in error["msg"]) == (5, True), error
    Path(node.data_dir, "multus", cid_of(pod)).write_bytes(b"[")
    for error in errors():
        assert (error["code"], error["msg"]) == (5, f"{path} is damaged")
        assert "definition" not in error["details"]


def test_the_files_stay_after_a_rollback_that_failed_and_the_next_del_repeats_it(node, pod, abc, tmp_path):
    """Once, the plugin always removed the list. The next DEL succeeded, and a network that had rejected its DEL
    remained."""
    make_stubborn(tmp_path)
    define(node, {"cniVersion": "1.1.0", "name": "x", "type": "stubborn"}, {**abc[1], "type": "macvlan",
                                                                           "master": "lost0"})
    asking, plain = (multus(node, abc[0], binDir=str(tmp_path), annotations=it) for it in ({NETWORKS: "x,b"}, None))
    assert "not now" in node.refused("ADD", asking, pod)["details"]
    assert (list(links(pod)), held(node, *"ab")) == (["lo"], [0, 0])
    assert [it["Name"] for it in elements(node, pod)] == ["a", "default/x", "default/b"]
    assert f"results/x-{cid_of(pod)}-net1" in kept(node)
    assert "not now" in node.refused("DEL", plain, pod)["msg"]
    (tmp_path / "refuses").unlink()
    node.delete(plain, pod)
    assert ((tmp_path / "calls").read_text().split(), kept(node)) == (["ADD", "DEL", "DEL", "DEL"], [])


def test_del_without_files_deletes_what_the_configuration_names(node, pod, abc):
    conf = multus(node, *abc)
    node.add(conf, pod)
    run("rm", "-r", f"{node.data_dir}/multus")
    node.delete(conf, pod)
    assert (list(links(pod)), held(node, *"abc")) == (["lo"], [0, 0, 0])


def test_del_without_files_and_without_the_api_deletes_the_configurations_networks(node, pod, abc):
    conf = multus(node, *abc)
    node.add(conf, pod)
    run("rm", "-r", f"{node.data_dir}/multus")
    reply = node.call("DEL", {**conf, "kubeconfig": "/nowhere"}, pod, env={"CNI_ARGS": "K8S_POD_NAME=web"})
    assert (reply.status, list(links(pod)), held(node, *"abc")) == (0, ["lo"], [0, 0, 0])
    assert b"pod default/web: kubernetes: read the kubeconfig" in reply.stderr


def test_del_without_files_and_without_the_api_deletes_the_cluster_network(node, pod, abc):
    define(node, abc[0])
    conf = multus(node, clusterNetwork=str(conf_dir(node) / "a.conf"))
    node.add(conf, pod)
    run("rm", "-r", f"{node.data_dir}/multus")
    reply = node.call("DEL", {**conf, "kubeconfig": "/nowhere"}, pod, env={"CNI_ARGS": "K8S_POD_NAME=web"})
    assert (reply.status, list(links(pod)), held(node, "a")) == (0, ["lo"], [0])


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


@pytest.mark.parametrize("kind", ["bridge", "vlan", "macvlan", "dummy"])
def test_del_of_the_loopback_link_deletes_nothing(node, pod, kind):
    """The kernel does not delete this link. Once, a pod whose annotation named "lo" could not end."""
    node.delete({"cniVersion": "1.1.0", "name": "a", "type": kind, "master": "eth0"}, pod, ifname="lo")
    assert list(links(pod)) == ["lo"]


# -- CHECK, GC, STATUS -----------------------------------------------------------------------------------------

def test_check_notices_a_missing_second_interface(node, pod, abc):
    define(node, abc[0])
    conf = multus(node, clusterNetwork="a", annotations={NETWORKS: "default/b"})
    define(node, abc[1])
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    run("ip", "link", "del", "net1", netns=pod)
    assert 'network "default/b" (net1) failed (check)' in node.check_refused(conf, pod, result)


def test_gc_keeps_all_networks_of_living_pods_and_deletes_those_of_dead_ones(node, pod_netns, selecting):
    conf = selecting("b")
    living, other, dead = pod_netns(), pod_netns(), pod_netns()
    for pod in (living, other, dead):
        node.add(conf, pod)
    run("ip", "netns", "del", dead)
    valid = [{"containerID": cid_of(living), "ifname": "eth0"}]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [*valid, {"containerID": "\0", "ifname": "eth0"}]})
    assert held(node, *"ab") == [2, 2]              # `other` has a namespace, so it may be another runtime's pod
    assert [name for name in kept(node) if cid_of(dead) in name] == []
    assert list(links(living)) == ["lo", "eth0", "net1"]


def test_gc_keeps_containers_whose_namespace_it_cannot_see(node, pod_netns, selecting, tmp_path):
    """The namespaces of another runtime may be in a directory that is not mounted here."""
    conf, pod = selecting("b"), pod_netns()
    node.add(conf, pod)
    for path in Path(node.data_dir, "multus", "results").iterdir():
        path.write_text(path.read_text().replace("/run/netns/", f"{tmp_path}/another/"))
    node.ok("GC", {**conf, "cni.dev/valid-attachments": []})
    assert (held(node, *"ab"), list(links(pod))) == ([1, 1], ["lo", "eth0", "net1"])


def test_gc_keeps_the_networks_of_damaged_files_until_the_next_boot(node, pod_netns, selecting):
    """The file with its interface is damaged. Once, GC released the address of a running pod's second network."""
    conf, living, other = selecting("b"), pod_netns(), pod_netns()
    valid = [{"containerID": cid_of(living), "ifname": "eth0"}]
    for pod in (living, other):
        node.add(conf, pod)
        damage(node, pod, [f"*-{cid_of(pod)}-*"])
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert held(node, *"ab") == [2, 2]
    for path in Path(node.data_dir, "multus", "results").iterdir():
        os.utime(path, (1, 1))
    del conf["runtimeConfig"]                   # GC belongs to no pod, so it has no runtimeConfig
    reply = node.call("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert (reply.status, f"{cid_of(other)} was damaged; networks of" in reply.stderr.decode()) == (0, True)
    assert (held(node, *"ab"), list(links(living))) == ([1, 1], ["lo", "eth0", "net1"])


def test_a_file_that_cannot_be_read_keeps_gc_and_del_from_no_other_file(node, pod_netns, selecting):
    """Once, a directory among the results failed the GC of all containers, and DEL took the pod's list for damaged."""
    conf, living, dead = selecting("b"), pod_netns(), pod_netns()
    for pod in (living, dead):
        node.add(conf, pod)
    results = Path(node.data_dir, "multus", "results")
    (results / "old-files-2026").mkdir()
    run("ip", "netns", "del", dead)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(living), "ifname": "eth0"}]})
    assert held(node, *"ab") == [1, 1]
    unreadable = next(results.glob(f"b-{cid_of(living)}-*"))
    unreadable.unlink()
    unreadable.mkdir()
    assert str(unreadable) in node.refused("DEL", conf, living)["msg"]
    assert (list(links(living)), held(node, *"ab")) == (["lo"], [0, 0])
    unreadable.rmdir()
    node.delete(conf, living)
    assert kept(node) == []


def test_gc_keeps_the_networks_of_living_pods_whose_results_are_lost(node, pod_netns, selecting):
    conf, pods = selecting("b"), [pod_netns(), pod_netns()]
    for pod in pods:                            # because of the second pod's results, GC calls network b
        node.add(conf, pod)
    for path in Path(node.data_dir, "multus", "results").glob(f"*-{cid_of(pods[0])}-*"):
        path.unlink()
    found = elements(node, pods[0])
    del found[1]["ifnameRequest"]               # Multus writes an interface only if the annotation names it
    Path(node.data_dir, "multus", cid_of(pods[0])).write_text(json.dumps(found))
    valid = [{"containerID": cid_of(pod), "ifname": "eth0"} for pod in pods]
    node.ok("GC", {**conf, "cni.dev/valid-attachments": valid})
    assert held(node, *"ab") == [2, 2]


def test_gc_deletes_addresses_that_no_container_has(node, pod, abc):
    conf = multus(node, *abc)
    Path(node.data_dir, "b").mkdir(parents=True)
    Path(node.data_dir, "b", "10.1.2.50").write_text("lost\r\nnet1")
    node.add(conf, pod)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(pod), "ifname": "eth0"}]})
    assert list(node.held("b")) == ["10.1.2.2"]


def test_gc_keeps_pods_that_the_runtime_or_another_multus_added_to_the_network(node, pod_netns, abc, tmp_path,
                                                                              monkeypatch):
    """Once, GC of multus released the address of a running pod that was added before multus. GC of the network by a
    runtime released the addresses of multus' pods. The next pod got such an address."""
    monkeypatch.setattr(other_caches, "RUNTIME_DIR", str(tmp_path))
    for module in (keys, plugin):
        monkeypatch.setattr(module, "CNI_DIR", f"{node.data_dir}/multus")
    small = {**abc[0], "ipam": node.host_local("10.1.1.0/24", rangeStart="10.1.1.2", rangeEnd="10.1.1.4")}
    conf, old, living, new = multus(node, small), pod_netns(), pod_netns(), pod_netns()
    cache, rt = Cache(tmp_path), RuntimeConf(cid_of(old), f"/run/netns/{old}", "eth0")
    cache.write("a", json.dumps(small).encode(), rt, node.add(small, old))
    node.add(conf, living)
    Path(node.data_dir, "a", "10.1.1.4").write_text("lost\r\neth0")
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(living), "ifname": "eth0"}]})
    assert held(node, "a") == [2]
    node.ok("GC", {**small, "cni.dev/valid-attachments": [{"containerID": cid_of(old), "ifname": "eth0"}]})
    assert held(node, "a") == [2]
    node.ok("GC", {**conf, "cniDir": f"{tmp_path}/other", "cni.dev/valid-attachments": []})
    assert held(node, "a") == [2]
    assert node.add(conf, new)["ips"][0]["address"] == "10.1.1.4/24"
    node.delete(conf, new)
    run("ip", "netns", "del", old)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": cid_of(living), "ifname": "eth0"}]})
    assert list(node.held("a")) == ["10.1.1.3"]


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


