"""Run containerd on a test node: write its configuration, import the test image, call ctr."""

import signal
from uuid import uuid4

from lab.node import eventually
from runtimes import image
from runtimes.world import eventually_slow

CONFIG = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
SOCKET = "/run/containerd/containerd.sock"


class Containerd:
    """`with Containerd(world) as containerd:` runs the daemon, with the image in containerd's namespaces for ctr and
    for CRI."""

    def __init__(self, world):
        self.world = world

    def __enter__(self):
        self.world.path("/etc/containerd/config.toml").write_text(CONFIG)
        archive = self.world.directory / "image.tar"
        image.write_archive(archive)
        self.start()
        for namespace in ("default", "k8s.io"):
            self.world.run("ctr", "-n", namespace, "images", "import", "--snapshotter", "native", archive)
        return self

    def __exit__(self, *_):
        self.daemon.end()

    def start(self):
        self.daemon = self.world.start("containerd")
        assert eventually(self.answers), self.daemon.log.read_text()

    def kill(self):
        """Kill containerd with SIGKILL. Containers and their shims continue."""
        self.daemon.end(signal.SIGKILL)

    def answers(self):
        return self.world.call("ctr", "version").returncode == 0

    def run(self, name, script, *options, check=True):
        """Run a container of the test image with CNI. Return the container's output."""
        return self.world.run("ctr", "run", "--cni", *options, image.NAME, name, "sh", "-c", script, check=check)

    def exec(self, name, *words):
        """Run a program in a running container. Return whether the program succeeds."""
        return self.world.call("ctr", "task", "exec", "--exec-id", f"x{uuid4().hex[:8]}", name, *words).returncode == 0

    def remove(self, name):
        """Kill a detached container and remove it. ctr does not call DEL for detached containers."""
        self.world.run("ctr", "task", "kill", "-s", "SIGKILL", name)
        assert eventually_slow(lambda: self.world.call("ctr", "task", "rm", name).returncode == 0)
        self.world.run("ctr", "container", "rm", name)
