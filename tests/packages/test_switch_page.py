"""Run the commands of docs/switch.md in order, on a node with pods of the Go plugins."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import needs_peer
from packages.switched import Switched, ruleset

from fastcni.launcher import systemd

pytestmark = [pytest.mark.needs("root"), needs_peer]
PAGE = Path(__file__).parents[2] / "docs/switch.md"
SAMPLE = re.compile(r"^```\n.*?^```\n", re.MULTILINE | re.DOTALL)          # a sample of a command's output
COMMANDS = re.findall(r"^    (\S.*)$", SAMPLE.sub("", PAGE.read_text(encoding="utf-8")), re.MULTILINE)


@pytest.fixture
def node(host_netns, pod_netns, tmp_path):
    return Switched(tmp_path, pod_netns)


def places(node, command):
    """Return the options that make a command use this node instead of the machine."""
    found = ["--bin-dir", node.bin] if command in ("install", "uninstall") else []
    found += ["--unit-dir", node.units] if command == "uninstall" else []
    return found + (["--conf-dir", node.conf, "--cache-dir", node.cache] if command != "install" else [])


def test_each_command_of_the_page_works(node):
    pods = {"web": node.new_pod("web", 8080)}
    for line in COMMANDS:
        words = shlex.split(line)
        if words[0] == "systemctl":
            assert line == systemd.NEXT
            continue
        if words[0] == "systemd-run":
            assert words[3:] == ["fastcni", "uninstall", "--wait"]
            continue
        program, command, *options = words
        assert program == "fastcni"
        if command == "uninstall" and "api" not in pods:
            pods["api"] = node.new_pod("api", 8081)
        if options == ["--wait"]:
            for name in list(pods):
                node.goes(name, pods.pop(name))
        if options == ["--systemd"]:
            options += ["--unit-dir", node.units]
        node.fastcni(command, *options, *places(node, command), ok=(0, 1, 2, 3) if command == "doctor" else (0,))
    assert not pods and "fastcni" not in ruleset()
    assert not list(node.units.iterdir())
