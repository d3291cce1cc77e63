"""The server as a process: its answers, their order, and the state that it leaves behind."""

import errno
import json
import os
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from lab.node import Inside, addresses, elements, links, run, sysctl
from lab.portmap_chain import mapping
from unit.server.client import Server, packed

from fastcni.server import service
from fastcni.testing.witnesses import eventually


def in_names(document):
    """Return a result as text, with fixed words in the place of random names and MAC addresses."""
    text = json.dumps(document)
    for item in (document or {}).get("interfaces", ()):
        if item["name"].startswith("veth"):
            text = text.replace(item["name"], "HOST")
        text = text.replace(item["mac"], "MAC")
    return text


@pytest.mark.parametrize("keys", [{"isGateway": True}, {"isDefaultGateway": True, "ipMasq": True},
                                  {"type": "ptp", "ipMasq": True}], ids=["bridge", "bridge-masq", "ptp-masq"])
def test_answers_are_those_of_a_one_shot_plugin(node, pod_netns, server, keys):
    here, there = pod_netns(), pod_netns()
    conf = node.conf(routes=["0.0.0.0/0"], **keys)
    warm = server.ok("ADD", conf, here)
    cold = node.add(conf, there, cid="c-cold")
    assert in_names(warm).replace(here, "POD").replace(".2/", ".N/") == in_names(cold).replace(
        there, "POD").replace(".3/", ".N/")
    assert server.ok("CHECK", {**conf, "prevResult": warm}, here) is None
    assert server.ok("STATUS", conf) is None
    assert server.ok("DEL", {**conf, "prevResult": warm}, here) is None
    node.delete(conf, there, cid="c-cold")
    assert node.held() == {}
    assert "eth0" not in links(here)
    assert elements("pods4") == []


def test_version_loopback_and_host_local_are_served(node, pod, server):
    assert "1.1.0" in server.ok("VERSION", {"type": "ptp"})["supportedVersions"]
    result = server.ok("ADD", {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}, pod)
    assert result["interfaces"][0]["name"] == "lo" and "UP" in links(pod)["lo"]["flags"]
    conf = node.conf(type="host-local")
    assert server.ok("ADD", conf, pod)["ips"][0]["address"] == "10.22.0.2/24"
    gc = {**conf, "cni.dev/valid-attachments": []}
    assert server.ok("GC", gc) is None and node.held() == {}


def test_errors_are_those_of_a_one_shot_plugin(node, pod, server):
    for conf, where in ((node.conf(hairpinMode=True, promiscMode=True), pod), (node.conf(), "/run/netns/not-there"),
                        (node.conf(), "/dev/null"), (b"{", pod)):
        warm = server.refused("ADD", conf, where, plugin="bridge")
        assert warm == node.refused("ADD", conf, where, plugin="bridge", env={"CNI_PATH": "/nowhere"})


def test_many_pods_at_once_leave_nothing(node, pod_netns, server):
    pods = [pod_netns() for _ in range(32)]
    conf = node.conf(isGateway=True, ipMasq=True)
    with ThreadPoolExecutor(32) as pool:
        def each(command, pod):
            with Inside(node.name):
                return server.ok(command, conf, pod)

        results = list(pool.map(lambda pod: each("ADD", pod), pods))
        assert len({result["ips"][0]["address"] for result in results}) == len(elements("pods4")) == 32
        list(pool.map(lambda pod: each("DEL", pod), pods))
    assert not [name for name in links() if name.startswith("veth")]
    assert node.held() == {} and elements("pods4") == []


def test_a_del_is_not_answered_while_the_link_is_there(node, pod_netns, server):
    conf = node.conf(isGateway=True)
    pods = [pod_netns() for _ in range(12)]
    names = {pod: server.ok("ADD", conf, pod)["interfaces"][1]["name"] for pod in pods}

    def delete(pod):
        with Inside(node.name):
            server.ok("DEL", conf, pod)
            return os.path.exists(f"/proc/sys/net/ipv4/conf/{names[pod]}")

    with ThreadPoolExecutor(12) as pool:
        assert not any(pool.map(delete, pods))


