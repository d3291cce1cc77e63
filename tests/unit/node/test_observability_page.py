"""Run each command in docs/observability.md and compare its output with the page. Needs root.

Numbers, times and the bars of a waterfall differ between runs. So the comparison replaces digits by N, and removes
bars, blanks and waits in the queue.
"""

import json
import re
import shlex
import sys

import pytest
from unit.node.test_troubleshooting import page, section
from unit.server.client import Server

from fastcni.cli import entry_point
from fastcni.launcher.install import install

WEB, DB, SLOW = "8e4f2a1b3c4d", "c0ffee123456", "51035103aaaa"
BRIDGE = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True,
          "ipam": {"type": "host-local", "subnet": "10.22.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}}
PORTS = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
OWN_IPAM = f"""#!{sys.executable}
import os, time
time.sleep(0.7)
if os.environ["CNI_COMMAND"] == "ADD":
    print('{{"cniVersion": "1.0.0", "ips": [{{"address": "10.23.0.9/24"}}]}}')
"""
QUESTIONS = ("Pods start slowly: what now?", "Who has this address?", "Why did this ADD fail?",
             "What happened to this pod?")


def shown(title):
    """Return {command: output} of the blocks "$ command" in a section."""
    found, command = {}, ""
    for line in section(page("observability.md"), title).splitlines():
        if line.startswith("    $ "):
            command = line[6:]
            found[command] = []
        elif line.startswith("    ") and command:
            found[command].append(line[4:])
        elif line:
            command = ""
    return {command: "\n".join(lines) for command, lines in found.items()}


def plain(text):
    """Return the words of a text without parts that differ between runs."""
    text = re.sub(r", [\d.]+ ms in the queue", "", text)
    text = re.sub(r"\|[ =]+\|", "", re.sub(r"/run/netns/\S+", "NETNS", text))
    text = re.sub(r"\bNN?[smhd]\b", "AGE", re.sub(r"\d+", "N", re.sub(r"veth[0-9a-f]{8}", "veth", text)))
    return text.split()


class World:
    """A node whose server has answered the requests of three pods. `web` runs. The host port of `db` was in use. The
    network of `slow` has a slow IPAM plugin."""

    def __init__(self, directories, server, pod_netns):
        self.directories, self.server = directories, server
        pod = pod_netns()
        conf = {"cniVersion": "1.0.0", "name": "mynet", **json.loads(json.dumps(BRIDGE))}
        conf["ipam"]["dataDir"] = str(directories.data)
        portmap = {"cniVersion": "1.0.0", "name": "mynet", "type": "portmap", **PORTS}
        directories.configure({"cniVersion": "1.0.0", "name": "mynet", "plugins": [
            {**BRIDGE}, {"type": "portmap", "capabilities": {"portMappings": True}}]}, "10-mynet.conflist")
        result = server.ok("ADD", conf, pod, cid=WEB)
        server.ok("ADD", {**portmap, "prevResult": result}, pod, cid=WEB)
        directories.cached(WEB, "mynet", netns=f"/run/netns/{pod}", result=result)
        other = pod_netns()
        result = server.ok("ADD", conf, other, cid=DB)
        server.refused("ADD", {**portmap, "prevResult": result}, other, cid=DB)
        server.ok("DEL", conf, other, cid=DB)
        slow = {**conf, "name": "othernet", "bridge": "cni1", "ipMasq": False, "ipam": {"type": "own-ipam"}}
        server.ok("ADD", slow, pod_netns(), cid=SLOW)


@pytest.fixture
def world(directories, host_netns, pod_netns, tmp_path, monkeypatch):
    install(tmp_path / "bin", names=["bridge", "host-local", "portmap"])
    own = tmp_path / "bin" / "own-ipam"
    own.write_text(OWN_IPAM)
    own.chmod(0o755)
    with Server(tmp_path, "--cache-dir", str(directories.cache)) as server:
        server.cni_path = str(tmp_path / "bin")
        monkeypatch.setenv("FASTCNI_SOCKET", str(server.path))
        monkeypatch.setenv("NETCONFPATH", str(directories.conf))
        monkeypatch.setenv("CNI_PATH", server.cni_path)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "dumb")
        yield World(directories, server, pod_netns)


def test_each_question_has_a_command():
    assert all(shown(title) for title in QUESTIONS)


def test_every_command_prints_what_the_page_shows(world, capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for title in QUESTIONS:
        for command, expected in shown(title).items():
            words = shlex.split(command.partition(" #")[0])[1:]
            if words[0] in ("explain", "list", "top"):
                words += ["--cache-dir", str(world.directories.cache)]
            # in 80 columns, explain would break the long path of the test's directory
            monkeypatch.setenv("COLUMNS", "250" if words[0] == "explain" else "80")
            capfd.readouterr()
            status = entry_point.run(words)
            out, err = capfd.readouterr()
            assert status == 0, (command, out, err)
            out = out.replace(str(world.directories.data), "/var/lib/cni/networks")
            out = out.replace(str(world.directories.cache), "/var/lib/cni")
            assert plain(out) == plain(expected), f"{command}\n{out}"
