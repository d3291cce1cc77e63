"""Build the image of deploy/, and run the containers of daemonset.yaml by podman, on a separate node.

A kubelet does more than this test. docs/kubernetes.md lists the untested parts.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from packages.clean_system import CERTIFICATES, ROOT, base, call
from runtimes.podman import CONTAINERS, FILES, STORAGE
from runtimes.world import World, eventually_slow

yaml = pytest.importorskip("yaml", reason="pip install -e '.[test-packages]'")
pytestmark = [pytest.mark.needs("root"), pytest.mark.skipif(not shutil.which("podman"), reason="no podman")]

CONF = "/etc/cni/net.d/10-fastcni.conflist"
DEBIAN = "docker.io/library/debian:12-slim"
BUILD_S = 400
LISTS = 2  # requests to the server for a pod, one for each network list: loopback, and the network
CALLS = 4                               # one-shot calls for a pod: loopback and the three plugins of the network
OTHER_USER = 1001                       # the owner of the files in an archive of the Go plugins


class Node:
    """A node with the image. Node runs the manifest's containers as a kubelet does."""

    def __init__(self, world, directory):
        self.world = world
        found = {it["kind"]: it for it in yaml.safe_load_all((ROOT / "deploy/daemonset.yaml").read_text())}
        (self.uninstall,) = yaml.safe_load((ROOT / "deploy/uninstall.yaml").read_text())["spec"]["template"]["spec"][
            "initContainers"]
        self.pod = found["DaemonSet"]["spec"]["template"]["spec"]
        self.volumes = {it["name"]: it for it in self.pod["volumes"]}
        self.settings = directory / "settings"
        self.settings.mkdir()
        for name, text in found["ConfigMap"]["data"].items():
            (self.settings / name).write_text(text)
        for path, text in {**FILES, "/etc/containers/containers.conf": CONTAINERS, "/etc/containers/storage.conf":
                           STORAGE.replace("vfs", "overlay").replace("/var/lib/containers", str(directory))}.items():
            world.path(path).write_text(text)

    def build(self, directory):
        """Build the image from the Containerfile. Only the build uses the machine's network."""
        call("sh", ROOT / "tests/copy-tree.sh", directory / "tree")
        for path in ("/etc/resolv.conf", CERTIFICATES):
            shutil.copy(os.path.realpath(path), directory / Path(path).name)
        inside = ["nsenter", "-t", self.world.pid, "-m", "-p", "--wd=/", "--"]
        call("sh", "-ec", 'tar -C "$1" -cf - . | { shift; "$@"; }', "import", base("bookworm"), *inside,
             "podman", "import", "-q", "-", DEBIAN)
        call(*inside, "podman", "build", "--layers=false", "--isolation", "chroot", "--network", "host", "--pull=never",
             "-v", f"{directory}/ca-certificates.crt:{CERTIFICATES}:ro", "-v",
             f"{directory}/resolv.conf:/etc/resolv.conf:ro",
             "-f", directory / "tree/deploy/Containerfile", "-t", self.pod["containers"][0]["image"],
             directory / "tree",
             timeout=BUILD_S)

    def options(self, container):
        """Yield podman's options for a container of the manifest."""
        rights = container["securityContext"]
        yield from ("--name", container["name"], "--network", "host")
        assert self.pod["hostNetwork"] and not rights["privileged"] and not rights["allowPrivilegeEscalation"]
        yield from ("--security-opt", "no-new-privileges")
        yield from (f"--cap-drop={name}" for name in rights["capabilities"]["drop"])
        yield from (f"--cap-add={name}" for name in rights["capabilities"]["add"])
        yield from (f"--env={it['name']}={it.get('value', 'node')}" for it in container.get("env", ()))
        for it in container["volumeMounts"]:
            host = self.volumes[it["name"]].get("hostPath")
            flags = ["ro"] if it.get("readOnly") or not host else ["rw"]
            flags += {"HostToContainer": ["rslave"], None: ["rprivate"]}[it.get("mountPropagation")]
            source = self.source(host) if host else self.settings
            yield f"--volume={source}:{it['mountPath']}:{','.join(flags)}"

    def source(self, host):
        """Return the path of a hostPath volume on the node. Make the path as a kubelet does."""
        path = self.world.path(host["path"])
        if host.get("type") == "DirectoryOrCreate":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif "type" in host:
            path.touch(mode=0o644)
        return host["path"]

    def podman(self, *words, **more):
        return self.world.run("podman", *words, **more)

    def run(self, container, *how):
        return self.podman("run", *how, *self.options(container), container["image"], *container["args"])

    def in_server(self, handler):
        return self.world.call("podman", "exec", "server", *handler["exec"]["command"])

    def answered(self, command):
        """Return the number of requests of this command that the servers before and after a restart have answered."""
        done = self.world.call("podman", "logs", "server")
        return sum(f"command={command} " in line for line in (done.stdout + done.stderr).splitlines()
                   if "event=request_done" in line)

    def add_pod(self, name):
        self.world.run("ip", "netns", "add", name)
        self.world.run("fastcni", "pod", "up", name, f"/run/netns/{name}", "-p", "8080:80", "--ingress", "10M")
        assert "10.244.0." in self.world.run("ip", "-n", name, "-4", "addr", "show", "eth0")

    def delete_pod(self, name):
        self.world.run("fastcni", "pod", "down", name, f"/run/netns/{name}")
        self.world.run("ip", "netns", "del", name)

    def mtime(self):
        return self.world.path(CONF).stat().st_mtime_ns


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deploy")
    try:
        with World(directory) as world:
            node = Node(world, directory)
            node.build(directory)
            yield node
    finally:                            # the directory has gigabytes; its mounts have ended with the node
        assert str(directory) not in Path("/proc/self/mountinfo").read_text()
        shutil.rmtree(directory / "storage", ignore_errors=True)


