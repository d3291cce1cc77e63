"""The complete agent with --flowtable. tests/unit/agent/policy/test_flowtable.py tests the packets. Needs root."""

import json
import subprocess
from types import SimpleNamespace

import click
import pytest
from unit.agent.policy.test_service import WEB_ONLY, Running, allowed, node  # noqa: F401 - a fixture

from fastcni.agent.policy.ruleset import FLOWTABLE, see_bridged_traffic
from fastcni.agent.run import remove_policies
from fastcni.cli.agent import read_beside
from fastcni.kernel import nft_flowtables
from fastcni.node.checks import policy as checks_policy
from fastcni.runtime import parse
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

COMMAND = "--nodes n.json --node-name a"


@pytest.fixture
def offloading(host_netns, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = Running(tmp_path, flowtable=True)
    yield it
    it.stop()


def test_the_option_belongs_to_policies():
    assert read_beside(f"{COMMAND} --policies p --flowtable").policies.flowtable
    assert not read_beside(f"{COMMAND} --policies p").policies.flowtable
    with pytest.raises(click.UsageError, match="--flowtable needs --policies"):
        read_beside(f"{COMMAND} --flowtable")


def test_a_kernel_without_flowtables_protects_pods_and_the_agent_says_so_once(monkeypatch, node, offloading):  # noqa: F811
    monkeypatch.setattr(nft_flowtables, "flow_add", lambda name: ("no-flowtable", lambda batch: batch))
    offloading.write(WEB_ONLY)
    for name, app in (("a", "web"), ("b", "db"), ("d", "other")):
        offloading.add(name, app=app)
    assert allowed(node, "a")
    offloading.delete("d")
    assert offloading.events().count("flowtable_unavailable") == 1
    network = parse.parse_list(json.dumps({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "policy", "agentSocketPath": offloading.settings.socket}]}).encode())
    (finding,) = checks_policy.agent(SimpleNamespace(networks=[network], agent_folder=""))
    assert finding.what.startswith("network policies: the kernel refuses the flowtable of --flowtable: ")


@pytest.mark.needs("nft-flowtable")
def test_the_agent_has_the_links_of_its_pods_in_the_flowtable_and_restores_it(node, offloading):  # noqa: F811
    def links():
        found = run("nft", "list", "tables")
        return FLOWTABLE in found and '"port-d"' in run("nft", "list", "set", "inet", FLOWTABLE, "links")

    offloading.write(WEB_ONLY)
    for name, app in (("b", "db"), ("d", "web")):           # pod b is on a bridge, so its link is not in the flowtable
        offloading.add(name, app=app)
    assert eventually(links)
    assert "port-b" not in run("nft", "list", "table", "inet", FLOWTABLE)
    # since Linux 6.9 the kernel rejects both
    for words in (("flush", "ruleset"), ("delete", "table", "inet", FLOWTABLE)):
        subprocess.run(["nft", *words], check=False, capture_output=True)
        assert eventually(links)
    offloading.it.engine.flowtable.renew()                  # the agent calls renew() after an error of the kernel
    offloading.add("d", app="db")
    assert eventually(links)
    offloading.delete("d")
    assert eventually(lambda: "port-d" not in run("nft", "list", "table", "inet", FLOWTABLE))
    offloading.stop()
    assert remove_policies() and FLOWTABLE not in run("nft", "list", "tables")
    offloading.start()
