"""After the answer, a server keeps nothing of a pod's network namespace."""

import ctypes
import os
import subprocess
import time
from types import SimpleNamespace

import pytest
from lab.node import Inside, links
from unit.server.local import Local

from fastcni.kernel import netns
from fastcni.server.requests import hosts
from fastcni.server.requests.mode import WarmMode
from fastcni.testing.witnesses import eventually

libc = ctypes.CDLL(None, use_errno=True)
MS_BIND = 4096


def mount(source, target):
    assert libc.mount(source.encode(), target.encode(), None, MS_BIND, None) == 0, os.strerror(ctypes.get_errno())


def unmount(target):
    """Unmount the target. Return "", or the kernel's message."""
    return "" if libc.umount2(target.encode(), 0) == 0 else os.strerror(ctypes.get_errno())


@pytest.fixture
def bound(pod, tmp_path):
    """Yield the path at which the pod's namespace is mounted, as runtimes mount it."""
    path = str(tmp_path / "netns")
    open(path, "w").close()
    mount(f"/run/netns/{pod}", path)
    yield path
    while not unmount(path):
        continue


@pytest.mark.parametrize("kind", ["bridge", "ptp", "host-local", "loopback"])
def test_a_namespace_can_be_unmounted_as_soon_as_its_add_is_answered(node, pod, server, bound, kind):
    """Once, the server closed its descriptor of that mount only after the answer. For one of a few pods, umount(8) then
    failed with "busy"."""
    conf = node.conf(isGateway=True, type=kind)
    for _ in range(60):
        answer = server.call("ADD", conf, bound, cid="c-1")
        assert (answer.status, unmount(bound)) == (0, "")
        mount(f"/run/netns/{pod}", bound)
        server.ok("DEL", conf, bound, cid="c-1")


@pytest.mark.parametrize("command, keys", [
    ("DEL", {"type": "host-local"}), ("DEL", {"type": "portmap"}), ("DEL", {"type": "bridge"}),
    ("CHECK", {"type": "bridge"}), ("ADD", {"type": "bridge", "vlan": -1}), ("ADD", {"type": "no-such-type"})])
def test_a_namespace_can_be_unmounted_after_each_other_answer(node, pod, server, bound, command, keys):
    """Once, the server kept the descriptor until it had sent the answer if the request had not used the descriptor."""
    conf = node.conf(**keys)
    busy = []
    for _ in range(60):
        server.call(command, conf, bound, cid="c-1")
        if why := unmount(bound):
            busy.append(why)
            while unmount(bound):
                continue
        mount(f"/run/netns/{pod}", bound)
    assert busy == []


@pytest.mark.parametrize("options", [("--mount", "--pid", "--fork", "--kill-child"), ("--mount",)],
                         ids=["pid", "mount"])
@pytest.mark.parametrize("seen", ["nothing", "a file"])
def test_a_server_in_a_container_opens_no_other_namespace_at_the_path_of_a_pod_that_is_gone(node, pod, start, tmp_path,
                                                                                            seen, options):
    """CNI_NETNS, for instance /proc/PID/ns/net, may be another pod's namespace in the mount and pid namespaces of the
    server. Once, DEL then deleted the link of the other pod, and ADD made a link in it, also if only the mount
    namespaces differed."""
    path = f"{tmp_path}/own/netns"
    os.mkdir(f"{tmp_path}/own")
    own = f'mount -t tmpfs none {tmp_path}/own && : > {path} && mount --bind /run/netns/{pod} {path} && exec "$@"'
    server = start(before=("unshare", *options, "sh", "-c", own, "sh"))
    conf = node.conf(isGateway=True)
    server.ok("ADD", conf, pod)
    before = node.left(pod)
    if seen == "a file":
        open(path, "w").close()
    assert server.ok("DEL", conf, path, cid="c-2") is None
    error = server.refused("ADD", conf, path, cid="c-2", ifname="eth1")
    assert error["code"] == 8 and error["msg"].startswith(f'failed to open netns "{path}"')
    assert node.left(pod) == before
    server.ok("DEL", conf, pod)


def test_a_namespace_can_be_unmounted_when_the_plugin_file_has_ended(node, pod, server, plugins, bound):
    """The plugin file, too, has a descriptor of the namespace until it ends."""
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c-1", "CNI_IFNAME": "lo", "CNI_NETNS": bound, "CNI_PATH": plugins,
           "FASTCNI_SOCKET": str(server.path), "PATH": os.environ["PATH"]}
    for _ in range(30):
        done = subprocess.run([f"{plugins}/loopback"], env=env, capture_output=True,
                              input=b'{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}')
        assert (done.returncode, unmount(bound)) == (0, "")
        mount(f"/run/netns/{pod}", bound)
    assert eventually(lambda: len(server.lines("plugin=loopback", "command=ADD")) == 30)


