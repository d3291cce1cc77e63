"""If another program flushes the host's firewall, the server restores the pods' state, and packets pass again. The
tests use the real kernel."""

import errno
import logging
import os
import shutil
import sys
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest
from lab.node import Inside, cid_of, elements, run
from lab.portmap_chain import EXTERNAL, NODE, mapping
from lab.traffic import add_external, ask, listen
from modes import WarmInProcess
from unit.server.flushed import LONG_ENOUGH, Log, add, all_elements, delete, nft, restored, ruleset

from fastcni.daemon import backoff
from fastcni.kernel import netns, wire
from fastcni.kit.call import names
from fastcni.kit.call.mode import Mode
from fastcni.server.cluster.pods import blind
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.server.networks.sources import NetworkSources
from fastcni.server.requests import hosts
from fastcni.server.restoring import restorer
from fastcni.server.restoring.table_mirror import TableMirror
from fastcni.testing.witnesses import eventually

DORMANT = "add table inet fastcni { flags dormant; }"      # with this flag, the kernel calls none of the table's chains
FLUSHES = ("flush ruleset", "delete table inet fastcni", "flush table inet fastcni", DORMANT)
CHAINS = ("postrouting", "hostports", "subnet-10.22.0.0/24", "loopback")
ROUNDS = 15                     # once, the DEL lost the race in 13 of 18 attempts

needs_iptables = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")


# -- our own tables ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", [*FLUSHES, *(f"flush chain inet fastcni {chain}" for chain in CHAINS),
                                 "flush table bridge fastcni", "delete table bridge fastcni",
                                 "add table bridge fastcni { flags dormant; }"])
def test_a_flush_is_restored(server, net, pod_netns, how):
    for number in range(3):
        add(server, net, pod_netns(), mapping(8080 + number), mapping(9080, hostIP=f"127.0.0.{number + 1}"))
    before = ruleset()
    nft(how)
    assert eventually(lambda: ruleset() == before)
    time.sleep(LONG_ENOUGH)
    # The server does not regard its own restore as a flush, so there is one line for each table. `by` is "" if the
    # flush came before the server's first reading.
    assert 1 <= len(restored(server)) <= 2
    assert all(" by=nft " in line or ' by="" ' in line for line in restored(server))


@pytest.mark.parametrize("how", FLUSHES)
def test_restored_pods_have_traffic_and_del_leaves_nothing(server, net, pod, pod_netns, how):
    external = add_external(pod_netns)
    conf = add(server, net, pod, mapping())
    before = ruleset()
    nft(how)
    assert eventually(lambda: ruleset() == before)
    with listen(pod, 80), listen(external, 80):
        assert ask(external, NODE[4], 8080) == EXTERNAL[4]
        assert ask(pod, EXTERNAL[4], 80) == NODE[4]
    delete(server, net, pod, conf)
    assert all_elements() == []


def test_the_server_notices_adds_and_dels_of_one_shot_plugins(server, net, pod_netns, node):
    assert eventually(lambda: server.lines("event=server_ready"), 60)      # a ready server has read nftables
    one, two = pod_netns(), pod_netns()
    net.add(one, mapping())
    conf = net.add(two, mapping(8081))
    node.delete(conf, two)
    node.delete({**net.first, "prevResult": conf["prevResult"]}, two)
    before = ruleset()
    nft("flush ruleset")
    assert eventually(lambda: ruleset() == before) and all_elements()


def test_elements_deleted_by_del_gc_or_an_administrator_are_not_restored(server, net, pod_netns):
    pods = [pod_netns() for _ in range(3)]
    confs = [add(server, net, pod, mapping(8080 + number)) for number, pod in enumerate(pods)]
    delete(server, net, pods[0], confs[0])
    valid = {"cni.dev/valid-attachments": [{"containerID": cid_of(pods[2]), "ifname": "eth0"}]}
    for conf in (net.first, net.conf):
        server.ok("GC", {**conf, **valid})
    assert len(elements("pods4")) == len(elements("hostports4")) == 1
    nft("flush map inet fastcni pods6")
    time.sleep(LONG_ENOUGH)
    assert not restored(server)
    before = all_elements()
    nft("flush ruleset")
    assert eventually(lambda: all_elements() == before) and elements("pods6") == []