def test_requests_for_one_attachment_run_in_the_order_in_which_they_came(node, pod, server):
    conf = node.conf(isGateway=True)
    for _ in range(5):
        sent = [server.send(command, conf, pod) for command in ("ADD", "DEL", "ADD", "DEL")]
        assert [each.answer().status for each in sent] == [0, 0, 0, 0]
    assert node.held() == {} and "eth0" not in links(pod)


def test_different_attachments_run_concurrently(node, pod_netns, start, slow):
    server, (keys, env) = start(), slow(1)
    one, two = pod_netns(), pod_netns()
    waiting = server.send("ADD", node.conf(**keys), one, env=env)
    assert slow.started()
    server.ok("ADD", node.conf(), two)
    assert not server.lines("slow-ipam") and waiting.answer().status == 0


def test_host_side_work_is_done_in_the_callers_namespace(node, pod, server):
    name = f"{node.name}-2"
    run("ip", "netns", "add", name)
    try:
        with Inside(name):
            run("ip", "link", "set", "lo", "up")
            server.ok("ADD", node.conf(isGateway=True), pod)
            assert "br0" in links()
            assert addresses("br0") == ["10.22.0.1/24"]
            assert sysctl("net/ipv4/ip_forward") == "1"
        assert "br0" not in links() and sysctl("net/ipv4/ip_forward") == "0"
        with Inside(name):
            server.ok("DEL", node.conf(isGateway=True), pod)
            assert not [link for link in links() if link.startswith("veth")]
    finally:
        run("ip", "netns", "del", name)


# -- the parts of a server ---------------------------------------------------------------------------------------

class Recorded:
    """Is in the place of a part of the server, and records each call of a method. values: attributes that have a
    value."""

    def __init__(self, name, calls, **values):
        self.name, self.calls = name, calls
        self.__dict__ |= values

    def __getattr__(self, method):
        return lambda *_, **__: self.calls.append(f"{self.name}.{method}") or True


@pytest.fixture
def parts(monkeypatch):
    """Return a Server whose constructor did not run and whose parts are Recorded. The Server's attribute `calls`
    lists the calls of all parts."""
    it, it.calls = object.__new__(service.Server), []
    for name in ("hosts", "pool", "restoring", "cluster", "pool_watch", "datapath", "acceptor", "upkeep", "logger"):
        setattr(it, name, Recorded(name, it.calls))
    it.listen = Recorded("listen", it.calls, lost=False, handed_over=False, path="/s")
    it.queue = Recorded("queue", it.calls, waiting=0, running=0)
    it.networks = Recorded("networks", it.calls)
    it.parts, it.beside = [Recorded("part", it.calls)], [Recorded("beside", it.calls)]
    it.background, it.unreachable = lambda fn, *args: fn(*args), False
    it.notify = it.calls.append
    monkeypatch.setattr(service, "_ipam_bitmap", Recorded("index", it.calls))
    return it


def test_a_server_starts_its_parts_before_its_work_in_the_background(parts, monkeypatch):
    """The server reports READY to systemd before its first answer. The dhcp daemon starts before the workers, because
    their requests need it."""
    parts.workers, parts.started, parts.sysctls = 32, 0.0, "mounts"
    parts.cluster.pods = SimpleNamespace(unseen=lambda: [("/run/netns", "no mounts")])
    monkeypatch.setattr(service.sysctl, "mounts", None)
    for name in ("release_addresses", "remove_stale_ports"):
        monkeypatch.setattr(service, name, lambda log, name=name: parts.calls.append(name))
    parts.start()
    assert parts.calls == [
        "READY=1", "logger.info", "upkeep.start", "beside.start", "pool.start", "restoring.start", "part.start",
        "release_addresses", "remove_stale_ports", "cluster.learn", "networks.learn", "logger.warning"]
    assert service.sysctl.mounts == "mounts"


