"""Write the tar.gz of `fastcni doctor --bundle`: the data for a bug report, without secrets.

The bundle replaces the values of keys such as token, password, secret and key in configurations. The bundle has no
result caches, no environments of processes and no rules of other programs.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastcni.kernel import process
from fastcni.kit.firewall.iptables import USUAL_PATH
from fastcni.node.attachments import documents
from fastcni.node.attachments.iptables import SHARED, installed
from fastcni.node.checks.conf import own_files
from fastcni.node.checks.doctor import Diagnosis
from fastcni.node.checks.findings import Node
from fastcni.runtime import discover
from fastcni.server.records import secrets
from fastcni.spec import json
from fastcni.spec.errors import CniError

TABLES = (("inet", "fastcni"), ("bridge", "fastcni"))
SYSCTLS = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.ipv4.conf.all.rp_filter",
           "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables",
           "net.ipv4.neigh.default.gc_thresh3", "net.ipv6.neigh.default.gc_thresh3",
           "net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_max", "kernel.osrelease")
TIMEOUT_S = 20.0


def write(path: str, node: Node, found: Diagnosis) -> list[str]:
    """Write the bundle with mode 0600, unless the file exists already. Return the names of the files in the bundle.
    Raises OSError."""
    parts = list(contents(node, found))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as out:
        for name, data in parts:
            info = tarfile.TarInfo(f"fastcni-doctor/{name}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
            out.addfile(info, io.BytesIO(data))
    return [name for name, _ in parts]


def contents(node: Node, found: Diagnosis) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of each file in the bundle."""
    yield "doctor.json", encoded({"facts": dict(found.facts), "findings": [asdict(it) for it in found.findings],
                                  "unseen": list(found.unseen)})
    yield "attachments.json", encoded({
        "attachments": [documents.attachment(it) for it in node.inventory.attachments],
        "unowned": [documents.unowned(it) for it in node.inventory.unowned]})
    yield "sysctls.txt", "".join(f"{name} = {node.sysctl(name)}\n" for name in SYSCTLS).encode()
    yield "plugins.json", encoded(own_files(node))
    yield "links.json", encoded([
        {"name": it.name, "index": it.index, "kind": it.kind, "flags": it.flags, "mtu": it.mtu, "master": it.master,
         "peer": it.peer} for it in node.links])
    for family, table in TABLES:
        yield f"nft-{family}-{table}.txt", output(node, "nft", "list", "table", family, table)
    for program, lines in node.seen.facts.saved.items():
        yield f"{program}.txt", "\n".join(own_lines(lines)).encode() + b"\n"
    for file in node.seen.files:
        yield f"net.d/{os.path.basename(file.path)}", configuration(file.path)


def encoded(document: Any) -> bytes:
    return json.write(document, indent=2) + b"\n"


def output(node: Node, program: str, *arguments: str) -> bytes:
    """Return the output of a program, or a text that says why the program could not be run."""
    paths = installed([program], node.places.path)
    if not paths:
        return f"{program} is not installed\n".encode()
    try:
        done = process.run(paths[0], {"PATH": USUAL_PATH}, b"", (program, *arguments), timeout=TIMEOUT_S)
    except OSError as e:
        return f"{program}: {e}\n".encode()
    return done.stdout or done.stderr


def own_lines(lines: list[str]) -> Iterator[str]:
    """Yield the chains and rules of CNI plugins, and the names of tables, without other programs' rules."""
    for line in lines:
        if line.startswith("*") or re.search(r"\bCNI-[A-Z0-9a-f]", line) or any(
                line.startswith(f":{chain} ") for chain in SHARED):
            yield line


def configuration(path: str) -> bytes:
    """Return a configuration file without secrets. If the file is not a JSON object, return only why: the secrets in
    such a file cannot be found."""
    try:
        values = json.read(discover.read_conf(path))
    except (CniError, ValueError) as e:
        return f"cannot be read, so it is left out: {e}\n".encode()
    return encoded(secrets.hide(values))
