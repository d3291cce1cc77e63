"""A user who may call the server can send any bytes. The server keeps running, and keeps nothing of them."""

import array
import json
import os
import random
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from unit.server.client import packed

from fastcni.testing.witnesses import eventually

NET = "/proc/self/ns/net"
OVERLAP = 8         # descriptors: when requests overlap, the server opens some netlink sockets for each and keeps them
LIMITED = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
print(used.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def throw(server, data, paths=(), *, twice=False, stay=None):
    """Connect and send these bytes. Then close the connection, or append it to the list `stay`."""
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.settimeout(5)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    fds = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in paths]
    try:
        conn.connect(str(server.path))
        for _ in range(1 + twice):
            conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
    except (BrokenPipeError, ConnectionResetError):
        pass                            # the server closed the connection before all was sent
    finally:
        for fd in fds:
            os.close(fd)
    if stay is None:
        conn.close()
    else:
        stay.append(conn)


def mutated(rng, data):
    """Return the data with some bytes changed, deleted or inserted."""
    data = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(3)
        if what == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif what == 1:
            del data[at:at + rng.randrange(20)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(20))
    return bytes(data)


def works(server, node, pod):
    """Return True after VERSION, ADD and DEL of a pod have succeeded. Otherwise an assertion fails."""
    server.ok("VERSION", node.conf())
    server.ok("ADD", node.conf(isGateway=True), pod)
    server.ok("DEL", node.conf(isGateway=True), pod)
    return True


def test_no_message_harms_the_server(node, pod, server):
    rng, conf = random.Random(3), b'{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {}}'
    works(server, node, pod)
    before = server.descriptors
    paths = [NET, "/dev/null", "/dev/zero", "/", "/proc/self/status", "/proc/self/ns/mnt"]
    for n in range(600):
        env = {"CNI_COMMAND": rng.choice(["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "NONSENSE", ""]),
               "CNI_CONTAINERID": rng.choice(["c", "", "../x", "a\nb", "x" * 3000]),
               "CNI_PATH": rng.choice(["/x", "x", ""]),
               "CNI_NETNS": rng.choice(["", "/run/netns/none", "/dev/null", f"/run/netns/{pod}"]),
               "CNI_IFNAME": rng.choice(["eth0", "", "lo", "a/b", "i" * 40])}
        chosen = [rng.choice(paths) for _ in range(rng.randrange(4))]
        data = packed(rng.choice(["bridge", "ptp", "loopback", "host-local", "", "../bridge"]), env, conf,
                      rng.randrange(16) if n % 3 else len(chosen) and (1 << len(chosen)) - 1)
        throw(server, mutated(rng, data) if n % 2 else data, chosen, twice=n % 7 == 0)
    for size in (0, 1, 15, 16, 17, 300_000):
        throw(server, rng.randbytes(size), [NET])
    assert works(server, node, pod) and eventually(lambda: server.descriptors <= before + OVERLAP)
    assert "level=error" not in server.log_text() and "fault" not in server.log_text()


def test_a_caller_that_never_sends_never_reads_or_sends_late_delays_no_other(node, pod, server):
    works(server, node, pod)
    before, silent = server.descriptors, []
    for _ in range(1100):               # more connections than the server keeps
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        conn.connect(str(server.path))
        silent.append(conn)
    data = packed("bridge", {"CNI_COMMAND": "VERSION", "CNI_PATH": "/x"})
    for _ in range(50):
        throw(server, data, [], stay=silent)         # this caller does not read its answer
    started = time.monotonic()
    assert works(server, node, pod) and time.monotonic() - started < 5
    late = silent[1099]
    late.send(data)
    late.settimeout(5)
    assert late.recv(1000)[8:12] == bytes(4)            # the request that comes late is answered, too
    for conn in silent:
        conn.close()
    assert works(server, node, pod) and eventually(lambda: server.descriptors <= before + OVERLAP)


def test_many_callers_that_come_and_go_at_once_cost_no_thread(node, pod, local):
    """Once, a worker ended with a ValueError if another worker had already closed the connection."""
    server = local()
    works(server, node, pod)
    workers, good = server.queue.min_threads, packed("bridge", {"CNI_COMMAND": "VERSION"})

    def knock(n):
        for at in range(150):
            throw(server, good if at % 3 else b"", [NET] if at % 2 else [])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(knock, range(6)))
    assert works(server, node, pod)
    assert server.workers >= workers and not server.crashed
    assert "Traceback" not in server.log_text()


def attachments(count):
    return {"cni.dev/valid-attachments": [{"containerID": f"c{n}", "ifname": "eth0"} for n in range(count)]}


def test_a_large_configuration_goes_one_shot_and_is_served_there(node, pod, server, plugins):
    """Once, 30 MB of `[],` became 1.8 GB of Python objects in the server, and all its callers waited for a minute."""
    assert server.ok("GC", node.conf(**attachments(2000))) is None
    env = {"CNI_COMMAND": "GC", "CNI_PATH": plugins, "FASTCNI_SOCKET": str(server.path), "PATH": os.environ["PATH"]}

    def run(stdin):
        """Run GC with the plugin file. Return its exit status, its document and its maximum resident memory in
        bytes."""
        limited = f"exec python3 -c '{LIMITED}' {plugins}/bridge"
        done = subprocess.run(["sh", "-c", limited], input=stdin, env=env, capture_output=True, timeout=120)
        return done.returncode, json.loads(done.stdout or b"{}"), int(done.stderr.split()[-1]) << 10

    assert eventually(lambda: server.lines("command=GC"))
    before = server.resident
    everything = json.dumps(node.conf(**attachments(200_000))).encode()
    status, _, memory = run(everything)
    assert status == 0 and memory < 400 << 20
    for huge in (b'{"x": [' + b"[]," * 10_000_000 + b"1]}", b'{"x": ' + b"[" * 10_000_000):
        status, error, memory = run(huge)
        assert (status, error["code"]) == (1, 6) and memory < 400 << 20
    assert len(server.lines("command=GC")) == 1 and server.resident < before + (8 << 20)
    assert works(server, node, pod)


def test_a_configuration_of_the_greatest_depth_or_size_is_read_or_refused(node, pod, server):
    head = b'{"cniVersion": "1.0.0", "name": "net-a", "type": "bridge", "x": '
    before = server.resident
    for _ in range(20):
        assert server.refused("STATUS", head + b"[" * 120_000, plugin="bridge")["code"] == 6
        assert server.refused("STATUS", head + b"[" * 60_000 + b"]" * 60_000 + b"}", plugin="bridge")["code"] == 6
        server.call("STATUS", head + b"[" + b"[]," * 40_000 + b"1]}", plugin="bridge")
    assert server.resident < before + (32 << 20) and works(server, node, pod)
