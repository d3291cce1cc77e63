"""Plugins in a user namespace with its own network namespace, as `unshare -Urn` and LXC make them."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs("root")
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
FIRST_UID = 100_000
PREV = {"cniVersion": "1.1.0", "ips": [{"address": "10.22.0.5/24"}]}
PORTS = {"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]}}
# The process first imports all modules, because in its user namespace it may not read root's files.
SCRIPT = f"""if 1:
    import ctypes, json, os, pkgutil, sys
    import fastcni
    for found in pkgutil.walk_packages(fastcni.__path__, "fastcni."):
        if found.name.startswith(("fastcni.kernel", "fastcni.kit", "fastcni.plugins", "fastcni.handle")):
            __import__(found.name)
    from fastcni.handle import handle
    from fastcni.runtime.mode import InProcessMode
    if ctypes.CDLL(None).unshare({CLONE_NEWUSER | CLONE_NEWNET}):
        sys.exit("no user namespaces")
    print("ready", flush=True)
    sys.stdin.readline()                    # the parent has written the maps of ids
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)                   # root there is another user than the machine's root
    try:
        open("/proc/self/net/ip_tables_names").close()
        sys.exit("the file can be read: nothing is tested")
    except (PermissionError, FileNotFoundError):
        pass
    env = dict(os.environ, CNI_CONTAINERID="x", CNI_IFNAME="eth0", CNI_NETNS="/nowhere", CNI_PATH="/nowhere")
    for plugin, command, conf in json.loads(sys.stdin.readline()):
        reply = handle(plugin, dict(env, CNI_COMMAND=command), json.dumps(conf).encode(), InProcessMode())
        print(json.dumps([plugin, command, reply.status, reply.stdout.decode(), reply.stderr.decode()]), flush=True)
"""


def run_inside(requests):
    """Make requests in such namespaces. Return [[plugin, command, status, stdout, stderr]]."""
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if child.stdout.readline() != "ready\n":
            pytest.skip("this kernel makes no user namespaces")
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child.pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {FIRST_UID} 65536")
        out, _ = child.communicate(f"\n{json.dumps(requests)}\n", timeout=60)
        return [json.loads(line) for line in out.splitlines()]
    finally:
        child.kill()
        child.wait()


def test_plugins_with_nftables_work_where_the_table_names_of_iptables_are_root_s():
    """Only root of the initial user namespace may read /proc/self/net/ip_tables_names. Once, these requests failed."""
    common = {"cniVersion": "1.1.0", "name": "net-a", "prevResult": PREV}
    firewall = {**common, "type": "firewall"}
    portmap = {**common, "type": "portmap", **PORTS}
    requests = [(conf["type"], command, conf) for conf in (firewall, portmap)
                for command in ("STATUS", "ADD", "CHECK", "DEL", "DEL")]
    answers = run_inside(requests)
    assert [answer[:2] for answer in answers] == [[plugin, command] for plugin, command, _ in requests]
    assert [answer for answer in answers if answer[2] or answer[4]] == []
