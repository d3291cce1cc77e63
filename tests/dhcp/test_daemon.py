"""The daemon as a process, with pods in namespaces and a server of the tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import conftest as shared
import pytest
from dhcp.process import RUN, Daemon, call, ok, wait_until
from dhcp.server import Network, Server, addresses, ip

from fastcni.testing import needs_root

pytestmark = needs_root
GO = f"{shared.PEER}/dhcp"
COMPARED = {"type": "dhcp"}     # for the test that each plugin is compared with Go's
FIRST = "10.77.1.0/16"


@pytest.fixture
def network():
    with Network() as network:
        yield network


@pytest.fixture
def server(network):
    with Server(network) as server:
        yield server


@pytest.fixture
def daemon(tmp_path):
    with Daemon(tmp_path) as daemon:
        yield daemon


def on_a_node(network):
    """The daemon's command in a namespace from which it reaches the server."""
    name = os.path.basename(network.pod())
    ip("-n", name, "addr", "add", "10.77.0.2/16", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    return ["ip", "netns", "exec", name, sys.executable, "-c", RUN]


def leases(daemon):
    return sorted(os.listdir(daemon.leases))


def test_a_pod_gets_a_lease_and_del_releases_it(network, server, daemon):
    pod, conf = network.pod(), daemon.conf()
    result = ok("ADD", conf, pod)
    assert result == {"cniVersion": "1.1.0", "ips": [{"address": FIRST, "gateway": "10.77.0.1"}],
                      "routes": [{"dst": "0.0.0.0/0", "gw": "10.77.0.1"}]}
    assert ok("ADD", conf, pod) == result
    ok("CHECK", conf | {"prevResult": result}, pod)
    assert len(leases(daemon)) == 1
    ok("DEL", conf, pod)
    (message,) = server.wait_for("release")
    assert message.ciaddr == bytes((10, 77, 1, 0)) and server.leases == {}
    assert leases(daemon) == []
    ok("DEL", conf, pod)


def test_the_address_leaves_the_link_before_the_release(network, server, daemon):
    """Otherwise the server could give it to another pod while this one still sends from it."""
    pod, conf = network.pod(), daemon.conf()
    ok("ADD", conf, pod)
    subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
    ok("DEL", conf, pod)
    server.wait_for("release")
    assert addresses(pod) == []


def test_check_compares_the_address_and_acquires_a_lost_lease(network, server, daemon):
    pod, conf = network.pod(), daemon.conf()
    result = ok("ADD", conf, pod)
    other = result | {"ips": [{"address": "10.77.1.9/16"}]}
    status, error, _ = call("CHECK", conf | {"prevResult": other}, pod)
    assert (status, error["code"]) == (1, 999) and FIRST in error["msg"] and "10.77.1.9/16" in error["msg"]
    ok("DEL", conf, pod)
    ok("CHECK", conf, pod)
    assert len(leases(daemon)) == 1


def test_another_namespace_of_the_same_container_keeps_the_address(network, server, daemon):
    """podman starts a container again under the same id, in a new namespace."""
    conf = daemon.conf()
    results = [ok("ADD", conf, network.pod()) for _ in range(2)]
    assert results[0] == results[1]
    assert server.wait_for("request", 2)[1].options[50] == bytes((10, 77, 1, 0))


def test_a_missing_link_or_namespace_is_an_error(network, daemon):
    status, error, _ = call("ADD", daemon.conf(), network.pod(), ifname="eth7")
    assert status == 1 and 'error calling DHCP.Allocate: error looking up "eth7": Link not found' in error["msg"]
    status, error, _ = call("ADD", daemon.conf(), "/nowhere")
    assert (status, error["code"]) == (1, 8)


def test_gc_releases_what_no_attachment_has(network, server, daemon):
    conf, pods = daemon.conf(), [network.pod() for _ in range(2)]
    for number, pod in enumerate(pods):
        ok("ADD", conf, pod, cid=f"c{number}")
    valid = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}], "fastcni/report": True}
    ok("GC", conf | {"name": "other", "cni.dev/valid-attachments": []})
    released = ok("GC", conf | valid)["released"]
    assert released == [{"plugin": "dhcp", "what": "address 10.77.1.0", "of": "c0 eth0"}]
    server.wait_for("release")
    assert len(leases(daemon)) == 1


