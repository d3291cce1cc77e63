"""Give each key and each variable odd values. An error names the value, and never says "fault of fastcni"."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.node import run

from fastcni.kit.ipam.cluster import conf as cluster_conf
from fastcni.kit.ipam.cluster import stores
from fastcni.plugins import TABLE

PREVIOUS = {
    "cniVersion": "1.1.0", "dns": {"nameservers": ["192.0.2.1"]}, "routes": [{"dst": "0.0.0.0/0", "gw": "10.22.0.1"}],
    "interfaces": [{"name": "br0", "mac": "02:00:00:00:00:01"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
    "ips": [{"address": "10.22.0.5/24", "gateway": "10.22.0.1", "interface": 1}]}
COMMON = {
    "prevResult": PREVIOUS, "dns": {"search": ["x"]},
    "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "b"}],
    "args": {"cni": {"mac": "02:00:00:00:00:09", "ips": ["10.22.0.9/24"], "sysctl": {"net.ipv4.ip_forward": "1"}}},
    "runtimeConfig": {"mac": "02:00:00:00:00:09", "ips": ["10.22.0.9/24"], "ipRanges": [[{"subnet": "10.23.0.0/24"}]],
                      "portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}],
                      "bandwidth": {"ingressRate": 8000, "ingressBurst": 8000}, "deviceID": ""}}
CLUSTER = {"ipam": {
    "range": "10.22.0.0/24", "range_start": "10.22.0.5", "range_end": "10.22.0.99", "exclude": ["10.22.0.8/30"],
    "gateway": "10.22.0.1", "ipRanges": [{"range": "fd00:22::/64"}], "network_name": "odd", "node_name": "a",
    "sticky": "pod", "cool_down": 1, "block_size": 28, "node_slice_size": "/28", "exclude_gateway": True,
    "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}], "kubernetes": {"kubeconfig": ""},
    "store": {"type": "local", "node_ttl": 60}}}
MULTUS = {
    "delegates": [{"name": "a", "type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/24"}]}}],
    "defaultNetworks": ["b"], "namespaceIsolation": True, "globalNamespaces": "x", "systemNamespaces": ["kube-system"],
    "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {
        "k8s.v1.cni.cncf.io/networks": "", "v1.multus-cni.io/default-network": ""}}}
KEYS = {
    "bridge": {"bridge": "br0", "isGateway": True, "ipMasq": True, "ipspoofchk": True, "mtu": 1400,
               "vlanTrunk": [{"id": 5}]},
    "ptp": {"ipMasq": True, "mtu": 1400}, "macvlan": {"master": "up0", "mode": "bridge", "mtu": 1400},
    "ipvlan": {"master": "up0", "mode": "l2"}, "vlan": {"master": "up0", "vlanId": 5}, "dummy": {"bridge": ""},
    "tap": {"owner": 1, "group": 2, "bridge": "", "mac": ""}, "host-device": {"device": "up0", "hwaddr": ""},
    "flannel": {"delegate": {"bridge": "br0"}}, "loopback": {}, "host-local": {},
    "chain": {"capabilities": {"portMappings": True}, "plugins": [
        {"type": "bridge", "bridge": "br1", "isGateway": True,
         "ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/24", "gateway": "10.22.0.1"}]}},
        {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
        {"type": "tuning", "mtu": 1400}]},
    "multus": MULTUS, "multus-shim": MULTUS,
    "ovs": {"bridge": "br0", "vlan": 5, "trunk": [{"id": 5, "minID": 7, "maxID": 9}], "mtu": 1400, "ofport_request": 5,
            "interface_type": "", "socket_file": "unix:/nowhere/db.sock", "configuration_path": "/nowhere",
            "link_state_check_retries": 5, "link_state_check_interval": 5},
    "dhcp": {"ipam": {"type": "dhcp", "daemonSocketPath": "/nowhere/dhcp.sock", "priority": 5, "request": [{
        "option": "121", "skipDefault": True}], "provide": [{"option": "host-name", "value": "a", "fromArg": "K"}]}},
    "cluster": CLUSTER, "whereabouts": CLUSTER,
    "static": {"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/24", "gateway": "10.22.0.1"}],
                        "routes": [{"dst": "10.0.0.0/8"}], "dns": {}}},
    "bandwidth": {"ingressRate": 8000, "ingressBurst": 80000, "shapedSubnets": ["10.0.0.0/8"]},
    "firewall": {"backend": "nftables", "ingressPolicy": "isolated", "iptablesAdminChainName": "X"},
    "policy": {"agentSocketPath": "/nowhere/policy.sock", "runtimeConfig": {"labels": {"app": "web"}},
               "args": {"cni": {"labels": [{"key": "app", "value": "web"}]}}},
    "portmap": {"backend": "nftables", "snat": True, "conditionsV4": []}, "vrf": {"vrfname": "blue", "table": 10},
    "sbr": {"table": 100, "gateways": ["10.22.0.1"], "addSourceHints": True},
    "tuning": {"sysctl": {"net.ipv4.ip_forward": "1"}, "mtu": 1400, "promisc": True, "txQLen": 5}}
ODD = [None, 0, -1, 7, 1 << 31, 1 << 63, 1.5, True, False, "", "x", "\0", "a\0b", "\ud800", "\xe9" * 20, "/", "../..",
       "10.22.0.300", "::1", "fd00::/64", "::ffff:192.0.2.1/96", [], [[]], [{}], [None], {}, {"a": 1}, [7], ["\0"],
       "-" * 300, "lo", "eth0", "%d", "0.0.0.0/0", [{"address": "10.1.1.1/24"}], " ", "ff:ff:ff:ff:ff:ff", "iptables"]
VARIABLES = ["\udcff", "\xe9", "a\udcff", "lo", "x" * 300, "MAC=\udcff", "IP=\udcff", "IgnoreUnknown=1;K=\udcff", "%",
             "/\udcff", ":\udcff:", "\x01", ""]


def paths(value, at=()):
    """Yield the path of each value in a document, without the document itself."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from paths(item, (*at, key))


