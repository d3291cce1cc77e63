"""With disableFlooding, the server restores a bridge's entries for its pods if another program deletes them. The tests
use the real kernel."""

import errno
import time

import pytest
from lab.node import elements, run, source_seen
from unit.server.client import eventually
from unit.server.cluster import NodeLog
from unit.server.flushed import LONG_ENOUGH

from fastcni.kernel import uapi, wire
from fastcni.kit.bridge import unflooded
from fastcni.server.restoring import neighbour_watch


@pytest.fixture
def conf(node):
    return node.conf("10.22.0.0/24", "fd00:22::/64", isGateway=True, disableFlooding=True)


def known():
    """Return the bridge's static FDB entries and fastcni's neighbours as sorted lines. If the kernel has VLAN
    filtering, it also lists each FDB entry for VLAN 1, which is omitted here."""
    fdb = run("bridge", "fdb", "show", "br", "br0").splitlines()
    neighbours = run("ip", "-d", "neigh", "show", "dev", "br0").splitlines()
    return sorted([line for line in fdb if "sticky" in line and " vlan " not in line]
                  + [" ".join(line.split()[:3]) for line in neighbours if "proto 252" in line])


def restored(server):
    return server.lines("event=neighbours_restored")


@pytest.mark.parametrize("how", ["ip neigh flush dev br0", "bridge fdb del {mac} dev {port} master", "down", "both"])
def test_a_flush_is_restored(server, node, conf, pod_netns, how):
    assert eventually(lambda: server.lines("event=server_ready"), 60)      # a ready server watches the entries
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


def test_an_entry_of_another_program_stays_deleted(server, node, conf, pod_netns):
    """Once, the server restored each static FDB entry that a user deleted from a pod's port."""
    assert eventually(lambda: server.lines("event=server_ready"), 60)
    port = server.ok("ADD", conf, pod_netns())["interfaces"][1]["name"]
    before = known()
    for command in ("add", "del"):
        run("bridge", "fdb", command, "02:00:00:00:00:99", "dev", port, "master", "static", "sticky")
    run("ip", "neigh", "flush", "dev", "br0")
    assert eventually(lambda: restored(server) and known() == before)
    assert not server.lines("event=neighbours_restored", "fdb=1")


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM])
def test_what_the_kernel_refuses_once_is_restored_later(node, conf, pod, monkeypatch, number):
    """Once, the watch forgot what it had to restore if the kernel answered ENOBUFS."""
    log = NodeLog()
    node.add(conf, pod)
    before = known()
    watch, put, refused = neighbour_watch.NeighbourWatch(log, 0), unflooded.put, [OSError(number, "refused")]

    def refuse_once(*args):
        if refused:
            raise refused.pop()
        put(*args)

    monkeypatch.setattr(unflooded, "put", refuse_once)
    run("ip", "neigh", "flush", "dev", "br0")
    assert watch.attend(time.monotonic()) == watch.backoff.until
    watch.attend(watch.backoff.until)
    watch.close()
    assert known() == before
    assert [event for event, _ in log.lines] == ["restore_failed", "neighbours_restored"]


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM])
def test_an_fdb_entry_that_the_kernel_refuses_once_is_restored_later(node, conf, pod, monkeypatch, number):
    """Once, the watch took each error for a deleted port, so it forgot the entry after one ENOBUFS."""
    log = NodeLog()
    result = node.add(conf, pod)
    before = known()
    watch, exchange, refused = neighbour_watch.NeighbourWatch(log, 0), wire.exchange, [number]

    def refuse_once(sock, batch, harmless=()):
        if sock is watch.ask and refused:
            raise wire.NetlinkError(refused.pop(), "add to the FDB")
        return exchange(sock, batch, harmless)

    monkeypatch.setattr(wire, "exchange", refuse_once)
    run("bridge", "fdb", "del", result["interfaces"][2]["mac"], "dev", result["interfaces"][1]["name"], "master")
    assert known() != before
    assert watch.attend(time.monotonic()) == watch.backoff.until
    watch.attend(watch.backoff.until)
    watch.close()
    assert known() == before
    assert [event for event, _ in log.lines] == ["restore_failed", "neighbours_restored"]