def test_a_pod_whose_namespace_is_gone_is_released(network, server, tmp_path):
    """RELEASE cannot come from its link any more: it comes from the daemon's namespace, which reaches the server."""
    pod = network.pod()
    with Daemon(tmp_path, command=on_a_node(network)) as daemon:
        ok("ADD", daemon.conf(), pod)
        daemon.stop(signal.SIGKILL)
        network.delete(pod)
        daemon.start()
        server.wait_for("release")
        daemon.wait_for("lease_released")
        assert "sent_by=node" in daemon.log() and leases(daemon) == []


def test_without_a_daemon_status_says_50_add_11_and_del_succeeds(tmp_path):
    conf = Daemon(tmp_path).conf()
    text = f"error dialing DHCP daemon: dial unix {tmp_path}/dhcp.sock: connect: no such file or directory"
    status, error, _ = call("STATUS", conf)
    assert (status, error["code"], error["msg"]) == (1, 50, text)
    status, error, _ = call("ADD", conf, "/proc/self/ns/net", CNI_NETNS_OVERRIDE="1")
    assert (status, error["code"], error["msg"]) == (1, 11, text)
    for command in ("DEL", "GC"):
        status, document, stderr = call(command, conf | {"cni.dev/valid-attachments": []})
        assert (status, document) == (0, None) and text in stderr


def test_no_answer_of_a_server_is_code_11(network, tmp_path):
    with Daemon(tmp_path, "-timeout", "100ms", "-resendmax=200ms", "--resendtimeout", "500ms") as daemon:
        status, error, _ = call("ADD", daemon.conf(), network.pod())
        assert (status, error["code"], error["msg"]) == (1, 11, "error calling DHCP.Allocate: no more tries")
        assert ok("STATUS", daemon.conf()) is None


def test_a_plugin_that_leaves_ends_the_attempt(network, daemon, tmp_path):
    pod = network.pod()
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": pod, "CNI_IFNAME": "eth0", "CNI_PATH": "/x"}
    code = ("import os, sys\nfrom fastcni.handle import handle\nfrom fastcni.kit.call.mode import Mode\n"
            "handle('dhcp', os.environ, sys.stdin.buffer.read(), Mode())")
    with subprocess.Popen([Daemon(tmp_path).command[0], "-c", code], env={**os.environ, **env},
                          stdin=subprocess.PIPE) as plugin:
        plugin.stdin.write(json.dumps(daemon.conf()).encode())
        plugin.stdin.close()
        wait_until(lambda: sockets_of(pod))
        plugin.kill()
    daemon.wait_for("lease_abandoned")
    wait_until(lambda: sockets_of(pod) == "")


def sockets_of(pod):
    """The packet sockets in a pod's namespace."""
    return subprocess.run(["ip", "netns", "exec", os.path.basename(pod), "tail", "-n", "+2", "/proc/net/packet"],
                          check=True, capture_output=True, text=True).stdout


def test_a_bound_lease_has_no_socket_in_the_pod(network, server, daemon):
    pod = network.pod()
    ok("ADD", daemon.conf(), pod)
    wait_until(lambda: sockets_of(pod) == "")
    assert [link for link in map(os.readlink, open_files(daemon)) if "net:[" in link] == [own_namespace(daemon)]


def open_files(daemon):
    folder = f"/proc/{daemon.process.pid}/fd"
    return [f"{folder}/{name}" for name in os.listdir(folder)]


def own_namespace(daemon):
    return os.readlink(f"/proc/{daemon.process.pid}/ns/net")


# Life after a restart --------------------------------------------------------------------------------

def test_renewals_go_on_after_a_kill(network, tmp_path):
    """T1 is three seconds after the ADD, the daemon is killed before and started again."""
    pod = network.pod()
    with Server(network, seconds=6) as server, Daemon(tmp_path) as daemon:
        ok("ADD", daemon.conf(), pod)
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
        daemon.stop(signal.SIGKILL)
        daemon.start()
        renewal = server.wait_for("request", 2)[1]
        assert renewal.ciaddr == bytes((10, 77, 1, 0)) and 50 not in renewal.options
        daemon.wait_for("lease_renewed")
        assert ok("ADD", daemon.conf(), pod)["ips"][0]["address"] == FIRST
        assert [kind for kind, _ in server.heard].count("discover") == 1


