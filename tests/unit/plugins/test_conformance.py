"""fastcni's own plugins pass the Conformance class that fastcni offers to other plugins."""

import copy

import pytest
from unit.agent.policy.stub_agent import StubAgent
from unit.dhcp.stub_daemon import StubDaemon
from unit.plugins.stub_ovsdb import StubOvsdb

from fastcni import plugins
from fastcni.dhcp import links
from fastcni.kernel import uapi
from fastcni.kit.call.undo import Undo
from fastcni.testing import Conformance

pytestmark = pytest.mark.usefixtures("fake_sockets")
SUBNET = "FLANNEL_NETWORK=10.22.0.0/16\nFLANNEL_SUBNET=10.22.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
IPAM = {"type": "host-local", "subnet": "10.22.0.0/16"}
CASES = {
    "bandwidth": ({"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000},
                  [{"ingressRate": 1}, {"egressBurst": -1}]),
    "bridge": ({"isGateway": True}, [{"mtu": "big"}, {"vlan": 5000}, {"ipam": {"type": "ptp"}}]),
    "bridge, masquerade": ({"isGateway": True, "ipMasq": True, "macspoofchk": True}, []),
    "chain": ({"plugins": [
        {"type": "bridge", "isGateway": True, "ipMasq": True, "ipam": IPAM},
        {"type": "portmap", "capabilities": {"portMappings": True}}, {"type": "tuning", "mtu": 1400}],
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}},
        [{"plugins": []}, {"plugins": [{"type": "chain"}]}, {"plugins": [{"mtu": 5}]}, {"plugins": {}},
         {"plugins": [{"type": "ptp", "ipam": IPAM}, {"type": "bandwidth", "ingressRate": 1}]}]),
    "chain, loopback": ({"plugins": [{"type": "loopback"}, {"type": "ptp", "ipam": IPAM}]}, []),
    "cluster": ({}, [{"ipam": {"type": "cluster"}}, {"ipam": {"type": "cluster", "range": "nonsense"}}]),
    "dhcp": ({"ipam": {"type": "dhcp", "priority": 5}}, [{"ipam": {"priority": -1}}, {"ipam": {"request": [{}]}}]),
    "dummy": ({}, [{"ipam": {}}]),
    "firewall": ({}, [{"ingressPolicy": "none"}]),
    "firewall, nftables": ({"backend": "nftables", "ingressPolicy": "same-bridge"}, []),
    "flannel": ({"delegate": {"type": "ptp"}}, [{"delegate": {"type": "flannel"}}, {"delegate": {"name": "x"}}]),
    "host-device": ({"device": "down0"}, [{"device": ""}, {"device": "a/b"}]),
    "host-local": ({}, [{"ipam": {**IPAM, "subnet": "nonsense"}}, {"ipam": {**IPAM, "rangeStart": "10.9.0.1"}}]),
    "ipvlan": ({"master": "up0"}, [{"mode": "l4"}, {"ipam": {}}]),
    "loopback": ({}, []),
    "macvlan": ({"master": "up0"}, [{"mode": "none"}]),
    "multus": ({"delegates": [
        {"name": "first", "type": "bridge", "isGateway": True, "ipMasq": True, "ipam": IPAM},
        {"name": "second", "plugins": [{"type": "ptp", "ipam": IPAM}, {"type": "tuning", "mtu": 1400}]}]},
        [{"delegates": []}, {"delegates": [{"type": "multus-shim"}]}, {"delegates": [{"mtu": 5}]}, {"delegates": {}},
         {"delegates": [{"type": "ptp", "ipam": IPAM}, {"type": "bandwidth", "ingressRate": 1}]}]),
    "multus-shim": ({"delegates": [{"type": "ptp", "ipam": IPAM}]}, [{"delegates": [], "clusterNetwork": "/nowhere"}]),
    "ovs": ({"bridge": "br0", "vlan": 100}, [{"vlan": 4095}, {"trunk": [{"minID": 9, "maxID": 8}]}, {"bridge": ""}]),
    "policy": ({"runtimeConfig": {"labels": {"app": "web"}}},
               [{"runtimeConfig": {"labels": {"app": 5}}}, {"args": {"cni": {"labels": {}}}}]),
    "portmap": ({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}},
                [{"runtimeConfig": {"portMappings": [{"hostPort": 70000, "containerPort": 80}]}}, {"backend": "none"}]),
    "ptp": ({}, [{"mtu": 70000}, {"ipMasq": 1}]),
    "ptp, masquerade": ({"ipMasq": True}, []),
    "sbr": ({}, [{"table": -1}, {"gateways": ["nowhere"]}]),
    "static": ({"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/16"}]}}, [
        {"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9"}]}}]),
    "tap": ({}, [{"mtu": "big"}, {"owner": -1}]),
    "tuning": ({"mtu": 1400, "mac": "02:00:00:00:00:07", "promisc": True, "txQLen": 5,
                "sysctl": {"net.ipv4.ip_unprivileged_port_start": "80"}},
               [{"mac": "zz"}, {"sysctl": {"kernel.panic": "1"}}]),
    "vlan": ({"master": "up0", "vlanId": 5}, [{"vlanId": 5000}]),
    "vrf": ({"vrfname": "blue"}, [{"vrfname": ""}, {"table": -1}]),
    "whereabouts": ({}, [{"ipam": {"type": "whereabouts", "ipRanges": [{}]}}]),
}