def test_every_pod_has_its_elements_after_flushes_while_pods_are_added_and_deleted(server, net, pod_netns):
    pods, stay = [pod_netns() for _ in range(12)], []

    def work(number, pod):
        first = {**net.first, "prevResult": server.ok("ADD", net.first, pod)}
        conf = net.portmap(mapping(8080 + number), prevResult=first["prevResult"])
        server.ok("ADD", conf, pod)
        if number % 3:
            stay.append(8080 + number)
        else:
            server.ok("DEL", conf, pod)
            server.ok("DEL", first, pod)

    with ThreadPoolExecutor(4) as pool:         # a thread begins in the namespace of the thread that starts it
        jobs = [pool.submit(work, *each) for each in enumerate(pods)]
        while not all(job.done() for job in jobs):
            nft("flush ruleset")
            time.sleep(0.05)
    for job in jobs:
        job.result()

    def ports():
        return sorted(port for (_, port), _ in elements("hostports4"))

    def counts():
        return [len(elements(*it)) for it in (("pods4", "inet"), ("bound4", "bridge"), ("guarded", "bridge"),
                                              ("hostport-pods", "inet"))]

    assert eventually(lambda: ports() == sorted(stay), 5), f"{ports()} {sorted(stay)} {server.log_text()}"
    # the server restores one table after the other
    assert eventually(lambda: counts() == [len(stay)] * 4, 5), f"{counts()} {server.log_text()}"
    time.sleep(LONG_ENOUGH)
    assert counts() == [len(stay)] * 4


def test_a_thousand_pods_are_restored(server, net, pod):
    add(server, net, pod, mapping())
    mark = "8e48c01234567890-0b65c0123456{:04x}, net: net-b, if: eth0, id: c-{}"
    numbers = [(n, f"10.22.{n >> 8}.{n & 255}", mark.format(n, n)) for n in range(3, 1003)]
    run("nft", "-f", "-", stdin="".join(
        f'add element inet fastcni pods4 {{ {ip} comment "{comment}" : goto subnet-10.22.0.0/24 }}\n'
        f'add element inet fastcni hostports4 {{ tcp . {n + 10000} comment "{comment}" : {ip} . 80 }}\n'
        for n, ip, comment in numbers))
    before = ruleset()
    nft("flush ruleset")
    assert eventually(lambda: ruleset() == before) and len(restored(server)) == 2
    assert server.lines("event=rules_restored", "elements=20")        # 2,000 elements, and those of the pod


def test_repeated_flushes_are_restored_with_growing_delay(server, net, pod):
    add(server, net, pod, mapping())
    before, flushed = ruleset(), 0
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        nft("delete table inet fastcni")
        flushed += 1
        while time.monotonic() < deadline and not elements("pods4"):
            time.sleep(0.01)
    # The server restores immediately, and then after 0.1 s, 0.2 s, 0.4 s, 0.8 s and 1.6 s
    assert 3 <= len(restored(server)) <= 7
    assert eventually(lambda: ruleset() == before)


def test_del_of_a_name_that_is_no_utf8_is_refused_as_before(server, net, pod):
    add(server, net, pod, mapping())
    assert server.refused("DEL", net.first, pod, cid="c\udcff")["code"] == 4


@pytest.mark.parametrize("how", ["flush table inet fastcni", DORMANT])
def test_a_starting_server_restores_the_rules_of_empty_chains(start, net, pod, how):
    first = start()
    add(first, net, pod, mapping())
    before = ruleset()
    first.stop()
    nft(how)
    start()
    assert eventually(lambda: ruleset() == before)


@pytest.mark.parametrize("how", FLUSHES)
def test_the_elements_of_firewall_are_restored(server, net, pod, how):
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "ingressPolicy": "isolated", "prevResult": server.ok("ADD", net.first, pod)}
    server.ok("ADD", conf, pod)
    before = ruleset()
    assert elements("forwarded4")
    assert elements("ingress-bridges")
    assert elements("isolated", "bridge")
    nft(how)
    assert eventually(lambda: ruleset() == before)
    server.ok("CHECK", conf, pod)


def test_flushed_rules_of_an_administrator_are_not_restored(server, net, pod):
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "prevResult": server.ok("ADD", net.first, pod)}
    server.ok("ADD", conf, pod)
    nft("add rule inet fastcni CNI-ADMIN ip saddr @forwarded4 accept")
    nft("flush chain inet fastcni CNI-ADMIN")
    time.sleep(LONG_ENOUGH)
    assert not restored(server)


# -- a NamespaceWatch of this process ----------------------------------------------------------------------

Call = namedtuple("Call", "command attachment")


