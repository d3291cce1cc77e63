"""Signals to the program `fastcni agent`. Needs root."""

import json
import subprocess
import sys

import pytest

from fastcni.daemon.stop_signals import UNUSED_SIGNALS
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")


@pytest.mark.parametrize("number", UNUSED_SIGNALS)
def test_a_signal_without_a_use_does_not_end_the_agent(host_netns, tmp_path, number):
    """Once, SIGUSR1, by which other daemons print statistics, killed the agent."""
    run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "far0")
    for command in ("addr add 192.0.2.1/24 dev up0", "link set up0 up", "link set far0 up"):
        run("ip", *command.split())
    nodes, env_file = tmp_path / "nodes.json", tmp_path / "subnet.env"
    nodes.write_text(json.dumps({"network": {"Network": "10.0.0.0/16", "Backend": {"Type": "host-gw"}},
                                 "nodes": [{"name": "one", "subnets": ["10.0.0.0/24"], "public": ["192.0.2.1"]}]}))
    agent = subprocess.Popen([sys.executable, "-m", "fastcni", "agent", "--nodes", nodes, "--node-name", "one",
                              "--iface", "up0", "--no-ip-masq", "--subnet-file", env_file, "--conflist", "",
                              "--folder", tmp_path], stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(env_file.exists, 30)
        agent.send_signal(number)
        assert not eventually(lambda: agent.poll() is not None, 0.5)
        agent.terminate()
        assert agent.wait(30) == 0, agent.stderr.read()
    finally:
        agent.kill()
        agent.communicate()