def test_each_plugin_of_the_table_has_a_case():
    assert {case.split(",")[0] for case in CASES} == set(plugins.BUILT_IN)


@pytest.fixture(params=CASES)
def case(request):
    return request.param


@pytest.fixture
def daemon(case, fake_runtime, monkeypatch):
    """Run the service that the case's plugin needs: a dhcp daemon that accepts any path as a namespace, an OVSDB
    server, or an agent."""
    if case == "ovs":
        with StubOvsdb("br0") as ovsdb:
            yield ovsdb
        return
    if case == "policy":
        with StubAgent(str(fake_runtime.directory / "policy.sock"), lambda: fake_runtime.data) as agent:
            yield agent
        return
    if case != "dhcp":
        yield None
        return
    monkeypatch.setattr(links, "inode_of", lambda path: 1 if path in fake_runtime.pods else 0)
    with StubDaemon(lambda: fake_runtime.data) as daemon:
        yield daemon


class TestOwnPlugins(Conformance):
    def prepare(self, node):
        if self.plugin == "dhcp":
            self.conf = {"ipam": {"daemonSocketPath": self.daemon.path, **CASES[self.case][0]["ipam"]}}
        if self.plugin == "ovs":
            self.conf = {"socket_file": self.daemon.path, "dataDir": str(self.runtime.data / "ovs"),
                         **CASES[self.case][0]}
        if self.plugin == "policy":
            self.conf = {"agentSocketPath": self.daemon.path, **CASES[self.case][0]}
        node.add_link("up0", "", flags=uapi.IFF_UP)
        node.add_link("down0", "")
        if self.plugin in ("flannel", "host-device", "tuning"):
            self.conf = {**CASES[self.case][0], "dataDir": str(self.runtime.data / self.plugin)}
        if self.plugin in ("chain", "multus", "multus-shim"):
            self.conf, self.bad_confs = copy.deepcopy(CASES[self.case])
            for each in (self.conf, *self.bad_confs):
                each |= {"cniDir": str(self.runtime.data / "multus")} if self.plugin != "chain" else {}
                networks = each.get("delegates", each.get("plugins"))
                for nested in [plugin for network in networks for plugin in network.get("plugins", [network])]:
                    if nested.get("type") == "tuning":
                        nested["dataDir"] = str(self.runtime.data / "tuning")
                    if "ipam" in nested:
                        nested["ipam"]["dataDir"] = str(self.runtime.data)
        if self.plugin in ("cluster", "whereabouts"):
            self.conf = {"ipam": {"type": self.plugin, "range": "10.22.0.0/16", "dataDir": str(self.runtime.data),
                                  "store": {"type": "local", "path": str(self.runtime.directory / "store")}}}
        if self.plugin == "flannel":
            self.conf["ipam"] = {"dataDir": str(self.runtime.data)}
            self.conf["subnetFile"] = str(self.runtime.directory / "subnet.env")
            (self.runtime.directory / "subnet.env").write_text(SUBNET)

    @pytest.fixture(autouse=True)
    def _table(self, case, fake_runtime, daemon):
        self.begin(case, fake_runtime, daemon)

    def begin(self, case, runtime, daemon):
        self.daemon = daemon
        self.case = case
        self.plugin, (self.conf, self.bad_confs) = case.split(",")[0], CASES[case]
        self.asks_kernel = self.plugin not in (*plugins.IPAM, "policy")
        self.runtime = runtime
        self.fresh()


# -- the class notices a plugin that violates a rule ------------------------------------------------------------------

# the ADD of these plugins has nothing to roll back
ONE_STEP = ("cluster", "dhcp", "policy", "static", "host-local", "whereabouts", "loopback", "firewall")
ENDS_WITH_THE_POD = ("static", "sbr", "tuning")                 # the changes of these plugins' ADD end with the pod


@pytest.fixture
def conformance(case, fake_runtime, daemon):
    it = TestOwnPlugins()
    it.begin(case, fake_runtime, daemon)
    return it


@pytest.mark.parametrize("case", [case for case in CASES if case not in ONE_STEP])
def test_an_add_without_rollback_fails_the_class(conformance, monkeypatch):
    monkeypatch.setattr(Undo, "__exit__", lambda *_: None)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        conformance.test_an_add_is_rolled_back_at_each_refused_request()


@pytest.mark.parametrize("case", [case for case in CASES if case not in ENDS_WITH_THE_POD])
def test_a_del_that_does_nothing_fails_the_class(conformance, monkeypatch):
    monkeypatch.setattr(plugins.load(conformance.plugin), "delete", lambda req, conf: None)
    with pytest.raises(AssertionError):
        conformance.test_del_undoes_add()
