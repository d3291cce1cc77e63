"""The dhcp daemon over time: killed, restarted, after a reboot, with lost leases, and with 1,000 leases."""

import os
import signal
import socket
import subprocess
import threading
import time

from unit.dhcp.fixtures import FIRST, leases, on_a_node, own_files, reboot
from unit.dhcp.process import Daemon, call, ok
from unit.dhcp.server import Server, addresses

from fastcni.testing.witnesses import eventually


def test_a_pod_whose_namespace_is_gone_is_released(network, server, tmp_path):
    """The pod's link can no longer send RELEASE. The daemon sends it from its own namespace, which reaches the
    server."""
    pod = network.pod()
    with Daemon(tmp_path, command=on_a_node(network)) as daemon:
        ok("ADD", daemon.conf(), pod)
        daemon.stop(signal.SIGKILL)
        network.delete(pod)
        daemon.start()
        server.wait_for("release")
        daemon.wait_for("lease_released")
        assert "sent_by=node" in daemon.log() and leases(daemon) == []


# Life after a restart --------------------------------------------------------------------------------

def test_renewals_go_on_after_a_kill(network, tmp_path):
    """T1 is three seconds after the ADD. The daemon is killed before T1 and started again."""
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
        server.leases.clear()           # the server answers the renewal with NAK
        daemon.wait_for("lease_lost")
        daemon.wait_for("lease_acquired", 2)
        assert eventually(lambda: addresses(pod) == ["10.77.1.1/16"])
        routes = subprocess.run(["ip", "-n", os.path.basename(pod), "route"], capture_output=True, text=True).stdout
        assert "default via 10.77.0.1 dev eth0 metric 7" in routes


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
    assert os.path.exists(path)                 # systemd owns the socket file, so the daemon keeps it


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
    """All 1,000 attachments use one namespace. Each attachment has its own lease."""
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
        assert eventually(lambda: rss(daemon.process.pid)[1] == 1)     # closer.py's threads have ended
        assert len(own_files(daemon)) < 20
