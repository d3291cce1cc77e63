"""The validation of a network's configuration: unknown keys, wrong values, missing plugins, unused capabilities."""

import json

import pytest

from fastcni import plugins
from fastcni.agent import files
from fastcni.runtime import parse_list
from fastcni.runtime.validate import ERROR, WARNING, validate

IPAM = {"type": "host-local", "subnet": "10.1.0.0/24"}


@pytest.fixture
def found(tmp_path):
    """Return a function found(*confs, **keys) that validates a list of these plugins. It returns {path: (severity,
    what, hint)}. All plugins are installed."""
    for kind in [*plugins.TABLE, "acme"]:
        (tmp_path / kind).touch()

    def found(*confs, **keys):
        document = {"cniVersion": "1.0.0", "name": "net", "plugins": confs} | keys
        return {it.where: (it.severity, it.what, it.hint)
                for it in validate(parse_list(json.dumps(document).encode()), [str(tmp_path)])}

    return found


@pytest.mark.parametrize("where, conf, meant", [
    ("isGatway", {"type": "bridge", "isGatway": True}, "isGateway"),
    ("ipam.rangeStrt", {"type": "ptp", "ipam": {**IPAM, "rangeStrt": "10.1.0.9"}}, "rangeStart"),
    ("ipam.ranges[0][0].rangeStrt", {"type": "ptp", "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24", "rangeStrt": ""}]]}}, "rangeStart"),
    ("vrfnam", {"type": "vrf", "vrfnam": "blue"}, "vrfname"),
    ("snatt", {"type": "portmap", "capabilities": {"portMappings": True}, "snatt": False}, "snat"),
    ("delegate.isGatway", {"type": "flannel", "delegate": {"isGatway": True}}, "isGateway"),
    ("ipam.dataDirr", {"type": "flannel", "ipam": {"dataDirr": "/run/x"}}, "dataDir"),
    ("plugins[1].snatt", {"type": "chain", "plugins": [{"type": "ptp"}, {"type": "portmap", "snatt": True}]}, "snat"),
    ("plugns", {"type": "chain", "plugns": []}, "plugins"),
    ("ingressRat", {"type": "bandwidth", "ingressRat": 1000}, "ingressRate"),
])
def test_a_misspelt_key_is_found(found, where, conf, meant):
    severity, what, hint = found(conf)[f"plugins[0].{where}"]
    assert severity == WARNING
    assert what == f'unknown key "{where.rpartition(".")[2]}"'
    assert hint == f'did you mean "{meant}"?'


@pytest.mark.parametrize("conf", [
    {"type": "flannel"}, {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True}},
    {"type": "flannel", "ipam": {"type": "host-local", "dataDir": "/run/x"}}])
def test_flannel_needs_no_ipam_because_it_writes_it(found, conf):
    """Once, strict validation reported "IPAM config missing 'ipam' key" and "ADD fails" for each list with flannel."""
    assert found(conf) == {}


def test_the_list_that_the_agent_writes_has_no_fault(found, tmp_path):
    files.write_conflist(str(tmp_path / "10-flannel.conflist"), policies=True)
    document = json.loads((tmp_path / "10-flannel.conflist").read_text())
    assert found(*document["plugins"]) == {}


def test_a_key_of_the_list_is_found(found):
    assert found({"type": "loopback"}, disableChek=True) == {
        "disableChek": (WARNING, 'unknown key "disableChek"', 'did you mean "disableCheck"?')}


def test_each_value_of_a_wrong_type_is_found(found):
    wrong = found({"type": "bridge", "mtu": "1500", "hairpinMode": 1, "ipam": {**IPAM, "resolvConf": 5}})
    assert wrong == {
        "plugins[0].mtu": (ERROR, 'expected an integer up to 65535, got string "1500"', ""),
        "plugins[0].hairpinMode": (ERROR, "expected true or false, got number 1", ""),
        "plugins[0].ipam.resolvConf": (ERROR, "expected a string, got number 5", "")}


def test_the_error_of_read_is_found(found):
    assert found({"type": "ptp", "ipam": {**IPAM, "subnet": "10.1.0.1/24"}}) == {"plugins[0]": (
        ERROR, "host-local: invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network "
        "address is 10.1.0.0", "ipam")}


def test_a_missing_plugin_is_found(found):
    assert found({"type": "bridg"})["plugins[0].type"][::2] == (ERROR, 'did you mean "bridge"?')


def test_a_capability_that_no_plugin_takes_is_found(found):
    assert list(found({"type": "bridge", "ipam": IPAM, "capabilities": {"ips": True, "bandwidth": True}})) == [
        "plugins[0].capabilities.bandwidth"]


