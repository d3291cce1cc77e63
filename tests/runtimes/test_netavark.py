"""Debian 13's unmodified podman 5 and netavark, with the network driver fastcni, one-shot and warm."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import bench_netavark
import pytest
from packages.clean_system import base
from runtimes import image, page
from runtimes.conftest import nothing_left
from runtimes.podman import Podman
from runtimes.world import ADDRESS, ADDRESS6, OUTSIDE, OUTSIDE6, ROOT, World, answers, eventually_slow

PACKAGES = ("podman", "netavark", "aardvark-dns", "runc", "iproute2", "nftables", "busybox-static")
AT_ONCE = 10


@pytest.fixture(scope="module")
def world(tmp_path_factory, mode):
    """Yield a node with the root directory of Debian 13."""
    with World(tmp_path_factory.mktemp("node"), base("trixie", "trixie-podman", *PACKAGES)) as world:
        world.env["PODMAN_IGNORE_CGROUPSV1_WARNING"] = "1"
        yield world
        done = world.requests()
        assert done[mode] > 0 and (mode == "warm" or not done["warm"]), f"requests of another mode: {done}"


@pytest.fixture(scope="module")
def podman(world, mode):
    world.shell(page.commands("podman 5")[0])
    if mode == "warm":
        world.serve()
    podman = Podman(world, cni=False)
    podman("network", "create", "-d", "fastcni", "--subnet", "10.87.0.0/16", "first")
    with podman.container("first", "--network", "first", "-p", "8099:80"):      # makes the bridge and the tables
        pass
    return podman


@pytest.fixture
def network(podman):
    """Return a function network(name, *options) that makes a network of the driver fastcni. The fixture removes the
    network and its bridge at the end."""
    with ExitStack() as made:
        def make(name, *options):
            made.enter_context(podman.network(name, "-d", "fastcni", "--interface-name", f"br-{name}", *options))
            return name
        yield make


def test_the_commands_of_the_page_run_a_container(world, podman):
    with nothing_left(world):
        world.shell(page.commands("podman 5")[1], IMAGE=image.NAME)
        try:
            found = podman.networks("web")["fast"]
            assert (found["IPAddress"], found["Gateway"]) == ("10.89.7.2", "10.89.7.1")
            assert eventually_slow(lambda: answers(world, 8080))
            assert answers(world, 8080, "127.0.0.1", netns=None)
            assert "fast " in world.run("fastcni", "list") and "10.89.7.2" in world.run("fastcni", "explain", "8080")
        finally:
            podman.remove("web")
            podman("network", "rm", "-f", "fast")


def test_addresses_macs_and_names_of_interfaces_are_podmans(world, podman, network):
    network("fixed", "--subnet", "10.91.0.0/24")
    words = "fixed:ip=10.91.0.50,mac=0a:00:5e:00:53:01,interface_name=net7"
    with nothing_left(world), podman.container("fixed", "--network", words) as networks:
        assert (networks["fixed"]["IPAddress"], networks["fixed"]["MacAddress"]) == ("10.91.0.50", "0a:00:5e:00:53:01")
        inside = podman("exec", "fixed", "ip", "addr", "show", "net7")
        assert "inet 10.91.0.50/24" in inside and "link/ether 0a:00:5e:00:53:01" in inside


def test_both_families_and_two_networks(world, podman, network):
    network("dual", "--ipv6", "--subnet", "10.92.0.0/24", "--subnet", "fd00:92::/64")
    network("other", "--subnet", "10.94.0.0/24", "-o", "mtu=1400")
    with nothing_left(world), podman.container(
            "dual", "--network", "dual:interface_name=eth0", "--network", "other:interface_name=eth1", "-p", "8082:80"):
        assert podman.networks("dual")["dual"]["GlobalIPv6Address"].startswith("fd00:92::")
        assert podman.reaches("dual", OUTSIDE6) and podman.reaches("dual", OUTSIDE)
        assert eventually_slow(lambda: answers(world, 8082) and answers(world, 8082, f"[{ADDRESS6}]"))
        assert "mtu 1400" in podman("exec", "dual", "ip", "link", "show", "eth1")


def test_an_internal_network_has_no_way_out(world, podman, network):
    network("inner", "--internal", "--subnet", "10.93.0.0/24")
    with (nothing_left(world), podman.container("one", "--network", "inner"),
          podman.container("two", "--network", "inner") as networks):
        assert podman.reaches("one", networks["inner"]["IPAddress"])
        assert not podman.exec("one", "ping", "-c", "1", "-W", "1", OUTSIDE)
        assert "default" not in podman("exec", "one", "ip", "route")


def test_a_container_moves_between_networks_while_it_runs(world, podman, network):
    network("later", "--subnet", "10.95.0.0/24")
    with nothing_left(world), podman.container("moving", "--network", "first"):
        podman("network", "connect", "later", "moving")
        assert podman.reaches("moving", "10.95.0.1")
        podman("network", "disconnect", "later", "moving")
        assert "eth1" not in podman("exec", "moving", "ip", "link") and podman.reaches("moving", OUTSIDE)


def test_reload_and_the_server_or_restore_bring_flushed_rules_back(world, podman, mode):
    with nothing_left(world), podman.container("web", "--network", "first", "-p", "8083:80") as before:
        assert eventually_slow(lambda: answers(world, 8083))
        world.run("nft", "flush", "ruleset")
        if mode == "one-shot":
            assert not answers(world, 8083)
            done = json.loads(world.shell(f"{page.commands('If rules are flushed')[0].rstrip()} --json"))
            assert [done["attachments"], done["failed"]] == [1, []]
        assert eventually_slow(lambda: answers(world, 8083))
        world.run("nft", "flush", "ruleset")
        podman("network", "reload", "--all")
        assert podman.networks("web")["first"]["IPAddress"] == before["first"]["IPAddress"]
        assert eventually_slow(lambda: answers(world, 8083)) and podman.reaches("web", OUTSIDE)


def test_what_fastcni_cannot_do_is_said_by_podman(world, podman):
    subnet = ("--subnet", "10.96.0.0/24")
    for words, said in (((*subnet, "-o", "isolate=strict"), "isolate=strict"), ((), "--subnet 10.89"),
                        (("--ipam-driver", "dhcp"), "the IPAM driver"), ((*subnet, "-o", "vrf=x"), "vrf"),
                        (("-o", "conflist=none"), 'no network list "none"')):
        done = world.call("podman", "network", "create", "-d", "fastcni", *words, "refused")
        assert done.returncode and said in done.stderr, done.stderr
    assert "refused" not in podman("network", "ls")


def test_a_list_of_ones_own_by_its_name(world, podman, network):
    world.run("mkdir", "-p", "/etc/cni/net.d")
    world.run("cp", ROOT / "examples/net.d/30-kubernetes.conflist", "/etc/cni/net.d/")
    network("own", "-o", "conflist=k8s-pod-network")
    with nothing_left(world), podman.container("own", "--network", "own", "-p", "8087:80") as networks:
        assert networks["own"]["IPAddress"].startswith("10.85.0.")
        assert eventually_slow(lambda: answers(world, 8087))


def test_ten_containers_at_once(world, podman):
    with nothing_left(world), ThreadPoolExecutor(AT_ONCE) as pool, ExitStack() as closing:
        containers = [podman.container(f"many-{number}", "--network", "first", "-p", f"{8200 + number}:80")
                      for number in range(AT_ONCE)]
        closing.callback(lambda: list(pool.map(podman.remove, (f"many-{number}" for number in range(AT_ONCE)))))
        started = list(pool.map(lambda it: it.__enter__(), containers))
        assert len({it["first"]["IPAddress"] for it in started}) == AT_ONCE
        assert eventually_slow(lambda: all(answers(world, 8200 + number) for number in range(AT_ONCE)))


def test_the_benchmark_beside_netavarks_bridge_runs(world, podman, mode):
    """Run the benchmark with two rounds. The test asserts no time."""
    if mode == "warm":
        table = world.run(sys.executable, ROOT / "benchmarks/bench_netavark.py", "--inside", "--rounds", "2")
        assert [line[:20].rstrip() for line in table.splitlines()[1:]] == [*bench_netavark.SIDES]


def test_containers_go_on_and_end_without_the_server(world, podman, mode):
    """The server ends while a container runs. The teardown then runs one-shot, and leaves nothing."""
    with nothing_left(world), podman.container("web", "--network", "first", "-p", "8088:80"):
        assert eventually_slow(lambda: answers(world, 8088))
        if mode == "warm":
            world.servers[-1].end(9)
        assert answers(world, 8088) and podman.reaches("web", OUTSIDE)
    with nothing_left(world), podman.container("web", "--network", "first", "-p", "8088:80"):
        assert eventually_slow(lambda: answers(world, 8088))
    if mode == "warm":
        world.serve()


def test_a_container_beside_netavarks_own_bridge(world, podman):
    """A container in fastcni's network and one in netavark's network run at the same time. Each published port is
    reachable through the other network's host address."""
    with podman.container("theirs", "-p", "8085:80"), podman.container("ours", "--network", "first", "-p", "8086:80"):
        assert eventually_slow(lambda: answers(world, 8085) and answers(world, 8086))
        assert podman.exec("theirs", "wget", "-q", "-O", "-", f"http://{ADDRESS}:8086/passwd")
    assert not answers(world, 8086)
