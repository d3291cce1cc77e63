"""The table of plugins in docs/plugins.md is the table that the code generates, and names the right capabilities and
CNI_ARGS."""

import io
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import PEER
from project.plugin_contract import PLUGINS
from rich.console import Console
from side_by_side import test_firewall, test_flannel, test_portmap
from side_by_side.test_results_and_state import ALL_STORIES
from unit.dhcp import test_daemon

from fastcni import plugins
from fastcni.cli.commands import cli
from fastcni.cli.plugins import as_markdown, features, print_all, print_one
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.runtime.schema import EXAMPLES
from fastcni.spec.errors import CniError

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"
# runtimeConfig with every capability. The value 7 has the wrong type for each, so a plugin that reads a capability
# fails.
CAPABILITIES = {"mac": 7, "ips": 7, "ipRanges": 7, "portMappings": 7, "bandwidth": 7, "deviceID": 7,
                "labels": 7}        # 7 is no value

# {plugin: (keys that the plugin must reject, the error's code, a part of the error's text)}
REFUSED = {
    "bandwidth": ({"ingressRate": -1}, 7, "ingressRate: expected an integer from 0 up"),
    "bridge": ({"hairpinMode": True, "promiscMode": True}, 7, "cannot set hairpin mode and promiscuous mode"),
    "chain": ({"plugins": [{"type": "ptp"}, {"type": "chain", "plugins": []}]}, 7,
              "plugins[1]: a chain inside a chain; move its plugins into the outer chain"),
    "cluster": ({"ipam": {}}, 7, "no IP ranges specified"),
    "dhcp": ({"ipam": {"request": [{"option": "router"}]}}, 7, 'Can not parse option "router"'),
    "dummy": ({"ipam": {}}, 7, "dummy interface requires an IPAM configuration"),
    "firewall": ({"ingressPolicy": "nobody"}, 7, "nobody"),
    "flannel": ({"delegate": 7}, 7, "delegate: expected an object, got number 7"),
    "host-device": ({"device": ""}, 7, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
    "host-local": ({"ipam": {}}, 7, "no IP ranges specified"),
    "ipvlan": ({"mode": "l4"}, 7, 'unknown ipvlan mode: "l4"'),
    "loopback": ({"prevResult": {"cniVersion": "9.9.9"}}, 6, "failed to parse prevResult"),
    "macvlan": ({"mode": "tunnel"}, 7, 'unknown macvlan mode: "tunnel"'),
    "multus": ({"delegates": [{"type": "multus"}]}, 7, "delegates[0]: type multus inside itself"),
    "multus-shim": ({"delegates": [], "clusterNetwork": ""}, 7, "neither `delegates` nor `clusterNetwork` names"),
    "ovs": ({"vlan": 4095}, 7, "vlan: expected an integer from 0 up to 4094"),
    "policy": ({"agentSocketPath": 5}, 7, "agentSocketPath: expected a string"),
    "portmap": ({"conditionsV4": 7}, 7, "conditionsV4: expected a list, got number 7"),
    "ptp": ({"mtu": 3}, 7, "mtu: expected 68 or more"),
    "sbr": ({"gateways": ["10.0.0.1", "10.0.0.2"]}, 7, "gateways list contains multiple IPv4 addresses"),
    "static": ({"ipam": {"addresses": [{"address": "10.0.0.300/24"}]}}, 7, "expected to be in CIDR notation"),
    "tap": ({"owner": -1}, 7, "owner: expected an integer from 0 up to 4294967294"),
    "tuning": ({"mtu": "x"}, 7, "mtu: expected an integer"),
    "vlan": ({"vlanId": 4095}, 7, "invalid VLAN ID 4095"),
    "vrf": ({"vrfname": ""}, 7, "configuration is expected to have a valid vrf name"),
    "whereabouts": ({"ipam": {"range": "10.0.0.0/33"}}, 7, "ipam.range: invalid CIDR address: 10.0.0.0/33"),
}
# Plugins that are not compared, because Debian's Go plugins 1.1.1 lack them. The original whereabouts is a separate
# project, and runs only in a Kubernetes cluster.
NOT_IN_PEER = ("chain", "cluster", "dummy", "multus", "multus-shim", "ovs", "policy", "tap", "whereabouts")


def read(kind, args="", **keys):
    """Return the result of the plugin's read() of a configuration for ADD."""
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": kind, **EXAMPLES.get(kind, [{}])[0], **keys}
    return plugins.load(kind).read(Request(Mode(), plugin=kind, command="ADD", conf=conf, version="1.1.0", name="net-a",
                                           container_id="c1", ifname="eth0", args=args))


def refusal(kind, args="", **keys):
    """Return the text of the CniError that the plugin's read() raises, or "" if the configuration is valid."""
    try:
        read(kind, args, **keys)
    except CniError as e:
        return e.msg
    return ""


def test_a_plugin_reads_the_capabilities_that_it_declares():
    declared = {(kind, name) for kind in plugins.TABLE for name in CAPABILITIES
                if name in features(kind)["capabilities"]}
    refused = {(kind, name): why for kind in plugins.TABLE for name, value in CAPABILITIES.items()
               if (why := refusal(kind, runtimeConfig={name: value}))}
    assert refused.keys() == declared
    assert [why for (_, name), why in refused.items() if name not in why] == []


def test_a_plugin_reads_the_cni_args_that_it_declares():
    declared = [(kind, name) for kind in plugins.TABLE for name in features(kind)["args"]]
    assert [each for each in declared if "nonsense" not in refusal(each[0], f"{each[1]}=nonsense")] == []
    others = [kind for kind in plugins.TABLE if not features(kind)["args"]]
    assert [kind for kind in others if refusal(kind, "MAC=nonsense;IP=nonsense;GATEWAY=nonsense")] == []


def types(conf):
    """Return the plugins that a configuration names."""
    return {conf["type"], (conf.get("ipam") or {}).get("type")}


@pytest.mark.parametrize("kind", plugins.TABLE)
def test_each_plugin_refuses_a_bad_configuration(kind):
    keys, code, text = REFUSED[kind]
    with pytest.raises(CniError) as caught:
        read(kind, **keys)
    assert caught.value.code == code
    assert text in caught.value.msg


def test_each_plugin_is_compared_with_its_counterpart_in_go():
    confs = [story.conf for story in (*ALL_STORIES.values(), *test_flannel.STORIES.values())]
    confs += [test_firewall.firewall(), test_portmap.portmap(), test_daemon.COMPARED]
    assert set(plugins.TABLE) - set().union(*map(types, confs)) == set(NOT_IN_PEER)


def test_a_plugin_that_is_not_compared_is_missing_in_the_peer():
    assert [kind for kind in NOT_IN_PEER if os.path.exists(f"{PEER}/{kind}")] == []


def test_each_plugin_has_its_row_in_the_documentation_and_a_sentence_of_description():
    text = DOCS.read_text()
    assert [kind for kind in plugins.TABLE if f"\n| `{kind}` | " not in text] == []
    assert [kind for kind in plugins.TABLE if not 10 < len(features(kind)["about"]) < 130] == []


def test_the_table_in_the_documentation_is_the_one_that_the_command_prints():
    """`fastcni plugins --markdown` prints the table."""
    assert as_markdown() in DOCS.read_text()
    assert CliRunner().invoke(cli, ["plugins", "--markdown"]).output == as_markdown() + "\n"


def test_a_pipe_gets_the_text_and_json_is_asked_for():
    assert '"plugin": "bridge"' in CliRunner().invoke(cli, ["plugins", "--json"]).output
    assert CliRunner().invoke(cli, ["plugins", "bridge"]).output.startswith("bridge\n  kind ")


def printed(print_it, known):
    console = Console(width=80, file=io.StringIO())
    print_it(known, console)
    return console.file.getvalue()


def test_the_list_fits_80_columns():
    text = printed(print_all, [*map(features, plugins.BUILT_IN), {
        "plugin": "acme", "distribution": "acme-cni 1.0", "problem": "cannot be imported"}])
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    names = {line.split()[0] for line in text.splitlines() if line[:1] == " " and line[1:2].strip()}
    assert set(plugins.BUILT_IN) <= names
    assert "acme (acme-cni 1.0) cannot be used: cannot be imported" in text


@pytest.mark.parametrize("kind", plugins.BUILT_IN)
def test_one_plugin_is_shown_with_all_that_it_can(kind):
    text, it = printed(print_one, features(kind)), features(kind)
    for key in ("capabilities", "args", "versions"):
        assert " ".join(it[key]) or "none" in text
    assert ("STATUS" in text, " GC" in text) == (it["status"], it["gc"])


def test_the_type_checker_compares_each_plugin_with_the_contract():
    """mypy checks the plugins that plugin_contract.py lists. This test checks that plugin_contract.py lists all
    plugins."""
    assert set(PLUGINS) == {plugins.load(kind) for kind in plugins.BUILT_IN}