def test_a_plugin_that_fastcni_does_not_have_is_not_judged(found):
    assert found({"type": "acme", "capabilities": {"x": True}, "key": 1},
                 {"type": "bridge", "ipam": {"type": "acme", "provide": []}, "capabilities": {"x": True}}) == {}


DNS = {"nameservers": ["10.0.0.53"], "domain": "example", "search": ["example"], "options": ["ndots:2"]}
HOST_LOCAL = {"type": "host-local", "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.5", "rangeEnd": "10.2.0.9",
              "gateway": "10.2.0.1", "dataDir": "/run/x", "resolvConf": "/etc/resolv.conf", "fsync": True,
              "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.9",
                           "gateway": "10.1.0.1"}]],
              "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 7,
                          "scope": 0}]}
CLUSTER_RANGE = {"range": "10.3.0.0/24", "range_start": "10.3.0.5", "range_end": "10.3.0.99",
                 "exclude": ["10.3.0.7/32"], "gateway": "10.3.0.1"}
CLUSTER = {"type": "cluster", **CLUSTER_RANGE, "ipRanges": [{**CLUSTER_RANGE, "range": "10.4.0.0/24"}], "routes": [],
           "addresses": [{"address": "10.5.0.2/24", "gateway": "10.5.0.1"}], "dns": DNS, "network_name": "x",
           "enable_overlapping_ranges": False, "node_slice_size": "/28", "leader_lease_duration": 1500,
           "leader_renew_deadline": 1000, "leader_retry_period": 500, "log_file": "/run/x", "log_level": "debug",
           "reconciler_cron_expression": "30 4 * * *", "sleep_for_race": 0, "configuration_path": "/run/x",
           "kubernetes": {"kubeconfig": "/run/x", "k8s_api_root": "https://[::1]"}, "datastore": "kubernetes",
           "etcd_host": "x", "etcd_username": "x", "etcd_password": "x", "etcd_key_file": "x", "etcd_cert_file": "x",
           "etcd_ca_cert_file": "x", "sticky": "pod", "cool_down": 30, "exclude_gateway": True, "block_size": 28,
           "block_size6": 124, "node_name": "x", "dataDir": "/run/x", "fsync": True, "serve_after_loss": 3600,
           "reclaim_after": 86400}
ETCD = {"type": "etcd", "endpoints": ["https://[::1]:2379"], "ca": "/run/x", "cert": "/run/x", "key": "/run/x",
        "username": "x", "password": "x", "password_file": "/run/x", "prefix": "/x", "node_ttl": 60, "dead_after": 600}
DEVICE = {"ipam": HOST_LOCAL, "dns": DNS, "enabledad": True, "disableIPv6": False}
MULTUS = {"defaultNetworks": [], "multusNamespace": "x", "systemNamespaces": ["x"], "namespaceIsolation": True,
          "globalNamespaces": "x", "readinessindicatorfile": "/run/x", "cniDir": "/run/x", "confDir": "/run/x",
          "binDir": "/run/x", "logFile": "/run/x", "logLevel": "debug", "logOptions": {}, "logToStderr": True,
          "daemonSocketDir": "/run/x", "kubeconfig": "/run/x", "retryDeleteOnError": True, "hotPlug": True,
          "capabilities": {"io.kubernetes.cri.pod-annotations": True, "portMappings": True}}
