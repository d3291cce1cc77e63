"""What somebody flushes from the host's firewall is there again, and works, without anybody asking (real kernel)."""

import errno
import logging
import os
import shutil
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import pytest
from real_kernel.node import Inside, cid_of, elements, rules, run, set_sysctl
from real_kernel.portmap_chain import DUAL, FAR, NODE, Chain, mapping
from real_kernel.traffic import ask, listen, outside
from server.client import eventually

from fastcni.kernel import netns, wire
from fastcni.kit.host import Host
from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf
from fastcni.server import hosts, restoring
from fastcni.spec import json

FLUSHES = ("flush ruleset", "delete table inet fastcni", "flush table inet fastcni")
CHAINS = ("postrouting", "hostports", "subnet-10.22.0.0/24", "loopback")
LONG_ENOUGH = 0.3               # seconds, for what must not happen

needs_iptables = pytest.mark.skipif(not shutil.which("iptables-restore"), reason="needs iptables")


def ruleset():
    """All of it, in no order."""
    return sorted(map(str, rules()))


def nft(words):
    run("nft", *words.split())


def restored(server):
    return server.lines("event=restored")


@pytest.fixture
def net(node):
    """A bridge that masquerades and guards, with portmap behind it."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, hairpinMode=True, ipMasq=True, ipspoofchk=True))


def add(server, net, pod, *mappings):
    """ADD of both plugins; portmap's configuration, for DEL."""
    conf = net.portmap(*mappings, prevResult=server.ok("ADD", net.first, pod))
    server.ok("ADD", conf, pod)
    return conf


def delete(server, net, pod, conf):
    server.ok("DEL", conf, pod)
    server.ok("DEL", {**net.first, "prevResult": conf["prevResult"]}, pod)


def all_elements():
    return [each for family, names in (("inet", ("pods4", "pods6", "hostports4", "hostports6", "hairpins4",
                                                 "hairpins6", "hostport-pods")),
                                       ("bridge", ("guarded", "allowed", "bound", "bound4", "bound6")))
            for name in names for each in elements(name, family)]


# -- our own tables ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", [*FLUSHES, *(f"flush chain inet fastcni {chain}" for chain in CHAINS),
                                 "flush table bridge fastcni", "delete table bridge fastcni"])
def test_what_somebody_flushed_is_there_again(server, net, pod_netns, how):
    for number in range(3):
        add(server, net, pod_netns(), mapping(8080 + number), mapping(9080, hostIP=f"127.0.0.{number + 1}"))
    before = ruleset()
    nft(how)
    assert eventually(lambda: ruleset() == before)
    time.sleep(LONG_ENOUGH)
    # Our own doing is nobody's flush: there is one line for each table. "": it came before the server's first look.
    assert 1 <= len(restored(server)) <= 2
    assert all(" by=nft " in line or ' by="" ' in line for line in restored(server))


@pytest.mark.parametrize("how", FLUSHES)
def test_traffic_gets_through_again_and_del_leaves_nothing(server, net, pod, pod_netns, how):
    far = outside(pod_netns)
    conf = add(server, net, pod, mapping())
    before = ruleset()
    nft(how)
    assert eventually(lambda: ruleset() == before)
    with listen(pod, 80), listen(far, 80):
        assert ask(far, NODE[4], 8080) == FAR[4]
        assert ask(pod, FAR[4], 80) == NODE[4]
    delete(server, net, pod, conf)
    assert all_elements() == []


def test_what_one_shot_plugins_added_and_deleted_is_known_too(server, net, pod_netns, node):
    assert eventually(lambda: server.lines("event=ready"), 60)      # who listens need not be looking yet
    one, two = pod_netns(), pod_netns()
    net.add(one, mapping())
    conf = net.add(two, mapping(8081))
    node.delete(conf, two)
    node.delete({**net.first, "prevResult": conf["prevResult"]}, two)
    before = ruleset()
    nft("flush ruleset")
    assert eventually(lambda: ruleset() == before) and all_elements()


def test_what_del_gc_and_an_admin_take_element_by_element_stays_gone(server, net, pod_netns):
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

    with ThreadPoolExecutor(4) as pool:         # its threads begin in this one's namespace
        jobs = [pool.submit(work, *each) for each in enumerate(pods)]
        while not all(job.done() for job in jobs):
            nft("flush ruleset")
            time.sleep(0.05)
    for job in jobs:
        job.result()

    def ports():
        return sorted(port for (_, port), _ in elements("hostports4"))

    assert eventually(lambda: ports() == sorted(stay), 5), f"{ports()} {sorted(stay)} {server.said()}"
    time.sleep(LONG_ENOUGH)
    for name, family in (("pods4", "inet"), ("bound4", "bridge"), ("guarded", "bridge"), ("hostport-pods", "inet")):
        assert len(elements(name, family)) == len(stay), name


def test_a_thousand_pods_are_put_back(server, net, pod):
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
    assert server.lines("event=restored", "elements=20")        # 2,000 and the pod's own


