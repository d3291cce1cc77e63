"""Options of the plugins bridge and ptp. A plugin calls the module of an option only if the configuration has the
option."""

import pytest

from fastcni.kit.bridge import gateways, unflooded, vlans
from fastcni.kit.datapath import redirect
from fastcni.kit.firewall.masquerade import keys as masquerade
from fastcni.kit.firewall.spoofcheck import ip, mac

pytestmark = pytest.mark.usefixtures("fake_sockets")

# {network: (type, keys, modules of the options in the order of ADD, modules that DEL and GC call)}
NETWORKS = {
    "bridge without options": ("bridge", {}, [], []),
    "bridge": ("bridge", {"isGateway": True, "ipMasq": True, "ipspoofchk": True, "disableFlooding": True},
               [mac, ip, gateways, masquerade, unflooded], [mac, ip, masquerade, unflooded]),
    "bridge with a VLAN": ("bridge", {"vlan": 7, "macspoofchk": True, "ipMasq": True}, [vlans, mac, masquerade],
                           [mac, masquerade]),
    "ptp without options": ("ptp", {}, [], []),
    "ptp": ("ptp", {"ipMasq": True, "datapath": "auto"}, [masquerade, redirect], [masquerade, redirect]),
}


FUNCTIONS = {"ADD": "add", "DEL": "delete", "GC": "gc"}


@pytest.mark.parametrize("command", FUNCTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_plugin_goes_through_its_options_forwards_and_in_del_backwards(calls, monkeypatch, network, command):
    kind, keys, every, kept = NETWORKS[network]
    called = []
    for module in (vlans, mac, ip, gateways, masquerade, unflooded, redirect):
        if hasattr(module, FUNCTIONS[command]):         # the model of the kernel has neither VLANs nor BPF maps
            monkeypatch.setattr(module, FUNCTIONS[command], lambda *_, module=module: called.append(module))
    conf = calls.conf(kind, **keys, **{"cni.dev/valid-attachments": []})
    assert calls(command, conf)[0] == 0
    assert called == {"ADD": every, "DEL": kept[::-1], "GC": kept}[command]


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_del_releases_the_address_after_its_options(calls, monkeypatch, kind):
    """Another pod may get the address only when no rule for this pod remains."""
    conf, held, delete = calls.conf(kind, ipMasq=True), [], masquerade.delete
    assert calls("ADD", conf)[0] == 0
    monkeypatch.setattr(masquerade, "delete", lambda *args: held.append(calls.held()) or delete(*args))
    assert calls("DEL", conf) == (0, None)
    assert held == [["10.22.0.2"]]
    assert calls.held() == []
