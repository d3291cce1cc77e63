"""Measure address allocation: the index alone, and host-local in this process, with few and many allocated addresses.

Prints figures, asserts no time.

    .venv/bin/python -m pytest --benchmark-only --benchmark-group-by=func benchmarks/bench_ipam.py
"""

import os

import pytest

from fastcni._ipam_bitmap import Index
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.call.undo import Undo
from fastcni.plugins import host_local

HELD = (0, 1000, 60000)
FIRST, GATEWAY, LAST = b"\x0a\x16\x00\x01", b"\x0a\x16\x00\x01", b"\x0a\x16\xff\xfe"
OWNER = b"f" * 64 + b"\r\neth0"


def owner(n):
    return b"%064x\r\neth0" % n


@pytest.fixture(scope="module", params=HELD, ids="{}_held".format)
def network(request, scaled, tmp_path_factory):
    """Return a data directory in which the network "net" has allocated the first addresses of a /16. The parameter is
    their number."""
    root = tmp_path_factory.mktemp("ipam")
    (root / "net").mkdir()
    for n in range(scaled(request.param)):
        (root / "net" / f"10.22.{(n + 2) >> 8}.{(n + 2) & 255}").write_bytes(owner(n))
    return root


def call(command, root, **ipam):
    conf = {"cniVersion": "1.0.0", "name": "net", "type": "bridge",
            "ipam": {"type": "host-local", "subnet": "10.22.0.0/16", "dataDir": str(root),
                     "routes": [{"dst": "0.0.0.0/0"}]} | ipam}
    req = Request(Mode(), plugin="host-local", command=command, container_id="f" * 64, ifname="eth0", conf=conf,
                  name="net", version="1.0.0")
    record = host_local.read(req)
    if command == "DEL":
        host_local.delete(req, record)
        return
    with Undo() as undo:
        host_local.add(req, record, undo)


@pytest.mark.parametrize("held", HELD, ids="{}_held".format)
def test_leaf_take_and_free(benchmark, scaled, tmp_path, held):
    fd = os.open(tmp_path, os.O_RDONLY)
    index = Index(fd, b"b" * 36)
    for n in range(scaled(held)):
        index.hold((0x0A160002 + n).to_bytes(4, "big"), owner(n))

    def take_and_free():
        address = index.next_free(FIRST, LAST, GATEWAY)
        index.hold(address, OWNER)
        index.drop(address, OWNER)

    benchmark(take_and_free)
    index.close()
    os.close(fd)


def test_host_local_add(benchmark, network):
    call("ADD", network)
    benchmark.pedantic(call, ("ADD", network), setup=lambda: call("DEL", network), rounds=1000)
    call("DEL", network)


def test_host_local_del(benchmark, network):
    benchmark.pedantic(call, ("DEL", network), setup=lambda: call("ADD", network), rounds=1000)


def test_host_local_add_with_fsync(benchmark, network):
    call("ADD", network)
    benchmark.pedantic(lambda: call("ADD", network, fsync=True), setup=lambda: call("DEL", network),
                       rounds=50)
    call("DEL", network)


def test_host_local_add_after_a_change_by_others(benchmark, network):
    """After another program has made or removed an address file, host-local reads every file. The Go plugin always
    does."""
    def change():
        call("DEL", network)
        (network / "net" / "note").touch()
        (network / "net" / "note").unlink()

    call("ADD", network)
    benchmark.pedantic(call, ("ADD", network), setup=change, rounds=5)
    call("DEL", network)
