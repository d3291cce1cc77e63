"""Options of bridge and ptp: modules that the plugin calls only if the configuration asks for them."""

import pytest

from fastcni.kit.bridge import gateways, unflooded, vlans
from fastcni.kit.datapath import redirect
from fastcni.kit.firewall.masquerade import keys as masquerade
from fastcni.kit.firewall.spoofcheck import ip, mac

pytestmark = pytest.mark.usefixtures("fake_sockets")

# {network: (type, keys, its options in the order of ADD, those that DEL and GC know)}
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
        if hasattr(module, FUNCTIONS[command]):         # the model of the kernel has no VLANs and BPF maps
            monkeypatch.setattr(module, FUNCTIONS[command], lambda *_, module=module: called.append(module))
    conf = calls.conf(kind, **keys, **{"cni.dev/valid-attachments": []})
    assert calls(command, conf)[0] == 0
    assert called == {"ADD": every, "DEL": kept[::-1], "GC": kept}[command]


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_del_releases_the_address_after_its_options(calls, monkeypatch, kind):
    """Another pod gets the address only when nothing of this pod is left for it."""
    conf, held, delete = calls.conf(kind, ipMasq=True), [], masquerade.delete
    assert calls("ADD", conf)[0] == 0
    monkeypatch.setattr(masquerade, "delete", lambda *args: held.append(calls.held()) or delete(*args))
    assert calls("DEL", conf) == (0, None)
    assert held == [["10.22.0.2"]]
    assert calls.held() == []