@pytest.mark.parametrize("one_shot", [False, True], ids=["a server's", "one-shot"])
@pytest.mark.parametrize("again", [False, True], ids=["DEL", "DEL and ADD"])
@pytest.mark.parametrize("received", [False, True], ids=["all at once", "the ADD before"])
def test_a_pod_deleted_between_flush_and_restore_is_not_restored(watch, net, node, pod, pod_netns, received,
                                                                              again, one_shot):
    """Once, the server restored such a pod: the one-shot DEL found nothing to delete, so the kernel announced
    nothing."""
    stays, warm = pod_netns(), WarmInProcess()
    net.add(stays, mapping())
    conf = net.add(pod, mapping(8081))
    if received:
        watch.attend(time.monotonic())
    nft("flush ruleset")
    if not one_shot:
        watch.note(Call("DEL", ("net-a", cid_of(pod), "eth0")), warm)
    delete_as(node, net, conf, pod, mode=None if one_shot else warm)
    if again:
        net.add(pod, mapping(8081))
    watch.attend(time.monotonic())
    assert len(elements("pods4")) == len(elements("hostports4")) == len(elements("bound", "bridge")) == 1 + again
    warm.release()


def delete_as(node, net, conf, pod, mode=None):
    """Make the DEL of both plugins."""
    node.ok("DEL", conf, pod, mode=mode)
    node.ok("DEL", {**net.first, "prevResult": conf["prevResult"]}, pod, mode=mode)


def test_a_one_shot_del_during_a_restore_leaves_nothing(watch, net, node, pod, pod_netns, monkeypatch):
    """The DEL runs after the flush and before the restore, so it finds nothing to delete. The watch corrects the state
    when it reads the next notifications."""
    net.add(pod_netns(), mapping())
    conf, restore = net.add(pod, mapping(8081)), TableMirror.restore_table

    def with_del_before(*args):
        monkeypatch.setattr(TableMirror, "restore_table", restore)
        delete_as(node, net, conf, pod)
        return restore(*args)

    watch.attend(time.monotonic())
    nft("flush ruleset")
    monkeypatch.setattr(TableMirror, "restore_table", with_del_before)
    watch.attend(time.monotonic())
    watch.attend(time.monotonic())
    assert len(elements("pods4")) == len(elements("hostports4")) == len(elements("bound", "bridge")) == 1


def test_a_one_shot_del_at_any_moment_after_a_flush_leaves_nothing(watching, net, node, pod_netns):
    """Once, 13 of 18 DELs within 60 ms after the flush left the pod's elements behind."""
    pod = pod_netns()
    net.add(pod_netns(), mapping())
    before = all_elements()
    for number in range(ROUNDS):
        conf = net.add(pod, mapping(8081))
        nft("flush ruleset")
        time.sleep(0.06 * number / ROUNDS)
        delete_as(node, net, conf, pod)
        assert eventually(lambda: all_elements() == before), (number, all_elements())
        time.sleep(2 * restorer.GATHER_S)
        assert all_elements() == before, number


@pytest.fixture
def watching(node, monkeypatch):
    """Yield a NamespaceWatch of the test's namespace, which a thread of this process calls. The watch restores without
    a pause."""
    monkeypatch.setattr(backoff, "RESET_S", 0.0)
    guard, home = restorer.Restoring(Log()), netns.open_own()
    guard.start()
    it = guard.watch(home)
    yield it
    guard.stop()
    it.close()
    os.close(home)


def test_an_announcement_of_another_user_is_not_believed(watch, net, node, pod):
    """Any process in the namespace can send such a notification. If the server believed it, it would not restore the
    pod's rules."""
    net.add(pod, mapping())
    watch.attend(time.monotonic())
    before = ruleset()
    nft("flush ruleset")
    code = ("import os, sys; from fastcni.kernel import deletions as it; os.setuid(65534); "
            "it.generation = lambda sock: 1 << 31; it.announce(None, sys.argv[1])")
    run(sys.executable, "-c", code, names.hashes("net-a", cid_of(pod), "eth0"))
    watch.attend(time.monotonic())
    assert ruleset() == before


def test_a_flush_among_dropped_notifications_is_restored(watch, net, pod):
    net.add(pod, mapping())
    watch.attend(time.monotonic())
    before = ruleset()
    watch.sock.setsockopt(1, 8, 1)              # the smallest buffer: SO_RCVBUF of SOL_SOCKET
    nft("flush ruleset")
    run("nft", "-f", "-", stdin="add table inet other\n" + "".join(
        f"add chain inet other chain-{n}-{'x' * 100}\n" for n in range(300)))
    nft("delete table inet other")
    watch.attend(time.monotonic())
    assert ruleset() == before and watch.log.lines


