"""podman with CNI: podman's own conflists, published ports, fixed addresses, IPv6, many containers at the same time,
and a switch of plugins."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import PEER, needs_peer
from runtimes import image, page
from runtimes.conftest import nothing_left
from runtimes.podman import Podman
from runtimes.world import ADDRESS, ADDRESS6, OUTSIDE, OUTSIDE6, answers, eventually_slow

CONFLIST = "/etc/cni/net.d/87-podman-bridge.conflist"       # a file of Debian's package
AT_ONCE = 20


@pytest.fixture(scope="module")
def podman(world, mode):
    """Return podman on a node with the conflist of Debian's podman package."""
    for block in page.commands("Install the plugins"):
        world.shell(block)
    world.path("/etc/cni/net.d").mkdir()
    shutil.copy(CONFLIST, world.path(CONFLIST))
    if mode == "warm":
        world.serve()
    podman = Podman(world)
    with podman.container("first", "-p", "8099:80"):        # makes the bridge and the tables, which stay
        pass
    return podman


def test_the_commands_of_the_page_run_a_container(world, podman):
    with nothing_left(world):
        assert podman("info", "--format", "{{.Host.NetworkBackend}}") == "cni\n"
        try:
            assert world.shell(page.commands("podman")[1], IMAGE=image.NAME).splitlines()[-1].startswith("10.88.0.")
            assert eventually_slow(lambda: answers(world, 8080))
        finally:
            podman.remove("web")


def test_a_published_port_is_reached_from_outside_the_node_and_another_container(world, podman):
    with nothing_left(world), podman.container("web", "-p", "8081:80"), podman.container("other"):
        assert eventually_slow(lambda: answers(world, 8081))
        assert answers(world, 8081, "127.0.0.1", netns=None)
        assert podman.exec("other", "wget", "-q", "-O", "-", f"http://{ADDRESS}:8081/passwd")
        assert podman.reaches("other", OUTSIDE)
    assert not answers(world, 8081)


def test_a_fixed_address_and_mac(world, podman):
    with (nothing_left(world), podman.network("fixed", "--subnet", "10.91.0.0/24"),
          podman.container("fixed", "--network", "fixed", "--ip", "10.91.0.50", "--mac-address", "0a:00:5e:00:53:01")
          as networks):
        assert (networks["fixed"]["IPAddress"], networks["fixed"]["MacAddress"]) == ("10.91.0.50", "0a:00:5e:00:53:01")
        inside = podman("exec", "fixed", "ip", "addr", "show", "eth0")
        assert "inet 10.91.0.50/24" in inside and "link/ether 0a:00:5e:00:53:01" in inside
        refused = world.call("podman", "run", "--rm", "--network", "fixed", "--ip", "10.91.0.50", image.NAME, "true")
        assert refused.returncode and "10.91.0.50" in refused.stderr


def test_both_families(world, podman):
    with (nothing_left(world), podman.network("dual", "--ipv6", "--subnet", "10.92.0.0/24", "--subnet", "fd00:92::/64"),
          podman.container("dual", "--network", "dual", "-p", "8082:80") as networks):
        assert networks["dual"]["GlobalIPv6Address"].startswith("fd00:92::")
        assert podman.reaches("dual", OUTSIDE) and podman.reaches("dual", OUTSIDE6)
        assert eventually_slow(lambda: answers(world, 8082) and answers(world, 8082, f"[{ADDRESS6}]"))


def test_an_internal_network_has_no_way_out(world, podman):
    with (nothing_left(world), podman.network("inner", "--internal", "--subnet", "10.93.0.0/24"),
          podman.container("one", "--network", "inner"), podman.container("two", "--network", "inner") as networks):
        assert podman.reaches("one", networks["inner"]["IPAddress"])
        assert not podman.exec("one", "ping", "-c", "1", "-W", "1", OUTSIDE)
        assert "default" not in podman("exec", "one", "ip", "route")


def test_reload_restores_the_rules_of_running_containers(world, podman):
    with nothing_left(world), podman.container("web", "-p", "8083:80") as before:
        assert eventually_slow(lambda: answers(world, 8083))
        world.run("nft", "flush", "ruleset")
        podman("network", "reload", "--all")
        assert podman.networks("web")["podman"]["IPAddress"] == before["podman"]["IPAddress"]
        assert eventually_slow(lambda: answers(world, 8083)) and podman.reaches("web", OUTSIDE)


def test_flushed_rules_are_restored(world, podman, mode):
    """The result caches of podman 4 do not contain the namespace's path, so `fastcni restore` restored nothing."""
    with nothing_left(world), podman.container("web", "-p", "8084:80"):
        assert eventually_slow(lambda: answers(world, 8084))
        before = world.left()
        world.run("nft", "flush", "ruleset")
        if mode == "one-shot":
            assert not answers(world, 8084)
            done = json.loads(world.shell(f"{page.commands('If rules are flushed')[0].rstrip()} --json"))
            assert [done["attachments"], done["failed"]] == [1, []]
        assert eventually_slow(lambda: answers(world, 8084)) and podman.reaches("web", OUTSIDE)
        assert world.residue(before) == ""


def test_twenty_containers_at_once(world, podman):
    with nothing_left(world), ThreadPoolExecutor(AT_ONCE) as pool, ExitStack() as closing:
        containers = [podman.container(f"many-{number}", "-p", f"{8200 + number}:80") for number in range(AT_ONCE)]
        closing.callback(lambda: list(pool.map(podman.remove, (f"many-{number}" for number in range(AT_ONCE)))))
        started = list(pool.map(lambda it: it.__enter__(), containers))
        assert len({it["podman"]["IPAddress"] for it in started}) == AT_ONCE
        assert eventually_slow(lambda: all(answers(world, 8200 + number) for number in range(AT_ONCE)))


@needs_peer
def test_plugins_are_switched_under_running_containers(world, podman, mode):
    """The node's plugins are Go's, then fastcni's, then Go's again. Each implementation deletes pods that the other
    added, and no port mapping of a deleted pod stays.

    `fastcni uninstall` ends the node's server, so this test is the last one of its node."""
    world.run("fastcni", "uninstall")
    if mode == "warm":
        world.serve()
    for path in Path(PEER).iterdir():
        world.run("cp", "--remove-destination", path, f"/opt/cni/bin/{path.name}")
    with podman.container("by-go", "-p", "8401:80"):            # Go makes chains, which stay
        pass
    with nothing_left(world):
        with ExitStack() as old, ExitStack() as new:
            old.enter_context(podman.container("old", "-p", "8403:80"))
            world.shell(page.commands("Install the plugins")[0])
            assert eventually_slow(lambda: answers(world, 8403))
            new.enter_context(podman.container("new", "-p", "8404:80"))
            assert eventually_slow(lambda: answers(world, 8403) and answers(world, 8404))
            old.close()                                         # fastcni deletes what Go added
            new.enter_context(podman.container("again", "-p", "8403:80"))
            assert eventually_slow(lambda: answers(world, 8403))
            uninstall = world.start("fastcni", "uninstall", "--wait", log="uninstall.log")
            assert eventually_slow(lambda: not (world.path("/opt/cni/bin/.fastcni-replaced")).exists())
        assert uninstall.popen.wait(60) == 0, uninstall.log.read_text()     # Go deleted what fastcni added
        with podman.container("last", "-p", "8404:80"):
            assert eventually_slow(lambda: answers(world, 8404))
        # The first DEL by Go 1.1 fails, because an iptables chain does not exist. podman does not repeat this DEL.
        world.run("fastcni", "gc", "podman")