def test_what_is_deleted_while_the_kernel_drops_notifications_is_restored(node, conf, pod, pod_netns):
    """Once, after the kernel had dropped notifications, the watch could not determine which entries were missing."""
    log, late = NodeLog(), pod_netns()
    results = [node.add(conf, pod)]
    watch = neighbour_watch.NeighbourWatch(log, 0)
    results.append(node.add(conf, late))            # this pod is added after the watch has read the entries
    gone = pod_netns()
    left = node.add(conf, gone)
    watch.attend(time.monotonic())
    before = known()
    # the kernel's minimum, which holds a few notifications
    watch.sock.setsockopt(uapi.SOL_SOCKET, uapi.SO_RCVBUFFORCE, 0)
    node.delete({**conf, "prevResult": left}, gone)
    for number in range(40):
        mac = f"02:00:00:00:01:{number:02x}"
        for command in ("add", "del"):
            run("bridge", "fdb", command, mac, "dev", results[0]["interfaces"][1]["name"], "master", "static", "sticky")
    for result in results:
        run("bridge", "fdb", "del", result["interfaces"][2]["mac"], "dev", result["interfaces"][1]["name"], "master")
    run("ip", "neigh", "flush", "dev", "br0")
    watch.attend(time.monotonic())
    assert watch.dropped
    watch.close()
    assert known() == [line for line in before if left["interfaces"][2]["mac"] not in line]
    assert [event for event, _ in log.lines] == ["neighbours_restored"]


def test_a_neighbour_that_another_program_adds_again_is_left_to_it(node, conf, pod):
    """The other program adds the neighbour with another MAC address, which the watch must not overwrite."""
    log = NodeLog()
    node.add(conf, pod)
    watch = neighbour_watch.NeighbourWatch(log, 0)
    run("ip", "neigh", "del", "10.22.0.2", "dev", "br0")
    run("ip", "neigh", "add", "10.22.0.2", "lladdr", "02:00:00:00:00:99", "dev", "br0", "nud", "reachable",
        "protocol", "252", "extern_learn")
    before = known()
    watch.attend(time.monotonic())
    watch.close()
    assert "10.22.0.2 lladdr 02:00:00:00:00:99" in before and known() == before
    assert log.lines == []


@pytest.mark.parametrize("how", ["flush ruleset", "delete table netdev fastcni", "flush table netdev fastcni",
                                 "flush chain netdev fastcni solicitations", "flush chain netdev fastcni bridge-br0",
                                 "delete chain netdev fastcni bridge-br0"])
def test_flushed_rules_for_neighbour_solicitations_are_restored(server, node, conf, pod_netns, how):
    assert eventually(lambda: server.lines("event=server_ready"), 60)
    one, two = pod_netns(), pod_netns()
    server.ok("ADD", conf, one)
    result = server.ok("ADD", conf, two)
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    run("nft", *how.split())
    assert eventually(lambda: server.lines("event=rules_restored", 'table="netdev fastcni"')), server.log_text()
    run("ip", "neigh", "flush", "dev", "eth0", netns=one)
    assert source_seen(one, two, "fd00:22::3") == "fd00:22::2"
    server.ok("CHECK", {**conf, "prevResult": result}, two)
    server.ok("DEL", {**conf, "prevResult": result}, two)
    assert {key[1] for key, _ in elements("solicited", "netdev")} == {"fd00:22::2", "fe80::858:aff:fe16:2"}


def test_a_bridge_that_is_deleted_takes_its_rules_along_and_nothing_is_restored(server, node, conf, pod_netns):
    assert eventually(lambda: server.lines("event=server_ready"), 60)
    for _ in range(2):
        one, two = pod_netns(), pod_netns()
        server.ok("ADD", conf, one)
        result = server.ok("ADD", conf, two)
        assert source_seen(one, two, result["ips"][1]["address"].partition("/")[0])
        run("ip", "link", "del", "br0")
        time.sleep(LONG_ENOUGH)
    assert not server.lines("event=rules_restored")


def test_what_del_deletes_is_not_restored(server, node, conf, pod_netns):
    assert eventually(lambda: server.lines("event=server_ready"), 60)
    one, two = pod_netns(), pod_netns()
    server.ok("ADD", conf, one)
    before = known()
    result = server.ok("ADD", conf, two)
    server.ok("DEL", {**conf, "prevResult": result}, two)
    time.sleep(LONG_ENOUGH)
    assert known() == before
    node.delete(conf, one)                              # the server has no part in this DEL
    time.sleep(LONG_ENOUGH)
    assert known() == [] and not restored(server)