def test_the_daemonset_on_a_node(node):
    world, (install,), (server,) = node.world, node.pod["initContainers"], node.pod["containers"]
    world.shell(f"mkdir -p /opt/cni/bin; echo theirs > /opt/cni/bin/bridge; chown -R {OTHER_USER} /opt/cni/bin")
    without = [it for it in node.options(install) if it != "--cap-add=DAC_OVERRIDE"]
    assert world.call("podman", "run", "--rm", *without, install["image"], *install["args"]).returncode
    node.run(install, "--rm")
    assert world.path("/opt/cni/bin/.fastcni-replaced/bridge").read_text() == "theirs\n"
    (python,) = world.path("/opt/fastcni/python").iterdir()
    node.run(install, "--rm")           # as after a restart of the node
    assert [python] == list(world.path("/opt/fastcni/python").iterdir())

    node.run(server, "-d")
    try:
        assert not world.path(CONF).exists()
        assert node.in_server(server["readinessProbe"]).returncode != 0
        done = node.in_server(server["lifecycle"]["postStart"])
        assert done.returncode == 0, done.stdout + done.stderr
        written = node.mtime()
        assert node.in_server(server["readinessProbe"]).returncode == 0

        before = world.left()
        node.add_pod("warm")
        assert world.requests()["one-shot"] == 0
        assert node.answered("ADD") == LISTS
        node.delete_pod("warm")
        assert world.residue(before) == ""

        node.podman("stop", "-t", node.pod["terminationGracePeriodSeconds"], "server")
        assert node.mtime() == written
        node.add_pod("meanwhile")
        assert world.requests()["one-shot"] == CALLS
        node.podman("start", "server")
        assert node.in_server(server["lifecycle"]["postStart"]).returncode == 0
        assert node.mtime() == written
        assert eventually_slow(lambda: node.in_server(server["readinessProbe"]).returncode == 0)
        node.delete_pod("meanwhile")
        assert node.answered("DEL") == 2 * LISTS
        assert world.residue(before, but="processes") == ""

        node.podman("stop", "server")
        node.run(node.uninstall, "--rm")
        assert not world.path(CONF).exists() and not world.path("/opt/fastcni/python").exists()
        assert [it.name for it in world.path("/opt/cni/bin").iterdir()] == ["bridge"]
    except BaseException:
        done = subprocess.run(world.command("podman", "logs", "server"), capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        raise
    finally:
        node.podman("rm", "-f", "-t", "0", "server")