def test_who_flushes_all_the_time_is_not_followed_every_time(server, net, pod):
    add(server, net, pod, mapping())
    before, flushed = ruleset(), 0
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        nft("delete table inet fastcni")
        flushed += 1
        while time.monotonic() < deadline and not elements("pods4"):
            time.sleep(0.01)
    # At once, after 0.1 s, 0.2, 0.4, 0.8, 1.6
    assert 3 <= len(restored(server)) <= 7
    assert eventually(lambda: ruleset() == before)


def test_del_of_a_name_that_is_no_text_is_refused_as_before(server, net, pod):
    add(server, net, pod, mapping())
    assert server.refused("DEL", net.first, pod, cid="c\udcff")["code"] == 4


def test_a_server_that_starts_gives_chains_without_rules_theirs(start, net, pod):
    first = start()
    add(first, net, pod, mapping())
    before = ruleset()
    first.stop()
    nft("flush table inet fastcni")
    start()
    assert eventually(lambda: ruleset() == before)


@pytest.mark.parametrize("how", FLUSHES)
def test_what_firewall_has_is_there_again(server, net, pod, how):
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "ingressPolicy": "isolated", "prevResult": server.ok("ADD", net.first, pod)}
    server.ok("ADD", conf, pod)
    before = ruleset()
    assert elements("forwarded4") and elements("ingress-bridges") and elements("isolated", "bridge")
    nft(how)
    assert eventually(lambda: ruleset() == before)
    server.ok("CHECK", conf, pod)


def test_rules_of_an_administrators_own_are_none_of_our_business(server, net, pod):
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "prevResult": server.ok("ADD", net.first, pod)}
    server.ok("ADD", conf, pod)
    nft("add rule inet fastcni CNI-ADMIN ip saddr @forwarded4 accept")
    nft("flush chain inet fastcni CNI-ADMIN")
    time.sleep(LONG_ENOUGH)
    assert not restored(server)


# -- a Watch of this process -------------------------------------------------------------------------------

@pytest.fixture
def watch(node):
    """A Watch of the test's namespace, which attends when it is told to."""
    home = netns.open_own()
    it = restoring.Restoring(logging.getLogger("test")).watch(home)
    it.log = Log()
    it.attend(time.monotonic())
    yield it
    it.leave()
    os.close(home)


class Log:
    """The lines of a logger, as a list of (event, values)."""

    def __init__(self):
        self.lines = []

    def warning(self, event, **values):
        self.lines.append((event, values))

    error = exception = warning


Call = namedtuple("Call", "command key")


@pytest.mark.parametrize("again", [False, True], ids=["DEL", "DEL and ADD"])
@pytest.mark.parametrize("heard", [False, True], ids=["all at once", "the ADD before"])
def test_a_pod_that_is_deleted_between_a_flush_and_its_repair_is_not_put_back(watch, net, node, pod, pod_netns, heard,
                                                                              again):
    stays, host = pod_netns(), Host()
    net.add(stays, mapping())
    conf = net.add(pod, mapping(8081))
    if heard:
        watch.attend(time.monotonic())
    nft("flush ruleset")
    watch.heed(Call("DEL", ("net-a", cid_of(pod), "eth0")), host)
    node.delete(conf, pod)
    node.delete({**net.first, "prevResult": conf["prevResult"]}, pod)
    if again:
        net.add(pod, mapping(8081))
    watch.attend(time.monotonic())
    assert len(elements("pods4")) == len(elements("hostports4")) == len(elements("bound", "bridge")) == 1 + again
    host.close(lambda close: close())


def test_a_flush_among_notifications_that_the_kernel_dropped_is_put_back(watch, net, pod):
    net.add(pod, mapping())
    watch.attend(time.monotonic())
    before = ruleset()
    watch.sock.setsockopt(1, 8, 1)              # SOL_SOCKET, SO_RCVBUF: room for next to nothing
    nft("flush ruleset")
    run("nft", "-f", "-", stdin="add table inet other\n" + "".join(
        f"add chain inet other chain-{n}-{'x' * 100}\n" for n in range(300)))
    nft("delete table inet other")
    watch.attend(time.monotonic())
    assert ruleset() == before and watch.log.lines


def test_what_the_kernel_refuses_is_logged_and_tried_again(watch, net, pod):
    """Somebody has made a table of that name, in which our set is another one."""
    net.add(pod, mapping())
    watch.attend(time.monotonic())
    before = ruleset()
    run("nft", "-f", "-", stdin="delete table inet fastcni\nadd table inet fastcni\n"
                                "add set inet fastcni pods4 { type inet_service; }\n")
    watch.attend(time.monotonic())
    assert [event for event, _ in watch.log.lines] == ["not restored"] and watch.due is not None
    nft("delete table inet fastcni")
    time.sleep(restoring.PAUSE)
    watch.attend(time.monotonic())
    assert ruleset() == before