def test_the_periodic_work_is_that_of_each_part(parts):
    """The periodic work also starts threads that Python could not start before."""
    parts.tidy()
    assert sorted(parts.calls) == sorted([
        "hosts.tidy", "pool.keep", "restoring.start", "part.start", "cluster.keep", "networks.keep", "pool_watch.poll",
        "datapath.poll", "index.forget"])


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_server_stops_its_parts_after_the_last_answer(parts, handed_over, monkeypatch):
    """First, the server removes the socket's file, so that no request reaches it any more. It releases the lock before
    it waits for its requests, so that the next server can start."""
    monkeypatch.setattr(service.sysctl, "mounts", "mounts")
    parts.listen.handed_over, stopped = handed_over, []
    parts.pool.stop = lambda accept_waiting: stopped.append(accept_waiting) or parts.calls.append("pool.stop")
    assert parts.stop() == 0 and stopped == [not handed_over]
    first, rest = parts.calls[:6], parts.calls[6:]
    assert first == ["STOPPING=1", "logger.info", "listen.unlink", "pool.stop", "listen.unlock", "pool.join"]
    assert rest == ["beside.join", "upkeep.stop", "part.stop", "acceptor.close", "restoring.stop", "cluster.stop",
                    "networks.stop", "hosts.close", "logger.info"]
    assert service.sysctl.mounts is None


# -- changes by other programs ------------------------------------------------------------------------------

def delete_bridge():
    run("ip", "link", "del", "br0")


def rename_bridge():
    run("ip", "link", "set", "br0", "down")
    run("ip", "link", "set", "br0", "name", "br-old")


def take_address():
    run("ip", "addr", "flush", "dev", "br0")


def set_bridge_down():
    run("ip", "link", "set", "br0", "down")


def stop_forwarding():
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
        file.write("0")


def flush_ruleset():
    run("nft", "flush", "ruleset")


def delete_table():
    run("nft", "delete", "table", "inet", "fastcni")


def flush_table():
    run("nft", "flush", "table", "inet", "fastcni")


@pytest.mark.parametrize("change", [delete_bridge, rename_bridge, take_address, set_bridge_down, stop_forwarding,
                                    flush_ruleset, delete_table, flush_table], ids=lambda change: change.__name__)
def test_the_next_add_handles_changes_by_other_programs(node, pod_netns, server, change):
    conf, one, two = node.conf(isGateway=True, ipMasq=True), pod_netns(), pod_netns()
    server.ok("ADD", conf, one)
    change()
    result = server.ok("ADD", conf, two)
    assert links()["br0"]["address"] == result["interfaces"][0]["mac"] and "UP" in links()["br0"]["flags"]
    assert addresses("br0") == ["10.22.0.1/24"] and sysctl("net/ipv4/ip_forward") == "1"
    assert links()[result["interfaces"][1]["name"]]["master"] == "br0"
    assert any("10.22.0.3" in str(each) for each in elements("pods4"))
    assert "ip saddr vmap @pods4" in run("nft", "list", "table", "inet", "fastcni")


def test_a_bridge_whose_address_was_changed_is_refused(node, pod_netns, server):
    server.ok("ADD", node.conf(isGateway=True), pod_netns())
    run("ip", "addr", "flush", "dev", "br0")
    run("ip", "addr", "add", "10.99.0.1/24", "dev", "br0")
    assert "already has an IP address different" in server.refused("ADD", node.conf(isGateway=True), pod_netns())["msg"]


def test_force_address_restores_a_changed_bridge_address(node, pod_netns, server):
    conf = node.conf(isGateway=True, forceAddress=True)
    server.ok("ADD", conf, pod_netns())
    run("ip", "addr", "flush", "dev", "br0")
    run("ip", "addr", "add", "10.99.0.1/24", "dev", "br0")
    server.ok("ADD", conf, pod_netns())
    assert addresses("br0") == ["10.22.0.1/24"]


# -- callers that leave, and waits ------------------------------------------------------------------------------

def test_an_add_whose_caller_has_gone_is_rolled_back(node, pod, start, slow):
    server, (keys, env) = start(), slow(0.5)
    before = node.left(pod)
    waiting = server.send("ADD", node.conf(isGateway=True, **keys), pod, env=env)
    assert slow.started()
    waiting.close()
    assert eventually(lambda: server.lines("level=warning", "event=caller_gone", "command=ADD", "run=True"))
    assert node.left(pod) == before


def test_a_request_whose_caller_has_gone_is_not_begun(node, pod_netns, start, slow):
    server, (keys, env) = start("--workers", "1"), slow(0.5)
    first = server.send("ADD", node.conf(**keys), pod_netns(), env=env)
    assert slow.started()
    server.send("ADD", node.conf(), pod_netns()).close()
    assert first.answer().status == 0
    assert eventually(lambda: server.lines("event=caller_gone", "run=False"))
    assert not node.held()


