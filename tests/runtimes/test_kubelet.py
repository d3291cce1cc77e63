"""A kubelet that runs a pod by containerd and fastcni, one-shot and warm.

tests/cluster/kubernetes/real-api-server.sh builds a kubelet and runs this test. Without FASTCNI_TEST_KUBELET the test
is skipped. The pod is static, so it needs no API server."""

import json
import os

import pytest
from lab.node import eventually
from runtimes import image
from runtimes.conftest import nothing_left

PROGRAM = os.environ.get("FASTCNI_TEST_KUBELET", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs a kubelet: real-api-server.sh")
SOCKET = "unix:///run/containerd/containerd.sock"
START_S, END_S = 150, 90                # the kubelet first waits some 40 s for a Node object that does not exist
CONFIG = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failSwapOn": False,
          "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [],
          "authentication": {"webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
          "evictionHard": {"memory.available": "0%"}, "fileCheckFrequency": "1s", "makeIPTablesUtilChains": False}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"}, "spec": {
    "terminationGracePeriodSeconds": 1, "containers": [{
        "name": "c", "image": image.NAME, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}]}}


def running(world):
    """Return the number of running containers in containerd's namespace for Kubernetes."""
    return world.run("ctr", "-n", "k8s.io", "tasks", "ls", check=False).count("RUNNING")


def test_a_kubelet_runs_a_pod_and_its_end_leaves_nothing(world, containerd):
    directory = world.directory / "kubelet"
    (directory / "pods").mkdir(parents=True)
    (directory / "config").write_text(json.dumps(CONFIG | {"staticPodPath": str(directory / "pods")}))
    kubelet = world.start(PROGRAM, "--config", directory / "config", "--root-dir", directory / "root", "--cert-dir",
                          directory / "certs", "--container-runtime=remote", "--container-runtime-endpoint", SOCKET,
                          "--hostname-override=n1", log="kubelet.log")
    try:
        with nothing_left(world):
            (directory / "pods/web.json").write_text(json.dumps(POD))
            # The container and the sandbox's container
            assert eventually(lambda: running(world) == 2, START_S), kubelet.log.read_text()[-3000:]
            assert len([name for name in world.left()["links"] if name.startswith("veth")]) == 1
            (directory / "pods/web.json").unlink()
            assert eventually(lambda: running(world) == 0, END_S), kubelet.log.read_text()[-3000:]
    finally:
        kubelet.end()
