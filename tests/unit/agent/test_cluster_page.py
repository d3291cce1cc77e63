"""docs/cluster.md and docs/policy-failures.md: fastcni accepts the configurations, the commands exist, and the defaults
are the code's."""

import json
import re
from pathlib import Path

import pytest

import fastcni
from fastcni.agent import conf
from fastcni.agent.backends import TABLE, host_gw, ipip, vxlan, wireguard
from fastcni.agent.metrics import EVENTS, POLICY_GAUGES
from fastcni.agent.registries.static import read_node
from fastcni.cli.commands import cli

PAGE = (Path(fastcni.__file__).parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:^ {4,}.*\n)+", PAGE, re.MULTILINE)


def test_the_networks_on_the_page_are_read():
    found = re.findall(r"'(\{[^.].*\})'", PAGE)              # but no template of kubectl
    assert [conf.read(text).backend["Type"] for text in found] == ["vxlan"]
    (file,) = [json.loads(block) for block in BLOCKS if block.strip().startswith('{"network"')]
    assert conf.read(json.dumps(file["network"])).backend["Type"] == "host-gw"
    assert [read_node(each, "host-gw").name for each in file["nodes"]] == ["one", "two"]


@pytest.mark.parametrize("line", sorted({line.strip() for block in BLOCKS for line in block.splitlines()
                                         if line.strip().startswith("fastcni ")}))
def test_a_command_on_the_page_has_these_options(line):
    name, *words = line.split()[1:]
    options = {option for parameter in cli.commands[name].params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(("name", "module"), [("vxlan", vxlan), ("host-gw", host_gw), ("ipip", ipip),
                                              ("wireguard", wireguard)])
def test_the_table_of_backends_has_each_key(name, module):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == set(module.KEYS)
    assert name in TABLE


def test_the_options_on_the_page_exist():
    options = {option for parameter in cli.commands["agent"].params for option in parameter.opts}
    options |= {option for parameter in cli.commands["serve"].params for option in parameter.opts
                if f"fastcni serve {option}" in PAGE}
    foreign = {"--allocate-node-cidrs", "--cluster-cidr", "--pod-network-cidr", "--endpoints", "--now"}
    of_kubectl = {option for command in re.findall(r"^ +kubectl (?:.*\\\n)*.*", PAGE, re.MULTILINE)
                  for option in re.findall(r"--[a-z][a-z0-9-]+", command)}
    assert set(re.findall(r"--[a-z][a-z0-9-]+", PAGE)) <= options | foreign | of_kubectl


# -- docs/policy-failures.md -------------------------------------------------------------------------------------------

POLICY_PAGE = (Path(fastcni.__file__).parents[1] / "docs" / "policy-failures.md").read_text(encoding="utf-8")


def test_the_page_on_policies_names_the_events_and_metrics_of_the_code():
    assert set(re.findall(r"event=(policies_\w+|policy_\w+)", POLICY_PAGE)) - {"policies_removed"} <= set(EVENTS)
    for name in POLICY_GAUGES:
        assert f"_{name}`" in POLICY_PAGE
