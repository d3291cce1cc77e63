"""PodNetworks and `fastcni pod` with fastcni's own plugins on the real kernel."""

import json

import pytest
from lab.node import addresses, elements, links, run

from fastcni.cli import entry_point
from fastcni.launcher.install import install
from fastcni.runtime import CNI, CniError, InProcess, Pod, PodNetwork, PodNetworks


@pytest.fixture
def net_d(node, tmp_path):
    """Return a configuration directory with two networks. `one` is the default network, `two` is another network."""
    directory = tmp_path / "net.d"
    directory.mkdir()
    for number, name in enumerate(("one", "two"), 1):
        bridge = {"type": "bridge", "bridge": f"br{number}", "isGateway": True,
                  "ipam": {"type": "host-local", "dataDir": str(tmp_path / "networks"),
                           "ranges": [[{"subnet": f"10.{number}.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
        portmap = {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}}
        (directory / f"{number}0-{name}.conflist").write_text(json.dumps(
            {"cniVersion": "1.0.0", "name": name, "plugins": [bridge, portmap] if number == 1 else [bridge]}))
    return directory


def veths():
    return [name for name in links() if name.startswith("veth")]


def test_a_pod_with_two_networks_keeps_the_default_route_of_the_first(node, pod_netns, net_d, tmp_path):
    pod = pod_netns()
    networks = PodNetworks(CNI([], net_d, tmp_path / "cache", InProcess()))
    wanted = Pod("ctr", f"/run/netns/{pod}", networks=[PodNetwork("one"), PodNetwork("two")])
    status = networks.set_up_pod(wanted)
    assert (status.ips, [it.ifname for it in status.interfaces]) == (("10.1.0.2",), ["eth0", "eth1"])
    assert "UP" in links(pod)["lo"]["flags"]
    assert "dev eth0" in run("ip", "route", "show", "default", netns=pod)
    assert networks.pod_status(wanted, check=True).problems == ()
    run("ip", "address", "flush", "dev", "eth1", netns=pod)
    [problem] = networks.pod_status(wanted, check=True).problems
    assert problem.startswith("two eth1: ")
    networks.tear_down_pod(wanted)
    assert (veths(), networks.cni.attachments()) == ([], [])


def test_a_network_that_fails_leaves_nothing_of_the_others(node, pod_netns, net_d, tmp_path):
    pod = pod_netns()
    (net_d / "20-two.conflist").write_text(json.dumps(
        {"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "macvlan", "master": "absent0"}]}))
    networks = PodNetworks(CNI([], net_d, tmp_path / "cache", InProcess()))
    with pytest.raises(CniError, match="network two eth1"):
        networks.set_up_pod(Pod("ctr", f"/run/netns/{pod}", networks=[PodNetwork("one"), PodNetwork("two")]))
    assert (veths(), list(links(pod)), networks.cni.attachments()) == ([], ["lo"], [])
    assert "UP" not in links(pod)["lo"]["flags"]


@pytest.fixture
def fastcni(net_d, tmp_path, capfd):
    """Return a function that runs `fastcni pod` with installed plugins and returns (exit status, the decoded
    stdout)."""
    install(tmp_path / "bin")

    def fastcni(command, *args):
        status = entry_point.run(["pod", command, *args, "--conf-dir", str(net_d), "--bin-dir", str(tmp_path / "bin"),
                                  "--cache-dir", str(tmp_path / "cache"), "--json"])
        out, err = capfd.readouterr()
        return status, json.loads(out) if out else err
    return fastcni


def test_the_command_sets_up_a_pod_of_kubernetes_and_tears_it_down(node, pod_netns, fastcni, tmp_path):
    pod = pod_netns()
    spec = tmp_path / "pod.json"
    spec.write_text(json.dumps({"metadata": {"name": "web-0"}, "spec": {
        "containers": [{"name": "web", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}}))
    assert fastcni("ready") == (0, {"ready": True, "network": "one", "reason": "", "broken": []})
    status, document = fastcni("up", "ctr", f"/run/netns/{pod}", "--spec", str(spec), "-p", "10.0.0.9:53:5353/udp")
    assert (status, document["ips"], document["problems"]) == (0, ["10.1.0.2"], [])
    assert addresses("eth0", pod) == ["10.1.0.2/24"]
    assert (len(elements("hostports4")), len(elements("hostip-hostports4"))) == (1, 1)
    status, again = fastcni("status", "ctr", "--check")
    assert (status, again) == (0, document)
    status, error = fastcni("up", "ctr", f"/run/netns/{pod}")
    assert status == 1 and "is set up already" in error["msg"]
    assert fastcni("down", "ctr") == (0, {"containerID": "ctr", "detached": [{"network": "one", "ifname": "eth0"}]})
    assert (veths(), elements("hostports4"), elements("hostip-hostports4")) == ([], [], [])
    assert fastcni("down", "ctr", f"/run/netns/{pod}")[0] == 0
    assert fastcni("status", "ctr")[0] == 1


@pytest.mark.parametrize("args, text", [
    (("-p", "80"), "expected [HOSTIP:]PORT:PODPORT[/PROTOCOL]"), (("--ingress", "fast"), "is not a quantity"),
    (("--network", "three"), 'no net configuration with name "three"'), (("--annotation", "a"), "expected KEY=VALUE")])
def test_the_command_refuses_what_it_cannot_read(node, pod_netns, fastcni, args, text):
    status, error = fastcni("up", "ctr", f"/run/netns/{pod_netns()}", *args)
    assert status == 1 and text in error["msg"]
    assert veths() == []


def test_annotations_choose_networks_of_multus(node, pod_netns, net_d, fastcni, tmp_path):
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (net_d / "20-two.conflist").rename(definitions / "two.conflist")
    (net_d / "00-multus.conf").write_text(json.dumps({
        "cniVersion": "1.0.0", "name": "all", "type": "multus", "clusterNetwork": str(net_d / "10-one.conflist"),
        "confDir": str(definitions), "cniDir": str(tmp_path / "multus"),
        "capabilities": {"io.kubernetes.cri.pod-annotations": True}}))
    pod = pod_netns()
    status, document = fastcni("up", "ctr", f"/run/netns/{pod}", "--annotation", "k8s.v1.cni.cncf.io/networks=two@b0")
    assert (status, document["ips"]) == (0, ["10.1.0.2"])
    assert (addresses("eth0", pod), addresses("b0", pod)) == (["10.1.0.2/24"], ["10.2.0.2/24"])
    assert fastcni("down", "ctr")[0] == 0
    assert (veths(), list(links(pod))) == ([], ["lo"])


def test_a_host_port_that_no_plugin_of_the_network_maps_is_an_error(node, pod_netns, fastcni):
    """Once, the set-up of the pod succeeded, but its host port led nowhere."""
    status, error = fastcni("up", "ctr", f"/run/netns/{pod_netns()}", "--network", "two", "-p", "8080:80")
    assert (status, error["msg"]) == (1, "no plugin of network two maps host ports")
    assert veths() == []