@pytest.fixture
def documents(node, monkeypatch):
    """Return {kind: a valid configuration} of each plugin. No plugin uses a file of the machine."""
    monkeypatch.setattr(cluster_conf, "DATA_DIR", f"{node.data_dir}/cluster")
    monkeypatch.setattr(stores, "LOCAL_PATH", f"{node.data_dir}/store")
    run("ip", "link", "add", "up0", "type", "veth", "peer", "ext0")
    run("ip", "link", "set", "up0", "up")
    subnet_file = node.subnet_file("10.22.0.0/24")
    made = {}
    for kind, keys in KEYS.items():
        places = {"dataDir": f"{node.data_dir}/{kind}", "subnetFile": subnet_file, "cniDir": f"{node.data_dir}/{kind}"}
        made[kind] = {**node.conf(type=kind, routes=["0.0.0.0/0"]), **COMMON, **places, **keys}
    return made


def test_each_plugin_is_tried():
    assert set(KEYS) == set(TABLE)


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_value_is_a_fault_of_fastcni(node, pod, documents, kind, data):
    """Once, three values were a "fault of fastcni": `{}` in prevResult.ips, NUL, and names that are not UTF-8."""
    document = copy.deepcopy(documents[kind])
    for _ in range(data.draw(st.integers(1, 2))):
        *above, key = data.draw(st.sampled_from(sorted(paths(document), key=str)))
        place = document
        for step in above:
            place = place[step]
        place[key] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
    env = {}
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH", "CNI_ARGS"]))
        env[name] = data.draw(st.sampled_from(VARIABLES))
    for command in (*data.draw(st.permutations(["ADD", "CHECK", "GC", "STATUS"]))[:2], "DEL"):
        reply = node.call(command, document, pod, plugin=kind, env=env)
        if reply.status:
            error = json.loads(reply.stdout)
            assert error["msg"], (command, document, env)
            assert "fault of fastcni" not in error.get("details", ""), (command, document, env)


@pytest.mark.parametrize("kind", ["sbr", "firewall", "portmap", "bridge", "tuning", "vrf", "bandwidth"])
def test_an_address_without_text_in_prev_result_is_refused_and_del_succeeds(node, pod, documents, kind):
    document = {**documents[kind], "prevResult": {**PREVIOUS, "ips": [{}]}}
    error = node.refused("CHECK", document, pod, plugin=kind)
    # bridge asks IPAM before it reads prevResult
    assert kind == "bridge" or "result.ips[0] has no address" in error["msg"]
    node.delete(document, pod, plugin=kind)
