"""Run the commands for etcd of docs/ipam.md in order, and check that its demos exist. tests/unit/node/test_ipam_page.py
has the other tests of this page."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ipam.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_commands_for_etcd_run_in_order(etcd_alone, tmp_path):
    """The test uses the page's configuration, with the address of this etcd and the user that the page's commands
    create."""
    from fastcni.launcher.install import install

    install(tmp_path / "bin", names=["bridge", "cluster"])
    (tmp_path / "password").write_text("change-me-too\n")
    (document,) = map(json.loads, blocks(PAGE, "json"))
    document["plugins"][0]["ipam"] |= {"node_name": "page", "dataDir": str(tmp_path / "addresses"), "store": {
        "type": "etcd", "endpoints": etcd_alone.endpoints, "username": "fastcni",
        "password_file": str(tmp_path / "password")}}
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "10-shared.conflist").write_text(json.dumps(document))
    env = {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": ",".join(etcd_alone.endpoints),
           "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NETCONFPATH": str(tmp_path / "net.d"),
           "CNI_PATH": str(tmp_path / "bin")}
    script = "set -e\n" + "".join(blocks(section("On etcd"), "sh"))
    done = subprocess.run(["sh", "-c", script], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "; etcd http://127.0.0.1" in done.stdout


@pytest.mark.needs("root")
def test_a_pod_gets_the_address_that_it_asks_for(tmp_path):
    """The commands run in new mount and network namespaces, so the names that the page uses are free."""
    from fastcni.launcher.install import install

    install(tmp_path / "bin", names=["bridge", "cluster"])
    (document,) = map(json.loads, blocks(PAGE, "json"))
    document["plugins"][0]["ipam"] |= {"dataDir": str(tmp_path / "addresses"),
                                       "store": {"type": "local", "path": str(tmp_path / "store")}}
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "10-shared.conflist").write_text(json.dumps(document))
    (command,) = re.findall(r"^    (fastcni add shared .*)$", section("Keys"), re.MULTILINE)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
           "NETCONFPATH": str(tmp_path / "net.d"), "CNI_PATH": str(tmp_path / "bin")}
    script = f"""set -e
        mount -t tmpfs none /run; mount -t tmpfs none /var/lib
        ip link set lo up; ip netns add pod1
        {command} --json; fastcni ipam show 10.20.0.7 --json"""
    done = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", script], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert '"10.20.0.7/16"' in done.stdout and re.search('"state": "(used|held)"', done.stdout)


def test_make_demo_runs_the_demo_of_two_nodes():
    """tests/cluster/test_demos.py runs both demos of the page."""
    shown = section("Try it")
    assert "make demo-nodes " in shown and "examples/cluster-demo.sh " in shown
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "sh examples/two-nodes.sh" in makefile.partition("\ndemo-nodes:")[2].partition("\n\n")[0]
    assert os.access(ROOT / "examples" / "cluster-demo.sh", os.X_OK)
