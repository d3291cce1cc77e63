"""If another program deletes what a bridge knows of its pods, disableFlooding, the server restores it (real kernel)."""

import time

import pytest
from real_kernel.node import run
from server.client import eventually
from server.flushed import LONG_ENOUGH


@pytest.fixture
def conf(node):
    return node.conf("10.22.0.0/24", "fd00:22::/64", isGateway=True, disableFlooding=True)


def known():
    """Return what the bridge knows, as sorted lines: static FDB entries, and fastcni's neighbours."""
    fdb = run("bridge", "fdb", "show", "br", "br0").splitlines()
    neighbours = run("ip", "-d", "neigh", "show", "dev", "br0").splitlines()
    return sorted([line for line in fdb if "sticky" in line]
                  + [" ".join(line.split()[:3]) for line in neighbours if "proto 252" in line])


def restored(server):
    return server.lines("event=neighbours_restored")


@pytest.mark.parametrize("how", ["ip neigh flush dev br0", "bridge fdb del {mac} dev {port} master", "down", "both"])
def test_a_flush_is_restored(server, node, conf, pod_netns, how):
    assert eventually(lambda: server.lines("event=server_ready"), 60)      # it watches
    results = [server.ok("ADD", conf, pod_netns()) for _ in range(2)]
    before = known()
    assert len(before) == 6
    names = {"port": results[0]["interfaces"][1]["name"], "mac": results[0]["interfaces"][2]["mac"]}
    commands = {"down": ["ip link set br0 down", "ip link set br0 up"],
                "both": ["bridge fdb del {mac} dev {port} master", "ip neigh flush dev br0"]}.get(how, [how])
    for command in commands:
        run(*command.format(**names).split())
    assert eventually(lambda: known() == before)
    assert eventually(lambda: restored(server))


def test_what_del_deletes_is_not_restored(server, node, conf, pod_netns):
    assert eventually(lambda: server.lines("event=server_ready"), 60)
    one, two = pod_netns(), pod_netns()
    server.ok("ADD", conf, one)
    before = known()
    result = server.ok("ADD", conf, two)
    server.ok("DEL", {**conf, "prevResult": result}, two)
    time.sleep(LONG_ENOUGH)
    assert known() == before
    node.delete(conf, one)                              # one-shot
    time.sleep(LONG_ENOUGH)
    assert known() == [] and not restored(server)