def test_after_a_reboot_the_container_gets_its_address_again(network, server, tmp_path):
    with Daemon(tmp_path) as daemon:
        ok("ADD", daemon.conf(), network.pod())
        daemon.stop()
        reboot(daemon)
        daemon.start()
        assert "former=1" in daemon.log()
        assert ok("ADD", daemon.conf(), network.pod())["ips"][0]["address"] == FIRST
        assert [kind for kind, _ in server.heard].count("discover") == 1


def test_after_a_reboot_del_releases_the_lease(network, server, tmp_path):
    with Daemon(tmp_path, command=on_a_node(network)) as daemon:
        pod = network.pod()
        ok("ADD", daemon.conf(), pod)
        daemon.stop()
        reboot(daemon)
        network.delete(pod)
        daemon.start()
        ok("DEL", daemon.conf(), pod)
        server.wait_for("release")
        assert leases(daemon) == []


def reboot(daemon):
    """The leases on disk are those of another boot."""
    from fastcni.dhcp.lease_files import LeaseFiles

    files = LeaseFiles(daemon.leases, boot="an earlier one")
    for saved in list(files.read_all()):
        files.write(saved.owner, saved.lease, saved.ends)


def test_a_damaged_file_is_put_aside_and_hinders_nothing(network, server, tmp_path):
    with Daemon(tmp_path) as daemon:
        pod = network.pod()
        ok("ADD", daemon.conf(), pod)
        daemon.stop()
        (name,) = leases(daemon)
        with open(f"{daemon.leases}/{name}", "r+b") as file:
            file.seek(100)
            file.write(b"!")
        daemon.start()
        assert "event=lease_damaged" in daemon.log() and leases(daemon) == [name.replace(".lease", ".damaged")]
        ok("ADD", daemon.conf(), pod)


# Conflicts and refusals ------------------------------------------------------------------------------

def test_an_address_that_another_host_has_is_declined(network, server, daemon):
    subprocess.run(["ip", "-n", network.host, "addr", "add", "10.77.1.0/32", "dev", "lo"], check=True)
    assert ok("ADD", daemon.conf(), network.pod())["ips"][0]["address"] == "10.77.1.1/16"
    (message,) = server.wait_for("decline")
    assert message.options[50] == bytes((10, 77, 1, 0))


def test_a_lost_lease_leaves_the_link_and_the_next_is_put_on_it(network, tmp_path):
    pod = network.pod()
    with Server(network, seconds=2) as server, Daemon(tmp_path) as daemon:
        ok("ADD", daemon.conf(priority=7), pod)
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
        server.leases.clear()           # the server was set up anew: it answers the renewal with NAK
        daemon.wait_for("lease_lost")
        daemon.wait_for("lease_acquired", 2)
        wait_until(lambda: addresses(pod) == ["10.77.1.1/16"])
        routes = subprocess.run(["ip", "-n", os.path.basename(pod), "route"], capture_output=True, text=True).stdout
        assert "default via 10.77.0.1 dev eth0 metric 7" in routes


# The other implementation ----------------------------------------------------------------------------

CASES = {
    "usual": ({}, {}),
    "static routes": ({"o33": bytes((192, 168, 5, 0, 10, 77, 0, 9))}, {"request": [{"option": "33"}]}),
    "classless routes": ({"o121": bytes((24, 192, 168, 5, 10, 77, 0, 9, 0, 10, 77, 0, 1))}, {}),
    "no router": ({"o3": b""}, {"provide": [{"option": "host-name", "value": "web"}]}),
}


@pytest.fixture
def go_daemon(tmp_path_factory):
    if not os.path.exists(GO):
        pytest.skip(f"needs {GO} (Debian: containernetworking-plugins)")
    with Daemon(tmp_path_factory.mktemp("go"), command=(GO, "daemon"), own=False) as daemon:
        yield daemon