def test_a_request_that_waits_too_long_is_refused_with_the_reason(node, pod_netns, start, slow):
    server, (keys, env) = start("--workers", "1", "--queue-timeout", "0.3"), slow(1)
    first = server.send("ADD", node.conf(**keys), pod_netns(), env=env)
    assert slow.started()
    error = server.refused("ADD", node.conf(), pod_netns())
    assert error["code"] == 11 and "for one of 1 workers of the fastcni server" in error["msg"]
    assert first.answer().status == 0


def test_a_request_behind_another_one_of_its_attachment_is_refused_with_that_reason(node, pod, start, slow):
    server, (keys, env) = start("--queue-timeout", "0.3"), slow(1)
    first = server.send("ADD", node.conf(**keys), pod, env=env)
    assert slow.started()
    error = server.refused("DEL", node.conf(), pod)
    assert error["code"] == 11
    assert error["msg"].endswith("for an earlier request of the same attachment, which has not ended")
    assert server.lines("event=request_refused", "command=DEL", "network=net-a")
    assert first.answer().status == 0


def test_a_full_queue_refuses_at_once(node, pod_netns, start, slow):
    server, (keys, env) = start("--workers", "1", "--queue-size", "1"), slow(1)
    first = server.send("ADD", node.conf(**keys), pod_netns(), env=env)
    assert slow.started()
    second = server.send("DEL", node.conf(), pod_netns())
    error = server.refused("ADD", node.conf(), pod_netns())
    assert (error["code"], error["msg"]) == (11, "1 requests wait for the fastcni server already")
    assert (first.answer().status, second.answer().status) == (0, 0)


# For python -c: `serve PATH` with one worker. An ADD overtakes a DEL for 60 s, and a request may take 60 s.
PATIENT = """import sys; from fastcni.server.requests import request_queue, slots
request_queue.OVERTAKEN_S = slots.HANGS_S = 60.0
from fastcni.server.service import Options, serve
sys.exit(serve(sys.argv[1], Options(workers=1)))"""


def test_add_goes_before_del_when_both_wait(node, pod_netns, start, slow):
    server, (keys, env) = start(program=("-c", PATIENT)), slow(2)
    pods = [pod_netns() for _ in range(3)]
    first = server.send("ADD", node.conf(**keys), pods[0], env=env)
    assert slow.started()
    later = server.send("DEL", node.conf(), pods[1], cid="late")
    time.sleep(0.1)
    sooner = server.send("ADD", node.conf(), pods[2], cid="soon")
    assert [each.answer().status for each in (first, later, sooner)] == [0, 0, 0]
    # the server writes a request's line after its answer
    assert eventually(lambda: len(server.lines("event=request_done")) == 3)
    done = server.lines("event=request_done")
    assert "container=soon" in done[-2] and "container=late" in done[-1]


# -- many requests ---------------------------------------------------------------------------------------------------

def test_descriptors_and_threads_do_not_grow(node, pod_netns, server):
    conf, pods = node.conf(isGateway=True, ipMasq=True), [pod_netns() for _ in range(4)]

    def pairs(count):
        for _ in range(count):
            for pod in pods:
                server.ok("ADD", conf, pod)
                server.ok("VERSION", conf, pod)
                server.refused("ADD", conf, pod, ifname="lo")
            for pod in pods:
                server.ok("DEL", conf, pod)
        time.sleep(0.3)                 # by then, the thread of the last request has left the kernel
        return server.descriptors, server.threads

    descriptors, threads = pairs(5)
    again = pairs(40)
    # A worker opens three descriptors at its first request. A leak in each of the 640 requests would exceed this.
    assert again[0] <= descriptors + 16 and again[1] <= threads + 8


