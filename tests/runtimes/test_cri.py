"""The Container Runtime Interface of containerd, used as kubelet uses it: ports, bandwidth, readiness, and a killed
containerd."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from runtimes import page
from runtimes.conftest import nothing_left
from runtimes.containerd import SOCKET
from runtimes.world import ADDRESS6, ROOT, WEB, answers, eventually_slow

grpc = pytest.importorskip("grpc", reason="needs grpcio and grpcio-tools: pip install -e '.[test-runtimes]'")
from runtimes.cri import Cri, Pod  # noqa: E402

RESULTS = "/var/lib/cni/results"
CONFLIST = "/etc/cni/net.d/30-kubernetes.conflist"
BANDWIDTH = {"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "20M"}


@pytest.fixture(scope="module")
def cri(world, containerd):
    with Cri(world.path(SOCKET)) as cri:
        with Pod(cri, "first", {8099: 80}, BANDWIDTH):      # makes the bridge and the tables, which stay
            pass
        yield cri


def test_host_port_passes_traffic(world, cri):
    with nothing_left(world), Pod(cri, "web", {8080: 80}) as pod:
        assert [address.partition(":")[0].rpartition(".")[0] for address in pod.addresses()] == ["10.85.0", ""]
        pod.start(*WEB)
        assert eventually_slow(lambda: answers(world, 8080))
        # The bridge's IPv6 address works only after DAD
        assert eventually_slow(lambda: answers(world, 8080, f"[{ADDRESS6}]"))
        assert answers(world, 8080, "127.0.0.1", netns=None) and answers(world, 8080, netns=None)
    assert not answers(world, 8080)


def test_the_commands_of_the_page_see_the_pod(world, cri):
    with nothing_left(world), Pod(cri, "seen", {8085: 80}) as pod:
        block, = page.commands("See that it works")
        doctor, found = (json.loads(world.run(*line.split(), "--json")) for line in block.splitlines())
        assert "k8s-pod-network" in doctor["facts"]["network"] and "files of fastcni" in doctor["facts"]["plugins"]
        assert pod.addresses() in [it["addresses"] for it in found["attachments"] if it["state"] == "running"], found
        assert pod.id.pod_sandbox_id in world.run("fastcni", "explain", "8085")


def test_bandwidth_annotations_become_qdiscs(world, cri):
    """The qdisc of the pod's host end limits the bytes that the pod receives. The qdisc of an ifb device limits the
    bytes that the pod sends."""
    assert all(f"{key}: {value}" in page.PAGE.read_text() for key, value in BANDWIDTH.items())
    with nothing_left(world), Pod(cri, "shaped", annotations=BANDWIDTH):
        found = json.loads(world.run("tc", "-j", "qdisc"))
        assert {it["dev"][:3]: it["options"]["rate"] for it in found if it["kind"] == "tbf"} == {
            "vet": 1_250_000, "bwp": 2_500_000}
        assert [it["dev"][:4] for it in found if it["kind"] == "ingress"] == ["veth"]


@pytest.fixture
def multus(world, cri):
    """Write a configuration of multus that sorts before the node's conflist and has the same network. Pods can also
    select the network `storage`."""
    conf = {"cniVersion": "1.0.0", "name": "all", "type": "multus", "clusterNetwork": CONFLIST, "capabilities": {
        "io.kubernetes.cri.pod-annotations": True, "portMappings": True, "bandwidth": True}}
    storage = {"cniVersion": "1.0.0", "name": "storage", "type": "ptp", "ipam": {
        "type": "host-local", "subnet": "10.86.0.0/24"}}
    first = world.path("/etc/cni/net.d/00-multus.conf")
    world.shell("mkdir -p /etc/cni/multus/net.d/tests")
    world.path("/etc/cni/multus/net.d/tests/storage.conf").write_text(json.dumps(storage))
    new = first.with_name("new")
    new.write_text(json.dumps(conf))
    before = cri.network()
    new.rename(first)
    assert eventually_slow(lambda: cri.network() == "all")
    yield
    first.unlink()
    assert eventually_slow(lambda: cri.network() == before)
    world.shell("rm -r /etc/cni/multus")


def test_an_annotation_of_a_pod_selects_a_second_network(world, cri, multus):
    mine = set(world.left()["netns"])
    with nothing_left(world), Pod(cri, "two", {8086: 80}, {"k8s.v1.cni.cncf.io/networks": "storage@stor0"}) as pod:
        (netns,) = set(world.left()["netns"]) - mine
        pod.start(*WEB)
        assert eventually_slow(lambda: answers(world, 8086))
        found = {it["ifname"]: it["addr_info"] for it in json.loads(world.run("ip", "-n", netns, "-j", "-4", "addr"))}
        assert pod.addresses()[0] == found["eth0"][0]["local"]
        assert found["stor0"][0]["local"].startswith("10.86.0.")


def test_twenty_pods_eight_at_once(world, cri):
    def run(number):
        with Pod(cri, f"many-{number}", {9000 + number: 80}) as pod:
            pod.start(*WEB)
            return eventually_slow(lambda: answers(world, 9000 + number))
    with nothing_left(world), ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(20))) == [True] * 20


def test_pods_are_deleted_after_containerd_was_killed(world, containerd, cri):
    with nothing_left(world):
        with ExitStack() as closing:
            pods = [Pod(cri, f"killed-{number}", {8100 + number: 80}, BANDWIDTH) for number in range(5)]
            for pod in pods:
                pod.__enter__()
            pods[0].start(*WEB)
            closing.callback(cri.remove_all)
            containerd.kill()
            containerd.start()
            assert eventually_slow(cri.answers)
            assert len(cri.pods()) == len(pods)
            assert eventually_slow(lambda: answers(world, 8100))
        assert cri.pods() == []


def test_a_damaged_result_file_delays_a_stop(world, cri):
    """containerd leaves an empty file if it is killed between open() and write(). Its libcni, 1.1.2, sends no DEL until
    the file is removed."""
    with nothing_left(world), Pod(cri, "damaged", {8150: 80}) as pod:
        pod.start(*WEB)
        path = f"{RESULTS}/k8s-pod-network-{pod.id.pod_sandbox_id}-eth0"
        world.path(path).write_text("")
        with pytest.raises(grpc.RpcError) as error:
            pod.stop()
        assert page.commands("A pod stays in Terminating")[0].strip() in error.value.details()
        unseen, = json.loads(world.run("fastcni", "doctor", "--json", check=False))["unseen"]
        assert f"result cache {path}: " in unseen and "remove the file" in unseen
        world.path(path).unlink()


def test_pods_that_start_while_containerd_is_killed_leave_nothing(world, containerd, cri):
    """After the kill the plugins continue and complete the ADD. gc releases pods that the restarted containerd does not
    list."""
    before = world.left()
    with Pod(cri, "survivor", {8199: 80}) as survivor:
        survivor.start(*WEB)
        mine = set(world.left()["netns"])
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(Pod(cri, f"half-{number}", {8200 + number: 80}, BANDWIDTH).__enter__)
                       for number in range(16)]
            assert eventually_slow(lambda: len(world.left()["links"]) > 6)
            containerd.kill()
        assert any(it.exception() for it in running)
        world.run("find", RESULTS, "-empty", "-delete")     # see test_a_damaged_result_file_delays_a_stop()
        containerd.start()
        assert eventually_slow(cri.answers)
        cri.remove_all(but=survivor.id.pod_sandbox_id)
        for netns in set(world.left()["netns"]) - mine:
            world.run("ip", "netns", "delete", netns)
        done = json.loads(world.run("fastcni", "gc", "k8s-pod-network", "--json"))
        assert [it["containerID"] for it in done["kept"]] == [survivor.id.pod_sandbox_id]
        assert eventually_slow(lambda: answers(world, 8199))
    assert world.residue(before, but="processes") == ""  # a killed containerd 1.6 leaves shims that it was starting


def test_host_ports_work_again_after_a_flush(world, cri, mode):
    with nothing_left(world), Pod(cri, "flushed", {8300: 80}) as pod:
        pod.start(*WEB)
        assert eventually_slow(lambda: answers(world, 8300))
        before = world.left()
        world.run("nft", "flush", "ruleset")
        if mode == "one-shot":
            assert not answers(world, 8300)
            done = json.loads(world.shell(f"{page.commands('If rules are flushed')[0].rstrip()} --json"))
            assert done["failed"] == []
        assert eventually_slow(lambda: answers(world, 8300) and answers(world, 8300, f"[{ADDRESS6}]"))
        assert world.residue(before) == ""


def test_readiness_follows_the_conflist_and_not_the_addresses(world, cri):
    """Kubernetes evicts the pods of a node that is not ready. So a full range must not make the node unready: only the
    next pod fails."""
    conf = json.loads((ROOT / "examples/net.d/30-kubernetes.conflist").read_text())
    conf["plugins"][0] |= {"bridge": "small0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.86.0.0/30"}]]}}
    path, whole = world.path(CONFLIST), world.path(CONFLIST).read_text()
    with nothing_left(world):
        try:
            path.unlink()
            assert eventually_slow(lambda: not cri.conditions()["NetworkReady"][0])
            path.write_text(json.dumps({**conf, "name": "small"}))
            assert eventually_slow(lambda: cri.conditions()["NetworkReady"][0])
            with Pod(cri, "only"):
                with pytest.raises(grpc.RpcError, match=r'no IP addresses available .* of network "small"'):
                    Pod(cri, "surplus").__enter__()
                assert cri.conditions() == {"RuntimeReady": (True, ""), "NetworkReady": (True, "")}
                world.run("fastcni", "status", "small")
            with Pod(cri, "next"):
                pass
            cri.remove_all()
        finally:
            path.write_text(whole)
            assert eventually_slow(lambda: cri.conditions()["NetworkReady"][0])
