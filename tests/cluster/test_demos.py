"""The demos of cluster-wide addresses and of the agent, with few pods. They work, and leave nothing behind, also after
a signal."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FASTCNI = Path(sys.executable).parent / "fastcni"
ENV = shutil.which("env")
LIMIT_S = 300                   # on a busy machine; on an idle one the longest demo takes some 20 s


class Demo:
    """A running script. It makes its files in `directory`, and namespaces whose names contain the script's process
    id."""

    def __init__(self, directory, script, *words, **env):
        self.directory, self.output = directory, directory / "output"
        (directory / "tmp").mkdir()
        env = {**os.environ, "FASTCNI": str(FASTCNI), "TMPDIR": str(directory / "tmp"), **env}
        with open(self.output, "wb") as output:
            # A shell lets background jobs ignore SIGINT, and a script cannot trap a signal that it was started to
            # ignore
            self.popen = subprocess.Popen([ENV, "--default-signal=INT", "sh", EXAMPLES / script, *words], env=env,
                                          stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                          start_new_session=True)

    @property
    def text(self):
        return self.output.read_text()

    def wait(self):
        try:
            return self.popen.wait(LIMIT_S)
        finally:
            self.end()

    def end(self):
        """Kill the processes that a failed script has left: all processes of its session."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait(10)

    def wait_for(self, text):
        end = time.monotonic() + LIMIT_S
        while text not in self.text:
            assert self.popen.poll() is None, self.text
            assert time.monotonic() < end, self.text
            time.sleep(0.05)

    def left(self):
        """Return the namespaces, files and processes of the script that still exist."""
        pid = self.popen.pid
        names = [name for name in os.listdir("/run/netns") if re.search(rf"{pid}\b", name)]
        files = [str(path) for path in (self.directory / "tmp").iterdir()]
        return names + files + processes(pid)


def processes(session):
    """Return the command line of each process of a session, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


@pytest.fixture
def demo():
    """Return a function that starts a script. The script's directory has a short name, because the paths of unix
    sockets are limited."""
    directory, started = Path(tempfile.mkdtemp(prefix="demo-")), []

    def start(*words, **env):
        started.append(Demo(directory, *words, **env))
        return started[-1]
    try:
        yield start
        for one in started:
            one.end()
    finally:
        shutil.rmtree(directory)


@pytest.mark.needs("root")
@pytest.mark.parametrize("peer", ["", "/nowhere"])
def test_the_demo_of_the_server_shows_times_and_tests_the_network(demo, peer):
    run = demo("demo.sh", **({"PEER": peer} if peer else {}))
    assert run.wait() == 0, run.text
    for text in ("The server listens at ", "1 packets transmitted, 1 received", "Nothing is left.", "one-shot", "warm",
                 " checks, 0 failed\n", "The demo worked."):
        assert text in run.text, run.text
    assert ("There are no Go plugins in /nowhere" in run.text) is bool(peer)
    assert run.left() == []


@pytest.mark.needs("root")
def test_two_nodes_work_on_a_file(demo):
    run = demo("two-nodes.sh")
    assert run.wait() == 0, run.text
    assert "Nothing: the demo worked." in run.text and "1 packets transmitted, 1 received" in run.text
    assert run.left() == []


@pytest.mark.needs("root")
def test_the_cluster_demo_works(demo):
    run = demo("cluster-demo.sh", "4")
    assert run.wait() == 0, run.text
    for text in ("No address was given twice", "All 4 pings were answered", "node node-b is forgotten",
                 "Nothing is held any more: the demo worked."):
        assert text in run.text
    assert run.left() == []


@pytest.mark.needs("root")
def test_the_agent_demo_works(demo):
    run = demo("agent-demo.sh")
    assert run.wait() == 0, run.text
    assert len(re.findall(r"^ok +demo +one-shot +peer", run.text, re.M)) == 4, run.text
    for text in ("All 6 pings were answered", " checks, 0 failed\n", "pod-a reaches pod-b, and not pod-c",
                 "pod-a reaches pod-c again", "event=network_repaired", "It has its subnet again",
                 "Nothing is held any more: the demo worked."):
        assert text in run.text
    assert run.left() == []


@pytest.mark.needs("root")
def test_the_agent_demo_cleans_up_after_ctrl_c(demo):
    run = demo("agent-demo.sh", "host-gw")
    run.wait_for("node-b has")
    os.killpg(run.popen.pid, signal.SIGINT)
    assert run.wait() == 130, run.text
    assert run.left() == []


@pytest.mark.needs("root")
def test_the_cluster_demo_cleans_up_after_ctrl_c(demo):
    run = demo("cluster-demo.sh", "4")
    run.wait_for("2. Add 4 pods")
    os.killpg(run.popen.pid, signal.SIGINT)
    assert run.wait() == 130, run.text
    assert run.left() == []


PACKAGES = {"demo.sh": ["iputils-ping"], "two-nodes.sh": ["iputils-ping"],
            "cluster-demo.sh": ["iputils-ping", "etcd-server"],
            "agent-demo.sh": ["iputils-ping", "nftables", "etcd-server", "etcd-client"]}


@pytest.mark.needs("root")
@pytest.mark.parametrize("script", PACKAGES)
def test_a_demo_names_the_packages_that_are_missing(demo, tmp_path, script):
    """Without ping, agent-demo.sh ended with "in vain: reaches pod-a pod-b"."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "id", "mktemp", "rm", "seq", "dirname", "basename", "ip", "awk"):
        (tools / name).symlink_to(shutil.which(name))
    run = demo(script, PATH=str(tools))
    assert run.wait() == 1, run.text
    assert f"on Debian or Ubuntu: apt-get install {' '.join(PACKAGES[script])}\n" in run.text
    assert run.left() == []


@pytest.mark.needs("root")
def test_the_cluster_demo_refuses_a_wrong_number(demo):
    run = demo("cluster-demo.sh", "51")
    assert run.wait() == 1 and "expected 1 to 50 pods on each node, got 51" in run.text
