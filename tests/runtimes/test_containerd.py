"""containerd with `ctr run --cni`: many containers at the same time, flushed rules, detached containers."""

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

from runtimes import image, page
from runtimes.conftest import nothing_left
from runtimes.world import OUTSIDE, eventually_slow

NETWORK = ip_network("10.85.0.0/16")
CONTAINERS, AT_ONCE = 50, 8


def test_the_container_of_the_page_has_an_address(world, containerd):
    block = page.commands("containerd")[1]
    assert "IMAGE=docker.io/library/busybox:latest" in block
    with nothing_left(world):
        out = world.shell(block.replace("docker.io/library/busybox:latest", image.NAME))
        assert "inet 10.85." in out


def test_fifty_containers_eight_at_once(world, containerd):
    """Each container has a different address, and reaches the gateway and another node.

    The containers write their addresses to files, because containerd since 1.3.2 sometimes loses a container's output
    (containerd/containerd#5741). In this test, one of 3,300 containers lost its output.
    """
    answers = world.directory / "answers"
    answers.mkdir(exist_ok=True)

    def run(number):
        script = f"ping -c 1 10.85.0.1 && ping -c 1 {OUTSIDE} && ip -4 addr show eth0 > /answers/{number}"
        said = containerd.run(f"c-{number}", script, "--rm", "--mount",
                              f"type=bind,src={answers},dst=/answers,options=rbind:rw")
        answer = answers / str(number)
        assert answer.exists(), said
        address, = re.findall(r"inet (\S+)/", answer.read_text())
        answer.unlink()
        return ip_address(address)

    with nothing_left(world):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            addresses = list(pool.map(run, range(CONTAINERS)))
        assert len(set(addresses)) == CONTAINERS and all(address in NETWORK for address in addresses)


def test_flushed_rules_of_running_containers_are_restored(world, containerd, mode):
    """The result caches of containerd 1.6 (libcni 1.1) do not contain the namespace's path, so `fastcni restore`
    restored nothing."""
    before = world.left()
    with detached(world, containerd, 10) as names:
        running = world.left()
        world.run("nft", "flush", "ruleset")
        if mode == "one-shot":
            assert not containerd.exec(names[0], "ping", "-c", "1", "-W", "1", OUTSIDE)
            done = json.loads(world.run("fastcni", "restore", "--json"))
            assert done == {"attachments": 10, "plugins": 20, "gone": 0, "elsewhere": 0, "failed": []}
        assert eventually_slow(lambda: containerd.exec(names[-1], "ping", "-c", "1", "-W", "1", OUTSIDE), 15)
        assert world.residue(running) == ""
    assert world.residue(before) == ""


@contextlib.contextmanager
def detached(world, containerd, count):
    """Run detached containers. At the end, also after a failure, remove the containers and release their addresses."""
    names, before = [], len(world.left()["files"])
    try:
        for number in range(count):
            containerd.run(f"flushed-{number}", "sleep 1000", "--detach")
            names.append(f"flushed-{number}")
        yield names
    finally:
        for name in names:
            containerd.remove(name)
        left = len(world.left()["files"])
        # gc runs in another pid namespace than the machine's init, so it cannot prove that the pods have ended. Without
        # --all, gc keeps these pods.
        done = json.loads(world.run("fastcni", "gc", "k8s-pod-network", "--all", "--yes", "--json"))
    assert left == before + 3 * count           # ctr does not call DEL
    assert [len(done["deleted"]), done["kept"]] == [count, []]


def test_gc_releases_what_detached_containers_left(world, containerd):
    block, = page.commands("Detached containers of ctr")
    containerd.run("living", "sleep 1000", "--detach")
    try:
        with nothing_left(world):
            containerd.run("detached", "sleep 1000", "--detach")
            containerd.remove("detached")
            cached = world.path("/var/lib/cni/results/k8s-pod-network-default-detached-eth0")
            cached.unlink()  # containerd has lost its state, so only the plugins' files name the pods
            done = json.loads(world.shell(f"{block.rstrip()} --json"))
            assert [it["containerID"] for it in done["kept"]] == ["default-living"] and done["deleted"] == []
        assert containerd.exec("living", "ping", "-c", "1", OUTSIDE)
    finally:
        containerd.remove("living")
        world.run("fastcni", "gc", "k8s-pod-network", "--all", "--yes")