@pytest.mark.parametrize("case", CASES)
def test_each_plugin_with_each_daemon_gives_the_same_result(case, network, daemon, go_daemon):
    options, keys = CASES[case]
    results, pod = {}, network.pod()
    with Server(network, **options) as server:
        for plugin in (None, GO):
            for one in (daemon, go_daemon):
                server.next = 0x0A4D0100
                server.leases.clear()
                conf = one.conf("1.0.0", **keys)
                found = ok("ADD", conf, pod, plugin=plugin)
                ok("CHECK", conf | {"prevResult": found}, pod, plugin=plugin)
                ok("DEL", conf, pod, plugin=plugin)
                found.pop("dns", None)          # Go 1.1.1 prints an empty one
                results[plugin, one is daemon] = found
    assert all(found == results[None, True] for found in results.values()), results


def test_the_plugin_tells_the_references_daemon_from_none(go_daemon):
    assert ok("STATUS", go_daemon.conf()) is None
    status, _, stderr = call("GC", go_daemon.conf() | {"cni.dev/valid-attachments": []})
    assert status == 0 and "is not fastcni's, and has no GC" in stderr


def test_a_second_daemon_at_the_socket_is_refused(daemon, go_daemon):
    for path in (daemon.path, go_daemon.path):
        done = subprocess.run([*daemon.command[:3], "-socketpath", path, "-statedir", f"{daemon.folder}/x"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and f"listens on {path}" in done.stderr


# How the daemon is run -------------------------------------------------------------------------------

def test_its_socket_may_come_from_systemd(tmp_path, network, server):
    path = f"{tmp_path}/handed.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        code = ("import os, sys; os.dup2(int(sys.argv.pop(1)), 3); os.environ['LISTEN_PID'] = str(os.getpid()); "
                "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])")
        command = Daemon(tmp_path).command
        process = subprocess.Popen([command[0], "-c", code, str(sock.fileno()), command[2], "-statedir",
                                    f"{tmp_path}/leases"], pass_fds=[sock.fileno()],
                                   env={**os.environ, "LISTEN_FDS": "1"})
    try:
        conf = Daemon(tmp_path, socket="handed.sock").conf()
        assert ok("ADD", conf, network.pod())["ips"][0]["address"] == FIRST
    finally:
        process.terminate()
        assert process.wait(30) == 0
    assert os.path.exists(path)                 # it is systemd's


def test_the_pidfile_and_the_socket_are_removed_at_the_end(tmp_path):
    pidfile = f"{tmp_path}/pid"
    with Daemon(tmp_path, "-pidfile", pidfile) as daemon:
        with open(pidfile, encoding="ascii") as file:
            assert file.read() == str(daemon.process.pid)
        assert os.stat(daemon.path).st_mode & 0o777 == 0o600
        assert daemon.stop() == 0
        assert not os.path.exists(pidfile) and not os.path.exists(daemon.path)


def test_hostprefix_is_before_the_socket_the_namespaces_and_the_leases(tmp_path, network, server):
    (tmp_path / "run").symlink_to("/run")
    daemon = Daemon(tmp_path)
    daemon.command = [*daemon.command[:3], "-hostprefix", str(tmp_path), "-socketpath", "/dhcp.sock", "-statedir",
                      "/leases"]
    with daemon:
        assert ok("ADD", daemon.conf(), network.pod())["ips"][0]["address"] == FIRST
        assert len(leases(daemon)) == 1


def rss(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        values = dict(line.split(":", 1) for line in file)
    return int(values["VmRSS"].split()[0]) / 1024, int(values["Threads"])


def test_a_thousand_leases_take_less_than_20_mb_and_one_thread(network, server, tmp_path):
    """The attachments are of one namespace: a lease is one of an attachment, whatever link it uses."""
    pod = network.pod()
    with Daemon(tmp_path) as daemon:
        ok("ADD", daemon.conf(), pod)
        before, _ = rss(daemon.process.pid)
        failed = []

        def add(numbers):
            for number in numbers:
                status, document, _ = call("ADD", daemon.conf(), pod, cid=f"c{number}")
                if status:
                    failed.append(document)

        threads = [threading.Thread(target=add, args=(range(n, 1000, 50),)) for n in range(50)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - started
        after, _ = rss(daemon.process.pid)
        assert failed == [] and len(leases(daemon)) == 1000
        print(f"1,000 leases in {took:.1f} s: {before:.1f} MB before, {after:.1f} MB after")
        assert after - before < 20
        wait_until(lambda: rss(daemon.process.pid)[1] == 1)     # sockets are closed by others, which end
        assert len(open_files(daemon)) < 20