def test_an_add_whose_caller_left_is_rolled_back_after_its_mount_is_released(node, pod, start, slow):
    """The rollback sets sysctls and deletes links in the pod. For this, it uses another descriptor of the namespace,
    because the server has already closed that of the mount."""
    server, (keys, env) = start(), slow(0.5)
    before = node.left(pod)
    waiting = server.send("ADD", node.conf(type="ptp", **keys), pod, env=env)
    assert slow.started()
    waiting.close()
    assert eventually(lambda: server.lines("event=caller_gone", "run=True"))
    assert node.left(pod) == before and "eth0" not in links(pod)


def namespaces_held():
    """Return the names in /proc of the network namespaces that this process has descriptors of."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue                    # listdir() itself had this descriptor
    return [name for name in found if name.startswith(("net:", "/run/netns/"))]


@pytest.mark.parametrize("refused", ["too many", "cannot be entered", "no descriptor for its sockets"])
def test_a_declined_request_leaves_no_descriptor_of_the_pods_namespace(node, pod, pod_netns, tmp_path, monkeypatch,
                                                                       refused):
    """Once, the server declined a request because its callers were in too many namespaces, but kept the descriptor of
    the pod's namespace. umount(8) failed until the server ended."""
    there = pod_netns()
    module, name, instead = {"too many": (hosts, "MAX_NAMESPACES", 0),
                             "cannot be entered": (hosts.netns, "inside", cannot_enter),
                             "no descriptor for its sockets": (hosts, "GroupedDeletes", no_descriptor)}[refused]
    with Local(tmp_path, monkeypatch) as server, monkeypatch.context() as patch:
        patch.setattr(module, name, instead)
        before = sorted(namespaces_held())
        for _ in range(5):
            with Inside(there):
                assert server.call("ADD", node.conf(), pod).status == 2
        assert eventually(lambda: sorted(namespaces_held()) == before), namespaces_held()


def cannot_enter(fd, home=None):
    raise PermissionError(1, "Operation not permitted")


def no_descriptor(defer):
    raise OSError(24, "Too many open files")


def test_a_namespace_whose_callers_are_gone_makes_room_for_another(node, pod, pod_netns, tmp_path, monkeypatch):
    """A namespace counts for ten seconds after its last request. Once, if callers came from many namespaces one after
    another, the server declined requests although no other request ran."""
    monkeypatch.setattr(hosts, "MAX_NAMESPACES", 1)
    with Local(tmp_path, monkeypatch) as server:
        for there in [pod_netns() for _ in range(3)]:
            with Inside(there):
                assert server.call("VERSION", node.conf(), pod).status == 0
        assert not server.lines("request_declined")


@pytest.fixture
def kept(monkeypatch):
    """Yield a function kept(name=(seconds since the last request, requests that use it)) that makes Hosts with these
    namespaces. The attribute closed has the names of the closed ones."""
    made = []

    def make(**namespaces):
        monkeypatch.setattr(hosts, "Namespace", lambda fd, home, *_: SimpleNamespace(
            home=home, users=0, left=0.0, deletes=SimpleNamespace(links=1, requests=1), close=lambda: None))
        it = hosts.Hosts(netns.open_own(), lambda fn: fn(), None, None, None)
        made.append(it)
        it.closed, now = [], time.monotonic()
        for number, (name, (seconds, users)) in enumerate(namespaces.items()):
            it.known[0, number] = SimpleNamespace(
                home=False, users=users, left=now - seconds, deletes=SimpleNamespace(links=20, requests=5),
                close=lambda name=name: it.closed.append(name))
        return it

    yield make
    for it in made:
        os.close(it.home)


def test_a_namespace_is_kept_for_ten_seconds_after_its_last_request(kept):
    it = kept(old=(11, 0), busy=(11, 1), new=(9, 0))
    it.tidy()
    assert it.closed == ["old"] and len(it.known) == 3


def test_the_namespace_that_was_unused_for_longest_makes_room(kept, monkeypatch):
    it = kept(a=(3, 0), b=(9, 1), c=(5, 0))
    it.make_room()
    assert it.closed == []
    monkeypatch.setattr(hosts, "MAX_NAMESPACES", 3)
    it.make_room()
    assert it.closed == ["c"]
    monkeypatch.setattr(hosts, "MAX_NAMESPACES", 1)
    it.make_room()
    assert it.closed == ["c", "a"]
    with pytest.raises(OSError, match="callers from 1 network namespaces at the same time"):
        it.make_room()


def test_deleted_links_are_counted_also_of_closed_namespaces(kept):
    it = kept(old=(11, 0), new=(9, 0))
    assert it.link_deletes() == (41, 11)
    it.tidy()
    assert it.closed and it.link_deletes() == (41, 11)


def test_a_namespace_without_an_identity_leaves_no_descriptor(warm, collector_off, monkeypatch):
    """Once, a DEL of multus kept the pod's namespace if fstat(2) failed after the server had opened it."""
    def refuse(_):
        raise OSError(12, os.strerror(12))

    warm.message = SimpleNamespace(netns=None, pid=os.getpid())
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(netns, "identity", refuse)
        with pytest.raises(OSError, match="Cannot allocate"):
            WarmMode.open_netns(warm, netns.OWN)
    assert len(os.listdir("/proc/self/fd")) == len(before)
