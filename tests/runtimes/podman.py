"""Run podman on a test node: write its configuration, load the test image, run containers."""

import contextlib
import json

from runtimes import image, page
from runtimes.world import WEB, eventually_slow

# With these settings podman also works in a container, without systemd, overlayfs and the capability to raise limits.
CONTAINERS = """
[containers]
default_ulimits = []
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
STORAGE = """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
FILES = {
    "/etc/containers/containers.conf": CONTAINERS,
    "/etc/containers/storage.conf": STORAGE,
    "/etc/containers/policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
}


class Podman:
    """`Podman(world)` sets podman up by the commands for CNI of docs/runtimes.md, and loads the image."""

    def __init__(self, world, cni=True):
        self.world = world
        for path, text in FILES.items():
            world.path(path).write_text(text)
        if cni:
            world.shell(page.commands("podman")[0])
        archive = world.directory / "image.tar"
        image.write_archive(archive)
        self("load", "-q", "-i", archive)

    def __call__(self, *words, **more):
        return self.world.run("podman", *words, **more)

    @contextlib.contextmanager
    def network(self, name, *options):
        """Make a network by podman, and remove the network at the end."""
        self("network", "create", *options, name)
        try:
            yield name
        finally:
            self("network", "rm", "-f", name)

    @contextlib.contextmanager
    def container(self, name, *options):
        """Run a container with the server WEB, and remove the container at the end. Yield the return value of
        networks()."""
        self("run", "-d", "--cap-add", "NET_RAW", "--name", name, *options, image.NAME, *WEB)
        try:
            yield self.networks(name)
        finally:
            self.remove(name)

    def remove(self, name):
        self("rm", "-f", "-t", "0", name)

    def networks(self, name):
        """Return {network: {"IPAddress": ..., "MacAddress": ..., ...}} of a container, as podman inspect prints it."""
        return json.loads(self("inspect", name))[0]["NetworkSettings"]["Networks"]

    def exec(self, name, *words):
        """Run a program in a container. Return whether the program succeeds."""
        return self.world.call("podman", "exec", name, *words).returncode == 0

    def reaches(self, name, address):
        """Return whether `address` answers a ping from the container."""
        return eventually_slow(lambda: self.exec(name, "ping", "-c", "1", "-W", "1", address))
