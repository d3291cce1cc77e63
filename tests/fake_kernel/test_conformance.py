"""fastcni's own plugins pass the conformance class that it offers to others; those that the fake node can serve."""

import pytest

from fastcni import plugins
from fastcni.kernel import uapi
from fastcni.testing import Conformance

IPAM = {"type": "host-local", "subnet": "10.22.0.0/16"}
CASES = {
    "bridge": ({"isGateway": True}, [{"mtu": "big"}, {"vlan": 5000}, {"ipam": {"type": "ptp"}}]),
    "bridge, masquerade": ({"isGateway": True, "ipMasq": True, "macspoofchk": True}, []),
    "dummy": ({}, [{"ipam": {}}]),
    "host-local": ({}, [{"ipam": {**IPAM, "subnet": "nonsense"}}, {"ipam": {**IPAM, "rangeStart": "10.9.0.1"}}]),
    "ipvlan": ({"master": "up0"}, [{"mode": "l4"}, {"ipam": {}}]),
    "loopback": ({}, []),
    "macvlan": ({"master": "up0"}, [{"mode": "none"}]),
    "ptp": ({}, [{"mtu": 70000}, {"ipMasq": 1}]),
    "ptp, masquerade": ({"ipMasq": True}, []),
    "static": ({"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9/16"}]}}, [
        {"ipam": {"type": "static", "addresses": [{"address": "10.22.0.9"}]}}]),
    "vlan": ({"master": "up0", "vlanId": 5}, [{"vlanId": 5000}]),
}


@pytest.fixture(params=CASES)
def case(request):
    return request.param


class TestOwnPlugins(Conformance):
    def prepare(self, node):
        node.add_link("up0", "", flags=uapi.IFF_UP)

    @pytest.fixture(autouse=True)
    def _table(self, case, fake_runtime, monkeypatch):
        self.plugin, (self.conf, self.bad_confs) = case.split(",")[0], CASES[case]
        self.asks_kernel = self.plugin not in plugins.IPAM
        self.runtime = fake_runtime
        self.fresh()
