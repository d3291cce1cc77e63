"""Build the extension modules with ASan and UBSan, and give them damaged input of the kernel, of callers and of the
disk.

The campaign changes real netlink replies, requests to the server and index files at random, and gives them to every
reader. A memory error or undefined behaviour ends the child process that reads, with the sanitizer's report. Python
allocates by malloc(), so that the sanitizer knows the bounds of each object."""

import marshal
import os
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from faults.world import World

import fastcni

LEAVES = sorted(path.stem for path in Path(fastcni.__file__).parent.glob("*.pyx"))
FLAGS = "-shared -fPIC -O1 -g -w -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all".split()
SLICE = 20.0                    # seconds for one child


def campaign(row, _options):
    with World() as world:
        package = build(world.directory / "sanitized")
        (world.directory / "datagrams").write_bytes(marshal.dumps(captured(world)))
        row.until = max(row.until, time.monotonic() + 5)        # at least 5 s for the inputs after the build
        number = 0
        while row.running:
            number += 1
            seconds = min(SLICE, row.until - time.monotonic())
            done = subprocess.run([sys.executable, "-m", "faults.mutations", str(seconds), f"{row.seed}-{number}",
                                   str(world.directory)], cwd=package, env=environment(package), capture_output=True,
                                  text=True)          # `python -m` imports from this directory first
            row.attempt(int(done.stdout or 0))
            if done.returncode:
                row.failed(f"seed {row.seed}-{number}: status {done.returncode}: {done.stderr[-3000:]}")
        row.note("ASan and UBSan")


def build(directory):
    """Copy the package to `directory`, and build its extension modules with the sanitizers."""
    source = Path(fastcni.__file__).parent
    shutil.copytree(source, directory / "fastcni", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    building = [subprocess.Popen(["gcc", *FLAGS, f"-I{sysconfig.get_paths()['include']}", "-o",
                                  directory / "fastcni" / f"{leaf}{suffix}", source / f"{leaf}.c"]) for leaf in LEAVES]
    statuses = [process.wait() for process in building]
    if any(statuses):
        raise RuntimeError("gcc could not build the extension modules; `make setup` writes their .c files")
    return directory


def environment(package):
    libraries = [subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
                 for name in ("libasan.so", "libubsan.so")]
    return {**os.environ, "LD_PRELOAD": " ".join(libraries), "PYTHONMALLOC": "malloc",
            "PYTHONPATH": f"{package}:{Path(__file__).parents[1]}",
            "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=98"}


def captured(world):
    """Return netlink datagrams: the replies to dumps on a node with a bridge, a pod, masquerade and a port mapping."""
    node, pod, found = world.node, world.pod(), []
    added = node.add(node.conf("10.22.0.0/24", "fd00:22::/64", isGateway=True, ipMasq=True, macspoofchk=True), pod)
    node.add({"cniVersion": "1.1.0", "name": "net-a", "type": "portmap", "prevResult": added, "runtimeConfig": {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}, pod)
    requests = [(0, kind, bytes(16)) for kind in (18, 22, 26, 30)]          # links, addresses, routes, neighbours
    requests += [(12, 0x0A00 | kind, bytes(4)) for kind in (1, 4, 7, 10)]   # tables, chains, rules, sets
    for table in ("inet", "bridge"):
        family = {"inet": 1, "bridge": 7}[table]
        for name in ("masq4", "masq6", "guarded", "allowed", "hostports"):
            attributes = b"".join(struct.pack("=HH", 5 + len(text), kind) + text + bytes(1 + -(len(text) + 1) % 4)
                                  for kind, text in ((1, b"fastcni"), (2, name.encode())))
            requests.append((12, 0x0A0D, bytes([family, 0, 0, 0]) + attributes))
    for protocol, kind, body in requests:
        found += answers(protocol, kind, body)
    return found


def answers(protocol, kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, 0x301, 1, 0) + body)
        found = []
        try:
            while True:             # each read makes the kernel write the next part of the dump
                found.append(sock.recv(1 << 16, socket.MSG_DONTWAIT)[:4096])
        except BlockingIOError:
            return found
