"""The server with a runtime: the server is killed under load, or runs in a container with separate namespaces."""

import signal
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
from runtimes.conftest import nothing_left, set_up
from runtimes.containerd import SOCKET, Containerd
from runtimes.world import WEB, World, answers, eventually_slow

grpc = pytest.importorskip("grpc", reason="needs grpcio and grpcio-tools: pip install -e '.[test-runtimes]'")
from runtimes.cri import Cri, Pod  # noqa: E402

PODS, AT_ONCE, KILLS = 48, 8, 6
ATTEMPTS = 4                            # kubelet tries for ever
# Start the server in namespaces in which it sees neither the node's processes nor the names of the pods' namespaces.
CONTAINER = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child",
             "sh", "-c", 'mount -t tmpfs none /run/netns && exec "$@"', "sh")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with World(tmp_path_factory.mktemp("node")) as world:
        set_up(world)
        yield world


@pytest.fixture(scope="module")
def cri(world):
    with Containerd(world) as containerd, Cri(world.path(SOCKET)) as cri:
        containerd.run("first", "true", "--rm")
        with Pod(cri, "first", {8099: 80}):
            pass
        yield cri


def test_the_server_is_killed_in_the_middle_of_load(world, cri):
    """An ADD that the killed server had begun fails, and the runtime tries again. No pod remains incomplete."""
    errors = []

    def run(number):
        for _ in range(ATTEMPTS):
            try:
                with Pod(cri, f"load-{number}", {9000 + number: 80}) as pod:
                    return pod.addresses()[0]
            except grpc.RpcError as e:
                errors.append(e.details())
        return None
    with nothing_left(world):
        world.serve()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(run, number) for number in range(PODS)]
            for _ in range(KILLS):
                sleep(0.4)
                world.servers[-1].end(signal.SIGKILL)
                world.serve()
        assert all(it.result() for it in running), errors
        world.servers[-1].end()
    assert all("was lost while it worked on this ADD" in text for text in errors), errors
    assert sum(len(server.lines("command=ADD", "request_done")) for server in world.servers) > PODS


def test_the_server_has_its_own_mount_pid_and_network_namespaces(world, cri):
    before = world.requests()
    with nothing_left(world):
        server = world.serve(*CONTAINER)
        try:
            with Pod(cri, "web", {8080: 80}) as pod:
                pod.start(*WEB)
                assert eventually_slow(lambda: answers(world, 8080))
                world.run("nft", "flush", "ruleset")
                assert eventually_slow(lambda: answers(world, 8080)), server.log.read_text()

            def run(number):
                with Pod(cri, f"many-{number}", {8100 + number: 80}) as pod:
                    pod.start(*WEB)
                    return eventually_slow(lambda: answers(world, 8100 + number))
            with ThreadPoolExecutor(AT_ONCE) as pool:
                assert all(pool.map(run, range(20)))
        finally:
            server.end(signal.SIGKILL)
        assert world.requests()["one-shot"] == before["one-shot"]
