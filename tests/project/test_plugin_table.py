"""The table of plugins in the documentation is the code's, and what it says of capabilities and CNI_ARGS is true."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fastcni import plugins
from fastcni.cli.commands import cli
from fastcni.cli.plugins import as_markdown, features
from fastcni.kit.call.request import Request
from fastcni.spec.errors import CniError

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"
# What makes a configuration complete enough to be read.
NEEDED = {"dummy": {"ipam": {"type": "static"}}, "host-device": {"device": "eth9"},
          "host-local": {"ipam": {"ranges": [[{"subnet": "10.0.0.0/24"}]]}}, "ipvlan": {"ipam": {"type": "static"}},
          "static": {"ipam": {}}, "vlan": {"master": "eth9", "ipam": {"type": "static"}}, "vrf": {"vrfname": "blue"}}
CAPABILITIES = {"mac": 7, "ips": 7, "ipRanges": 7, "portMappings": 7, "bandwidth": 7, "deviceID": 7}     # 7 is no value


def read(kind, args="", **keys):
    """What the plugin's read() makes of a configuration for ADD."""
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": kind, **NEEDED.get(kind, {}), **keys}
    return plugins.load(kind).read(Request(plugin=kind, command="ADD", conf=conf, version="1.1.0", name="net-a",
                                           container_id="c1", ifname="eth0", args=args))


def said(kind):
    return features("", kind)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("kind", plugins.TABLE)
def test_a_plugin_reads_the_capabilities_that_it_says(kind, capability):
    asked = {"runtimeConfig": {capability: CAPABILITIES[capability]}}
    if capability in said(kind)["capabilities"]:
        with pytest.raises(CniError, match=capability):
            read(kind, **asked)
    else:
        read(kind, **asked)


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in plugins.TABLE for name in said(kind)["args"]])
def test_a_plugin_reads_the_cni_args_that_it_says(kind, name):
    with pytest.raises(CniError, match="nonsense"):
        read(kind, args=f"{name}=nonsense")


@pytest.mark.parametrize("kind", [kind for kind in plugins.TABLE if not said(kind)["args"]])
def test_a_plugin_that_says_nothing_of_cni_args_reads_none(kind):
    read(kind, args="MAC=nonsense;IP=nonsense;GATEWAY=nonsense")


@pytest.mark.parametrize("kind", plugins.TABLE)
def test_each_plugin_says_in_a_sentence_what_it_does(kind):
    assert 10 < len(said(kind)["about"]) < 130


def test_the_table_in_the_documentation_is_the_one_that_the_command_prints():
    """fastcni plugins --markdown prints it."""
    assert as_markdown() in DOCS.read_text()
    assert CliRunner().invoke(cli, ["plugins", "--markdown"]).output == as_markdown() + "\n"


def test_in_a_pipe_the_command_prints_json():
    assert '"plugin": "bridge"' in CliRunner().invoke(cli, ["plugins"]).output