# {case: a configuration with every key of that plugin}
COMPLETE = {
    "bandwidth": {"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000,
                  "unshapedSubnets": ["10.0.0.0/8"], "capabilities": {"bandwidth": True}},
    "bandwidth, other key": {"shapedSubnets": ["10.0.0.0/8"]},
    "bridge": {**DEVICE, "bridge": "cni1", "isGateway": True, "isDefaultGateway": True, "forceAddress": False,
               "ipMasq": True, "ipMasqBackend": "nftables", "mtu": 1400, "hairpinMode": True, "promiscMode": False,
               "vlan": 5, "preserveDefaultVlan": False, "macspoofchk": True, "ipspoofchk": True,
               "disableContainerInterface": False, "portIsolation": True, "disableFlooding": False,
               "capabilities": {"mac": True, "ips": True, "ipRanges": True}},
    "bridge, trunk": {"vlanTrunk": [{"minID": 3, "maxID": 5}, {"id": 9}], "ipam": {}},
    "chain": {"args": {}, "capabilities": {"portMappings": True, "mac": True}, "plugins": [
        {"type": "bridge", **DEVICE, "isGateway": True, "capabilities": {"mac": True}},
        {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}, {"type": "acme", "anything": 5}]},
    "cluster": {"ipam": CLUSTER | {"store": ETCD}},
    "cluster, local": {"ipam": CLUSTER | {"store": {"type": "local", "path": "/run/x"}}},
    "dhcp": {"ipam": {"type": "dhcp", "daemonSocketPath": "/run/x", "priority": 5, "provide": [
        {"option": "host-name", "value": "x", "fromArg": "K8S_POD_NAME"}], "request": [
            {"option": "121", "skipDefault": True}]}},
    "dummy": {**DEVICE, "capabilities": {"mac": True}},
    "firewall": {"backend": "iptables", "iptablesAdminChainName": "A", "firewalldZone": "trusted",
                 "ingressPolicy": "same-bridge"},
    "flannel": {"subnetFile": "/run/x", "dataDir": "/run/y", "delegate": {"type": "ptp", "mtu": 1400, "ipMasq": True},
                "ipam": {"type": "host-local", "dataDir": "/run/z", "routes": []}},
    "host-device": {"device": "eth9", "hwaddr": "02:00:00:00:00:01", "kernelpath": "/sys/devices/x",
                    "pciBusID": "0000:00:1f.6", "dataDir": "/run/x", **DEVICE,
                    "capabilities": {"deviceID": True, "mac": True}},
    "host-local": {"ipam": HOST_LOCAL},
    "ipvlan": {**DEVICE, "master": "eth9", "mode": "l3", "mtu": 1400, "linkInContainer": False},
    "loopback": {},
    "macvlan": {**DEVICE, "master": "eth9", "mode": "vepa", "mtu": 1400, "mac": "02:00:00:00:00:01",
                "linkInContainer": False, "bcqueuelen": 5},
    "multus": MULTUS | {"delegates": [{"type": "acme", "anything": 5}]},
    "multus-shim": MULTUS | {"clusterNetwork": "/etc/cni/net.d/10-mynet.conflist", "auxiliaryCNIChainName": "x"},
    "ovs": {**DEVICE, "bridge": "br0", "vlan": 5, "trunk": [{"minID": 1, "maxID": 2}, {"id": 5}], "mtu": 1400,
            "ofport_request": 7, "interface_type": "system", "socket_file": "unix:/run/x", "dataDir": "/run/x",
            "configuration_path": "/run/x", "link_state_check_retries": 5, "link_state_check_interval": 100,
            "deviceID": "", "args": {"cni": {"mac": "02:00:00:00:00:01", "ovnPort": "x"}}},
    "ovs, a tunnel": {"bridge": "br0", "vxlanID": 42},
    "policy": {"agentSocketPath": "/run/x", "capabilities": {"labels": True}, "dhcp": True,
               "allowedAddressPairs": [{"ipAddress": "10.0.0.9", "macAddress": "02:00:00:00:00:09"}],
               "allowedEtherTypes": ["0x8847"], "allowRouterAdvertisements": True,
               "args": {"cni": {"labels": [{"key": "app", "value": "web"}]}}},
    "portmap": {"backend": "iptables", "snat": True, "masqAll": True, "markMasqBit": 3,
                "conditionsV4": ["-s", "10.0.0.0/8"], "conditionsV6": ["-s", "fd00::/8"],
                "capabilities": {"portMappings": True}},
    "portmap, iptables": {"backend": "iptables", "externalSetMarkChain": "A"},
    "ptp": {**DEVICE, "ipMasq": True, "ipMasqBackend": "iptables", "mtu": 1400, "datapath": "ebpf"},
    "sbr": {"table": 7, "gateways": ["10.0.0.1"], "addSourceHints": True},
    "static": {"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
                        "routes": HOST_LOCAL["routes"], "dns": DNS}},
    "tap": {**DEVICE, "multiQueue": True, "mtu": 1400, "mac": "02:00:00:00:00:01", "owner": 1, "group": 1,
            "selinuxContext": "a:b:c", "bridge": "br0"},
    "tuning": {"sysctl": {"net.core.somaxconn": "5"}, "mac": "02:00:00:00:00:01", "promisc": True, "mtu": 1400,
               "allmulti": True, "txQLen": 5, "dataDir": "/run/x", "capabilities": {"mac": True}},
    "vlan": {**DEVICE, "master": "eth9", "vlanId": 5, "mtu": 1400, "linkInContainer": False},
    "vrf": {"vrfname": "blue", "table": 7},
    "whereabouts": {"ipam": CLUSTER | {"type": "whereabouts", "store": {
        "type": "kubernetes", "kubeconfig": "/run/x", "k8s_api_root": "https://[::1]", "context": "x",
        "namespace": "x"}}},
}


def test_each_plugin_of_the_table_has_a_complete_configuration():
    assert {case.partition(",")[0] for case in COMPLETE} == set(plugins.BUILT_IN)


@pytest.mark.parametrize("case", COMPLETE)
def test_every_key_of_a_plugin_is_known(found, case):
    """The configurations also have the keys that read() reads only on some condition."""
    assert found({"type": case.partition(",")[0], **COMPLETE[case]}) == {}
