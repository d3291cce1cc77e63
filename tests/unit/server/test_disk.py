"""A server keeps running when its disk is full, when its index is damaged, or when a pipe is in the place of a file."""

import os
import subprocess
from errno import ENOSPC

import pytest


@pytest.fixture
def small(tmp_path):
    """Yield the directory of a mounted file system of 256 KB, for the address files."""
    directory = tmp_path / "small"
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)], capture_output=True,
                          text=True)
    if done.returncode:
        pytest.skip(f"no mount here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory):
    with open(directory / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                continue
        except OSError as e:
            assert e.errno == ENOSPC


def with_addresses_in(directory, conf):
    return {**conf, "ipam": {**conf["ipam"], "dataDir": str(directory)}}


def test_a_sparse_index_on_a_full_disk_ends_no_server(start, node, pod, small):
    """Once, a backup restored the index with holes. SIGBUS ended the server, also after each restart."""
    server, conf = start(), with_addresses_in(small, node.conf())
    result = server.ok("ADD", conf, pod)
    index = small / conf["name"] / ".fastcni.index"
    size = index.stat().st_size
    index.unlink()
    fill(small)
    with open(index, "wb") as file:
        file.truncate(size)
    answer = server.call("CHECK", {**conf, "prevResult": result}, pod)
    assert answer.status == 0 and b".fastcni.index: No space left on device; working without it" in answer.stderr
    for command in ("STATUS", "DEL", "DEL"):
        server.ok(command, conf, pod)
    assert server.process.poll() is None
    assert not [name for name in os.listdir(index.parent) if name[0] == "1"]


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_an_index_that_is_cut_short_or_made_longer_ends_no_server(start, node, pod, small, size):
    server, conf = start(), with_addresses_in(small, node.conf())
    for _ in range(3):
        result = server.ok("ADD", conf, pod)
        os.truncate(small / conf["name"] / ".fastcni.index", size)
        server.ok("CHECK", {**conf, "prevResult": result}, pod)
        os.truncate(small / conf["name"] / ".fastcni.index", size)
        server.ok("DEL", conf, pod)
    assert server.process.poll() is None


def test_a_pipe_in_the_place_of_a_lock_holds_up_no_other_network(start, node, pod, pod_netns, small):
    """Once, open() waited for a writer of the pipe and kept the GIL. The server answered no request until it was
    killed."""
    server, conf = start(), node.conf()
    broken = with_addresses_in(small, {**conf, "name": "broken"})
    (small / "broken").mkdir()
    os.mkfifo(small / "broken" / "lock")
    answer = server.call("ADD", broken, pod)
    assert answer.status == 1 and "broken/lock: not a regular file" in answer.document["msg"]
    server.ok("ADD", conf, pod)
    server.ok("DEL", conf, pod)