@pytest.mark.parametrize("protocol, kind", [("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)])
def test_a_host_port_that_a_process_has_is_a_warning_in_the_log(net, pod, server, protocol, kind):
    """Once, packets reached the pod instead of the process, and no log reported it."""
    with socket.socket(socket.AF_INET, kind) as process:
        process.bind(("0.0.0.0", 0))
        if kind == socket.SOCK_STREAM:
            process.listen()
        port = process.getsockname()[1]
        conf = net.of(pod, mapping(port, protocol=protocol), mapping(port % 60000 + 1024, protocol=protocol))
        answer = server.send("ADD", conf, pod).answer()
    text = f"portmap: host port {port}/{protocol}: a process of the node listens on 0.0.0.0"
    assert answer.status == 0 and answer.stderr.decode().startswith(text) and answer.stderr.count(b"\n") == 1
    assert eventually(lambda: server.lines("event=request_done", "level=warning", f'warning="{text}'))
    server.ok("DEL", conf, pod)


@pytest.mark.parametrize("fmt", ["logfmt", "json"])
def test_a_request_is_one_line_of_log(node, pod, start, fmt):
    server = start("--log-format", fmt)
    server.ok("ADD", node.conf(isGateway=True, ipMasq=True), pod)
    assert eventually(lambda: server.lines("request_done"))
    line = server.lines("request_done")[-1]
    if fmt == "json":
        found = json.loads(line)
    else:
        found = dict(pair.split("=", 1) for pair in line.split())
    assert (found["command"], found["plugin"], found["network"], found["ifname"]) == ("ADD", "bridge", "net-a", "eth0")
    assert int(found["pid"]) == os.getpid() and found["id"].count("-") == 1
    times = {name: float(found[f"{name}_ms"]) for name in ("queue", "ipam", "netlink", "nftables")}
    assert all(value > 0 for value in times.values()) and sum(times.values()) < float(found["ms"]) + times["queue"]


AS_USER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
conn.settimeout(5)
conn.connect(sys.argv[1])
try:
    conn.send(bytes.fromhex(sys.argv[3]))
    print(conn.recv(10000))
except OSError as e:
    print(type(e).__name__)
"""


@pytest.fixture
def reachable(node):
    """Yield a directory that other users can enter. They cannot enter tmp_path, because pytest closes its parent to
    them."""
    with tempfile.TemporaryDirectory(prefix="fcni-") as directory:
        os.chmod(directory, 0o711)
        yield directory


def test_a_user_without_permission_is_not_served(reachable):
    began = time.monotonic()
    with Server(reachable, "--allow-uid", "12345") as server:
        def as_user(uid):
            return subprocess.run(["python3", "-c", AS_USER, server.path, str(uid), packed(
                "bridge", {"CNI_COMMAND": "VERSION"}).hex()], capture_output=True, text=True).stdout

        assert as_user(54321).strip() in ("b''", "BrokenPipeError", "ConnectionResetError")
        assert server.lines("user_refused", "uid=54321") and not server.lines("command=VERSION")
        for _ in range(5):
            as_user(54321)
        # RateLimited writes one line in ten seconds, because one line for each connection could fill the disk
        assert len(server.lines("user_refused")) <= 1 + (time.monotonic() - began) // 10
        assert "supportedVersions" in as_user(12345)
        assert len(server.lines("user_refused")) == len(server.lines("uid=54321"))


def test_only_root_reaches_a_server_that_allows_no_other_user(node, reachable):
    with Server(reachable) as server:
        done = subprocess.run(["python3", "-c", AS_USER, server.path, "12345", "00"], capture_output=True, text=True)
        assert f"PermissionError: [Errno {errno.EACCES}]" in done.stderr and server.ok("VERSION", node.conf())


def test_a_plugin_unknown_to_the_server_goes_one_shot(node, pod, server):
    assert server.call("ADD", node.conf(), pod, plugin="not-ours").status == 2
    assert server.call("ADD", node.conf(), pod, env={"CNI_PATH": "plugins:/nowhere"}).status == 2
    assert server.call("", node.conf(), pod).status == 2


def test_version_is_answered_as_libcni_asks_for_it(server):
    """podman asks each plugin for its VERSION before an ADD, with CNI_PATH=dummy. Once, the server declined this
    request, which cost four starts of Python for each pod."""
    env = {"CNI_PATH": "dummy", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_CONTAINERID": ""}
    assert "supportedVersions" in server.ok("VERSION", {"cniVersion": "1.0.0"}, plugin="bridge", env=env)