@pytest.mark.parametrize("step", [1, 20, 60])
def test_a_flush_during_the_first_reading_is_restored_once(make_watch, net, pod, monkeypatch, step):
    """Once, the reading saw a part of the flush. So the server restored each table, and restored it again after the
    notification of the flush.

    The first reading asks the kernel 69 times. The flush comes before question number `step`.
    """
    watch = make_watch()
    net.add(pod, mapping())
    before, steps = ruleset(), iter(range(1000))

    def with_flush(ask):
        def asked(sock, *args, **more):
            if sock is watch.ask and next(steps) == step:
                nft("flush ruleset")
            return ask(sock, *args, **more)
        return asked

    for name in ("look_up", "dump"):
        monkeypatch.setattr(wire, name, with_flush(getattr(wire, name)))
    watch.attend(time.monotonic())
    assert next(steps) > step
    for _ in range(3):
        time.sleep(backoff.FIRST_DELAY_S)
        watch.attend(time.monotonic())
    assert ruleset() == before
    assert sorted(values["table"] for event, values in watch.log.lines if event == "rules_restored") == [
        "bridge fastcni", "inet fastcni"]


def test_a_refused_restore_is_logged_and_tried_again(watch, net, pod):
    """Another program has made a table of the same name, in which a set of the server's name has another type."""
    net.add(pod, mapping())
    watch.attend(time.monotonic())
    before = ruleset()
    run("nft", "-f", "-", stdin="delete table inet fastcni\nadd table inet fastcni\n"
                                "add set inet fastcni pods4 { type inet_service; }\n")
    watch.attend(time.monotonic())
    assert [event for event, _ in watch.log.lines] == ["restore_failed"] and watch.due < inf
    nft("delete table inet fastcni")
    time.sleep(backoff.FIRST_DELAY_S)
    watch.attend(time.monotonic())
    assert ruleset() == before


@pytest.mark.parametrize("why", [errno.EPERM, errno.EINVAL], ids=["no rights", "no nf_tables"])
def test_without_notifications_the_server_logs_it_once_and_serves(node, monkeypatch, why):
    def refuse(_, batch):
        raise wire.NetlinkError(why, "ask for nftables' generation")

    monkeypatch.setattr(wire, "exchange", refuse)
    log, home = Log(), netns.open_own()
    blind = restorer.Restoring(log).watch(home)
    blind.note(Call("DEL", ("net-a", "c", "eth0")), Mode())
    blind.close()
    os.close(home)
    assert [event for event, _ in log.lines] == ["watch_unavailable"]


def test_a_released_namespace_is_no_longer_watched(node, monkeypatch, pod_netns):
    monkeypatch.setattr(hosts, "KEEP_S", 0.0)
    monkeypatch.setattr(restorer, "GATHER_S", 0.0)
    guard = restorer.Restoring(logging.getLogger("test"))
    home = netns.open_own()
    node_hosts = hosts.Hosts(home, lambda fn, *args: fn(*args), guard, ClusterUpkeep(home, guard.log, blind()),
                             NetworkSources(home, guard.log))
    guard.start()
    try:
        with Inside(None):
            visit = hosts.Visit(node_hosts, os.open(f"/run/netns/{pod_netns()}", os.O_RDONLY))
            with visit:
                pass
            os.close(visit.fd)
        assert len(guard.watches) == 2
        assert eventually(lambda: node_hosts.tidy() or len(guard.watches) == 1)
    finally:
        guard.stop()
        node_hosts.close()


def test_the_thread_sleeps_again_after_a_wake_up(monkeypatch):
    guard, rounds = restorer.Restoring(Log()), []
    next_due = guard._next_due
    monkeypatch.setattr(guard, "_next_due", lambda: rounds.append(True) or next_due())
    guard.start()
    try:
        guard.wakeup.wake()
        assert eventually(lambda: len(rounds) == 2)
        time.sleep(10 * restorer.GATHER_S)
        assert len(rounds) == 2
    finally:
        guard.stop()


def test_what_is_overdue_is_not_waited_for():
    """epoll regards a negative time as no time limit."""
    guard = restorer.Restoring(Log())
    guard.watches[-1] = namedtuple("Due", "due")(time.monotonic() - 0.5)
    assert guard._next_due() == 0.0
