"""The dhcp daemon as a process. Pods are namespaces, and the tests' own server answers."""

import json
import os
import signal
import subprocess
import sys

import conftest as shared
import pytest
from click.testing import CliRunner
from unit.dhcp.fixtures import FIRST, leases, own_files
from unit.dhcp.process import RUN, Daemon, call, ok
from unit.dhcp.server import Server, addresses

from fastcni.cli.commands import cli
from fastcni.daemon.stop_signals import UNUSED_SIGNALS
from fastcni.testing.witnesses import eventually

pytestmark = pytest.mark.needs("root")
GO = f"{shared.PEER}/dhcp"
COMPARED = {"type": "dhcp"}     # the network of the test that compares each plugin with the reference plugin


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
    """Otherwise the server could give the address to another pod while this pod still sends from it."""
    pod, conf = network.pod(), daemon.conf()
    ok("ADD", conf, pod)
    subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
    ok("DEL", conf, pod)
    server.wait_for("release")
    assert addresses(pod) == []


def test_a_nak_to_a_renewal_by_unicast_is_received(network, daemon):
    """A server broadcasts the NAK (RFC 2131, 4.3.2). Once, the socket at the pod's address did not receive it, and the
    pod used an address that it no longer had until T2."""
    pod = network.pod()
    with Server(network, seconds=16, o58=(1).to_bytes(4, "big")) as server:
        ok("ADD", daemon.conf(), pod)
        subprocess.run(["ip", "-n", os.path.basename(pod), "addr", "add", FIRST, "dev", "eth0"], check=True)
        server.refuses = True
        daemon.wait_for("lease_lost")
        assert "the server refused to renew it" in daemon.log()
        assert eventually(lambda: addresses(pod) == [])


@pytest.mark.parametrize("words, way", [
    (["ip link set lo up", "ip addr add {} dev eth0"], ("10.77.1.0", "10.77.0.1")),
    ([], ("0.0.0.0", "255.255.255.255")),
    (["ip link set lo up"], ("0.0.0.0", "255.255.255.255")),
    (["ip link set lo up", "sysctl -qw net.ipv4.ip_nonlocal_bind=1"], ("0.0.0.0", "255.255.255.255")),
    (["ip link set lo up", "ip addr add {} dev lo"], ("0.0.0.0", "255.255.255.255")),
    (["ip link set lo up", "ip addr add {} dev eth0", "nft add table ip t",
      "nft add chain ip t o {{ type filter hook output priority 0 ; policy drop ; }}"],
     ("10.77.1.0", "255.255.255.255"))], ids=["on the link", "no address", "lo", "nonlocal", "on lo", "refused"])
def test_a_renewal_takes_the_way_on_which_the_server_can_answer(network, daemon, words, way):
    """In a namespace without addresses, the kernel lets a socket bind to any address. Once, such a renewal left from
    0.0.0.0, which no DHCP server accepts. If the link lacks the lease's address, no host answers the server's ARP
    request."""
    pod = network.pod()
    with Server(network, seconds=16, o58=(1).to_bytes(4, "big")) as server:
        ok("ADD", daemon.conf(), pod)
        for each in words:
            subprocess.run(["ip", "netns", "exec", os.path.basename(pod), *each.format(FIRST).split()], check=True)
        count = len(server.ways)
        daemon.wait_for("lease_renewed", 2)
        assert set(server.ways[count:]) == {way}


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
    """podman starts a container again with the same ID and a new namespace."""
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
        assert (status, error) == (1, {"code": 11, "msg": "error calling DHCP.Allocate: no more tries"})
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
        assert eventually(lambda: sockets_of(pod))
        plugin.kill()
    daemon.wait_for("lease_abandoned")
    assert eventually(lambda: sockets_of(pod) == "")


def test_a_terminal_that_closes_ends_the_daemon_like_sigterm(tmp_path):
    """Once, SIGHUP killed the daemon, and the socket's file remained."""
    with Daemon(tmp_path, command=["env", "--default-signal=HUP", sys.executable, "-c", RUN]) as daemon:
        assert daemon.stop(signal.SIGHUP) == 0
        assert "event=dhcp_stopped" in daemon.log() and not os.path.exists(daemon.path)


@pytest.mark.parametrize("number", UNUSED_SIGNALS)
def test_a_signal_without_a_use_does_not_end_the_daemon(tmp_path, number):
    """Once, SIGUSR1, by which other daemons print statistics, killed the daemon."""
    with Daemon(tmp_path) as daemon:
        daemon.process.send_signal(number)
        assert daemon.stop() == 0 and "event=dhcp_stopped" in daemon.log()


def test_a_lease_stays_while_the_daemon_cannot_see_the_namespace(network, server, tmp_path):
    """Once, a daemon with a private mount of /run/netns released the leases of all pods that were added after this
    mount."""
    pod = network.pod()
    with Daemon(tmp_path) as daemon:
        ok("ADD", daemon.conf(), pod)
        daemon.stop()
        usual = daemon.command
        daemon.command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'umount {pod} && exec "$@"',
                          "sh", *usual]
        daemon.start()
        assert "resumed=1 gone=0" in daemon.log() and len(leases(daemon)) == 1
        assert "the dhcp daemon finds no namespace at" in call("ADD", daemon.conf(), pod, cid="c2")[1]["msg"]
        daemon.stop()
        daemon.command = usual
        network.delete(pod)
        daemon.start()
        daemon.wait_for("pod_gone")
        assert "resumed=0 gone=1" in daemon.log() and leases(daemon) == []


def sockets_of(pod):
    """Return the packet sockets in a pod's namespace."""
    return subprocess.run(["ip", "netns", "exec", os.path.basename(pod), "tail", "-n", "+2", "/proc/net/packet"],
                          check=True, capture_output=True, text=True).stdout


def test_a_bound_lease_has_no_socket_in_the_pod(network, server, daemon):
    pod = network.pod()
    ok("ADD", daemon.conf(), pod)
    assert eventually(lambda: sockets_of(pod) == "")
    assert [link for link in map(os.readlink, own_files(daemon)) if "net:[" in link] == [own_namespace(daemon)]


def own_namespace(daemon):
    return os.readlink(f"/proc/{daemon.process.pid}/ns/net")


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
                found.pop("dns", None)          # version 1.1.1 of the reference plugins prints an empty key
                results[plugin, one is daemon] = found
    assert all(found == results[None, True] for found in results.values()), results


def test_the_plugin_tells_the_references_daemon_from_none(go_daemon):
    assert ok("STATUS", go_daemon.conf()) is None
    status, _, stderr = call("GC", go_daemon.conf() | {"cni.dev/valid-attachments": []})
    assert status == 0 and "is not fastcni's, and has no GC" in stderr


def test_a_second_daemon_at_the_socket_is_refused(daemon, go_daemon):
    for path in (daemon.path, go_daemon.path):
        done = subprocess.run([*daemon.command[:3], "-socketpath", path, "-statedir", f"{daemon.directory}/x"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and f"listens on {path}" in done.stderr


def test_a_server_with_the_daemon_does_not_end_when_idle():
    answer = CliRunner().invoke(cli, ["serve", "--dhcp", "--idle-exit", "5"])
    assert answer.exit_code == 2 and "leave --idle-exit out" in answer.output