@pytest.mark.parametrize("why", [errno.EPERM, errno.EINVAL], ids=["no rights", "no nf_tables"])
def test_where_there_is_nothing_to_hear_the_server_says_so_once_and_serves(node, monkeypatch, why):
    def refuse(_, batch):
        raise wire.NetlinkError(why, "ask for nftables' generation")

    monkeypatch.setattr(wire, "exchange", refuse)
    log, home = Log(), netns.open_own()
    blind = restoring.Restoring(log).watch(home)
    blind.heed(Call("DEL", ("net-a", "c", "eth0")), Host())
    blind.leave()
    os.close(home)
    assert [event for event, _ in log.lines] == ["not watched"]


def test_a_namespace_that_was_let_go_is_watched_no_more(node, monkeypatch, pod_netns):
    monkeypatch.setattr(hosts, "LINGER", 0.0)
    monkeypatch.setattr(restoring, "GATHER", 0.0)
    guard = restoring.Restoring(logging.getLogger("test"))
    ours = hosts.Hosts(lambda fn, *args: fn(*args), guard)
    guard.start()
    try:
        with Inside(None):
            visit = ours.visit(os.open(f"/run/netns/{pod_netns()}", os.O_RDONLY))
            with visit:
                pass
            os.close(visit.fd)
        assert len(guard.watches) == 2
        assert eventually(lambda: ours.tidy() or len(guard.watches) == 1)
    finally:
        guard.stop()
        ours.close()


# -- iptables and firewalld --------------------------------------------------------------------------------

@pytest.fixture
def iptables_net(node):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return Chain(node, node.conf(*DUAL, isDefaultGateway=True, ipMasq=True, ipMasqBackend="iptables"),
                 backend="iptables", capabilities={"portMappings": True})


@pytest.fixture
def caching(start, tmp_path):
    server = start("--cache-dir", tmp_path / "cache")
    assert eventually(lambda: server.lines("event=ready"))
    return server


def remember(tmp_path, net, pod, conf):
    """As a runtime does; `conf` is what the last plugin was told."""
    last = {key: value for key, value in conf.items() if key not in ("prevResult", "runtimeConfig")}
    network = {"cniVersion": net.first["cniVersion"], "name": net.first["name"], "plugins": [net.first, last]}
    rt = RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0", capability_args=conf.get("runtimeConfig", {}))
    Cache(tmp_path / "cache").write(net.first["name"], json.write(network), rt, conf["prevResult"])


def iptables_rules():
    return [sorted(line for line in run(f"{program}-save").splitlines() if line.startswith("-A"))
            for program in ("iptables", "ip6tables")]


@needs_iptables
@pytest.mark.parametrize("how", ["nft flush ruleset", "iptables -t nat -F", "iptables -t nat -F PREROUTING",
                                 "iptables -t nat -F POSTROUTING", "iptables-restore", "nft delete table ip6 nat"])
def test_what_pods_have_in_iptables_is_put_back(caching, iptables_net, pod, tmp_path, how):
    remember(tmp_path, iptables_net, pod, add(caching, iptables_net, pod, mapping()))
    before = iptables_rules()
    run(*how.split(), stdin="*nat\nCOMMIT\n" if how == "iptables-restore" else None)
    assert eventually(lambda: caching.lines("event=replayed", "failed=0"))      # it may be faster than a look at them
    assert eventually(lambda: iptables_rules() == before), caching.said()[-2000:]
    with listen(pod, 80):
        assert ask(None, "127.0.0.1", 8080)


@needs_iptables
def test_del_of_the_last_pod_with_iptables_brings_nothing_back(caching, iptables_net, pod, pod_netns, tmp_path):
    other = pod_netns()
    conf = add(caching, iptables_net, pod, mapping())
    remember(tmp_path, iptables_net, pod, conf)
    delete(caching, iptables_net, pod, conf)
    conf = iptables_net.add(other, mapping())
    iptables_net.node.delete(conf, other)
    iptables_net.node.delete(iptables_net.first, other)
    time.sleep(restoring.SETTLE_DEL + LONG_ENOUGH)
    assert not caching.lines("event=replayed")


def test_firewalld_that_makes_its_table_anew_brings_a_replay(caching):
    nft("add table inet firewalld")
    assert eventually(lambda: caching.lines("event=replayed", "gone=\"what firewalld knew\""))
    nft("add table inet other")
    time.sleep(restoring.SETTLE_DEL + LONG_ENOUGH)
    assert len(caching.lines("event=replayed")) == 1


LOAD = """flush ruleset
table inet filter {
    chain forward { type filter hook forward priority filter; policy drop; }
}"""


def test_pods_are_let_through_an_administrators_chain_again_that_is_loaded_anew(caching, net, pod, tmp_path):
    """`systemctl reload nftables`: the ruleset is flushed, and the administrator's file is read."""
    run("nft", "-f", "-", stdin=LOAD)
    conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "firewall", "backend": "nftables",
            "prevResult": caching.ok("ADD", net.first, pod)}
    caching.ok("ADD", conf, pod)
    remember(tmp_path, net, pod, conf)
    before = ruleset()
    assert "fastcni: from pods" in str(before)
    run("nft", "-f", "-", stdin=LOAD)
    assert eventually(lambda: ruleset() == before), caching.said()
