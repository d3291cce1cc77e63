"""Run the commands that docs/troubleshooting.md and docs/command.md show for a node. Needs root."""

import re
import shlex
from pathlib import Path

from fastcni.cli.commands import cli
from fastcni.node.checks.doctor import CHECKS
from fastcni.testing.namespaces import run

DOCS = Path(__file__).parents[3] / "docs"
CID, LINK = "8e4f2a1b3c4d", "veth1a2b3c4d"
CONF = {"cniVersion": "1.0.0", "name": "mynet", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True,
     "ipam": {"type": "host-local", "subnet": "10.22.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": True}}]}


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def section(text, title):
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(text):
    """Return the commands in a page's indented blocks, without comments."""
    return [line.partition("  #")[0].strip() for line in text.splitlines() if re.match(r" {4}[a-z]", line)]


SHOWN = [*commands(page("troubleshooting.md")), *commands(section(page("command.md"), "What is on this node"))]


def test_the_pages_show_commands_that_exist():
    words = {line.split()[1] for line in SHOWN if line.startswith("fastcni ")}
    assert words == {"doctor", "list", "inspect", "explain", "adopt", "gc", "restore", "netconf", "status",
                     "selftest"}
    named = set(re.findall(r"`fastcni ([a-z]+)", page("troubleshooting.md")))
    assert named - set(cli.commands) == set()


def test_the_page_lists_every_check():
    table = section(page("troubleshooting.md"), "The checks")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", table, re.MULTILINE))
    assert rows == {name: check.__doc__.strip().rstrip(".") for name, check in CHECKS.items()}


def test_every_command_of_the_pages_works(directories, host_netns, pod_netns, fastcni, bin_dir, tmp_path, monkeypatch):
    """The node has a running pod, a pod that no longer exists, and flushed rules."""
    host = directories
    host.configure(CONF, "10-mynet.conflist")
    first, second = pod_netns(), pod_netns()
    link = host.add(CID, first, "mynet", ports=[(8080, 80)])["interfaces"][1]["name"]
    host.add("c0ffee123456", second, "mynet")
    run("ip", "netns", "del", second)
    for words in (("down",), ("name", LINK), ("up",)):
        run("ip", "link", "set", "dev", link if words != ("up",) else LINK, *words)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CNI_PATH", str(bin_dir))
    failed = {}
    for line in dict.fromkeys(SHOWN):
        program, *words = shlex.split(line)
        if program == "fastcni":
            answer = fastcni(*words)
            if answer.status not in ((0, 1, 2) if words[0] == "doctor" else (0,)):
                failed[line] = answer.out[-500:] + answer.err
        else:
            run(program, *words)
    assert failed == {}
    assert (tmp_path / "fastcni-report.tar.gz").exists()
    host.delete(CID, first, "mynet")
