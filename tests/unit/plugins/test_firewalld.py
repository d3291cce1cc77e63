"""firewall with the backend firewalld. ADD makes a pod's addresses sources of a zone of a real firewalld, and DEL
removes these sources."""

import json
import signal
import socket
import sys
import threading
import time

import pytest
from lab.firewalld import SOURCES, Chain, Firewalld, end, needs_firewalld, owned, set_timeout
from lab.node import cid_of, elements, members, run
from lab.portmap_chain import EXTERNAL, POD
from lab.traffic import add_external, ask, listen
from stopping import stop

from fastcni.handle import restore
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.firewall import owners
from fastcni.kit.firewall.forward import firewalld as forward_firewalld

FAMILIES = pytest.mark.parametrize("family", [4, 6])
pytestmark = needs_firewalld


@pytest.fixture
def chain(node, firewalld):
    return Chain(node, firewalld.env)


# -- traffic and zones -------------------------------------------------------------------------------------

@FAMILIES
def test_pod_reaches_outside_although_the_default_zone_drops(chain, pod, pod_netns, family):
    external = add_external(pod_netns, has_default_route=True)
    conf = chain.of(pod)
    with listen(external, 80):
        assert ask(pod, EXTERNAL[family], 80, wait=0.5) is None
        chain.ok("ADD", conf, pod)
        assert ask(pod, EXTERNAL[family], 80) == POD[family]
        chain.ok("DEL", conf, pod)
        assert ask(pod, EXTERNAL[family], 80, wait=0.5) is None
    with listen(pod, 80):
        chain.ok("ADD", conf, pod)
        # a zone applies to the source of a packet, not to its destination
        assert ask(external, POD[family], 80, wait=0.5) is None


def test_addresses_are_sources_of_the_zone_until_del(chain, firewalld, pod):
    conf = chain.add(pod)
    assert firewalld.sources() == SOURCES and owned() == {*POD.values()}
    chain.ok("CHECK", conf, pod)
    chain.ok("DEL", conf, pod)
    assert firewalld.sources() == owned() == set()
    chain.ok("DEL", conf, pod)


def test_zone_may_be_named(chain, firewalld, pod):
    conf = chain.add(pod, firewalldZone="work")
    assert firewalld.sources("work") == SOURCES and firewalld.sources() == set()
    chain.ok("CHECK", conf, pod)
    chain.ok("DEL", conf, pod)
    assert firewalld.sources("work") == set()


def test_default_backend_is_firewalld_if_it_runs(chain, firewalld, pod):
    conf = chain.add(pod, backend=None)
    assert firewalld.sources() == SOURCES
    chain.ok("CHECK", conf, pod)
    chain.ok("DEL", conf, pod)
    assert firewalld.sources() == set()


def test_a_pod_passes_firewalld_and_iptables_if_both_filter(chain, firewalld, pod, pod_netns):
    """Once, with docker and firewalld, only firewalld accepted the pod's packets. iptables dropped them by its
    policy."""
    external = add_external(pod_netns, has_default_route=True)
    run("iptables", "-P", "FORWARD", "DROP")
    conf = chain.add(pod, backend=None)
    assert firewalld.sources() == SOURCES
    with listen(external, 80):
        assert ask(pod, EXTERNAL[4], 80) == POD[4]
    chain.ok("CHECK", conf, pod)
    chain.ok("DEL", conf, pod)
    assert firewalld.sources() == owned() == set()
    assert elements("iptables-forward4") == members("fastcni-forward4") == []


def test_every_address_becomes_a_source_whatever_its_link_and_prefix(chain, firewalld):
    conf = chain.at("10.9.0.1/8", "10.9.0.2/32", "fd00:0:0::9/48")
    chain.ok("ADD", conf, "pod")
    assert firewalld.sources() == {"10.9.0.1/32", "10.9.0.2/32", "fd00::9/128"}
    chain.ok("CHECK", conf, "pod")


def test_pod_without_addresses_has_no_sources(chain, firewalld):
    conf = chain.at()
    for command in ("ADD", "CHECK", "DEL"):
        chain.ok(command, conf, "pod")
    assert firewalld.sources() == owned() == set()


# -- ADD ---------------------------------------------------------------------------------------------------

def test_add_succeeds_if_the_source_exists(chain, firewalld):
    """A pod that never had a DEL left the source, or the reference plugin added it."""
    firewalld.client("--zone=trusted", "--add-source=10.22.0.2/32")
    conf = chain.at("10.22.0.2/24")
    for _ in range(2):
        chain.ok("ADD", conf, "pod")
    assert firewalld.sources() == {"10.22.0.2/32"}
    chain.ok("DEL", conf, "pod")
    assert firewalld.sources() == set()


def test_zone_that_does_not_exist_is_named_and_nothing_is_left(chain, firewalld):
    error = chain.refused("ADD", chain.at("10.22.0.2/24", firewalldZone="nowhere"), "pod")
    assert error["msg"] == "failed to add the address 10.22.0.2/32 to nowhere zone: INVALID_ZONE: nowhere"
    assert "firewall-cmd --get-zones" in error["details"] and owned() == set()


def test_an_address_in_another_zone_stays_there(chain, firewalld):
    """The administrator may have blocked this address. So ADD fails, and removes the address that it added before."""
    firewalld.client("--zone=block", "--add-source=10.22.0.3/32")
    error = chain.refused("ADD", chain.at("10.22.0.2/24", "10.22.0.3/24"), "pod")
    assert error["msg"].startswith("failed to add the address 10.22.0.3/32 to trusted zone: ZONE_CONFLICT")
    assert firewalld.sources("block") == {"10.22.0.3/32"} and firewalld.sources() == owned() == set()


# -- DEL and GC remove only sources that fastcni added ----------------------------------------------------------------

def test_del_needs_no_prev_result(chain, firewalld, pod):
    conf = chain.add(pod)
    chain.ok("DEL", chain.conf(), pod)
    assert firewalld.sources() == owned() == set()
    chain.ok("DEL", conf, pod)


def test_late_del_leaves_the_address_to_the_pod_that_has_it_now(chain, firewalld):
    conf = chain.at("10.22.0.2/24")
    chain.ok("ADD", conf, "old")
    chain.ok("ADD", conf, "new")
    chain.ok("DEL", conf, "old")
    assert firewalld.sources() == {"10.22.0.2/32"} and owned() == {"10.22.0.2"}
    chain.ok("DEL", conf, "new")
    assert firewalld.sources() == owned() == set()


def test_del_succeeds_if_the_source_was_removed(chain, firewalld):
    conf = chain.at("10.22.0.2/24", "10.22.0.3/24")
    chain.ok("ADD", conf, "pod")
    firewalld.client("--zone=trusted", "--remove-source=10.22.0.2/32")
    chain.ok("DEL", conf, "pod")
    assert firewalld.sources() == owned() == set()


def test_gc_removes_sources_of_the_network_without_a_valid_attachment(chain, firewalld):
    firewalld.client("--zone=trusted", "--add-source=10.22.0.9/32")
    for number, pod in enumerate(("stays", "goes"), 2):
        chain.ok("ADD", chain.at(f"10.22.0.{number}/24", f"fd00:22::{number}/64"), pod)
    chain.ok("ADD", chain.at("10.22.0.4/24", name="net-b"), "elsewhere")
    valid = [{"containerID": cid_of("stays"), "ifname": "eth0"}]
    report = chain.ok("GC", chain.conf(**{"cni.dev/valid-attachments": valid, "fastcni/report": True}))
    assert [each["what"] for each in report["released"]] == [f"address {ip} in firewalld"
                                                             for ip in ("10.22.0.3", "fd00:22::3")]
    assert all(cid_of("goes") in each["of"] for each in report["released"])
    assert firewalld.sources() == {"10.22.0.2/32", "fd00:22::2/128", "10.22.0.4/32", "10.22.0.9/32"}
    assert owned() == {"10.22.0.2", "fd00:22::2", "10.22.0.4"}


def test_next_gc_removes_a_source_that_firewalld_refused_to_remove(chain, firewalld):
    conf = chain.at("10.22.0.2/24")
    chain.ok("ADD", conf, "pod")
    firewalld.client("--panic-on")
    reply = chain.node.call("DEL", conf, "pod", env=chain.env)
    assert reply.status == 0 and b"failed to remove the address 10.22.0.2/32 from trusted zone" in reply.stderr
    assert owned() == {"10.22.0.2"}
    gc = chain.conf(**{"cni.dev/valid-attachments": [], "fastcni/report": True})
    reply = chain.node.call("GC", gc, env=chain.env)
    assert (reply.status, json.loads(reply.stdout)) == (0, {"released": []})
    firewalld.client("--panic-off")
    chain.ok("GC", chain.conf(**{"cni.dev/valid-attachments": []}))
    assert firewalld.sources() == owned() == set()


@pytest.mark.parametrize("backend", ["nftables", None])
def test_del_of_a_pod_with_nftables_does_not_call_firewalld(chain, firewalld, monkeypatch, backend):
    """Once, DEL called firewalld on every host that has firewalld's table, and failed without a bus."""
    conf = chain.at("10.22.0.2/24", backend="nftables")
    chain.ok("ADD", conf, "pod")
    set_timeout(monkeypatch, 0.2)
    stop(firewalld.bus.process.pid)
    chain.ok("DEL", {**conf, "backend": backend}, "pod")


def test_del_asks_only_about_addresses_that_firewalld_has(chain, firewalld, monkeypatch):
    """The reference plugin adds sources without an owner record. firewalld's rules show that 10.22.0.3 is no source."""
    firewalld.client("--zone=trusted", "--add-source=10.22.0.2/32")
    there, not_there = chain.at("10.22.0.2/24"), chain.at("10.22.0.3/24", "fd00:22::3/64")
    set_timeout(monkeypatch, 0.2)
    stop(firewalld.bus.process.pid)
    chain.ok("DEL", not_there, "another")
    assert chain.refused("DEL", there, "pod")["code"] == 11
    firewalld.bus.process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    chain.ok("DEL", there, "pod")
    assert firewalld.sources() == set()


@pytest.mark.parametrize("key", [None, "same"])
@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_del_of_a_pod_that_firewalld_never_had_asks_no_bus(node, tmp_path, backend, key):
    """Once, a hanging bus delayed the DEL of a pod that iptables accepts, and each repeated DEL, by 10 s."""
    chain = Chain(node, {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/bus"})
    conf = chain.at("10.22.0.2/24", "fd00:22::2/64", backend=backend)
    chain.ok("ADD", conf, "pod")
    with socket.socket(socket.AF_UNIX) as bus:
        bus.bind(f"{tmp_path}/bus")
        bus.listen()
        bus.setblocking(False)
        for _ in range(2):
            chain.ok("DEL", {**conf, "backend": key and backend}, "pod")
        with pytest.raises(BlockingIOError):
            bus.accept()


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_del_removes_a_source_without_a_record_whatever_firewalld_uses(node, tmp_path, backend):
    with Firewalld(tmp_path, backend) as firewalld:
        chain = Chain(node, firewalld.env)
        firewalld.client("--zone=trusted", "--add-source=10.22.0.2/32")
        chain.ok("DEL", chain.at("10.22.0.2/24", backend=None), "pod")
        assert firewalld.sources() == set()


def test_del_after_firewalld_was_killed_has_nothing_to_do(chain, firewalld):
    """firewalld's table stays in the kernel until firewalld starts again. The new firewalld does not have these
    sources."""
    firewalld.client("--zone=trusted", "--add-source=10.22.0.2/32")
    conf = chain.at("10.22.0.2/24", backend=None)
    end(firewalld.process)
    assert "10.22.0.2" in run("nft", "list", "table", "inet", "firewalld")
    chain.ok("DEL", conf, "pod")
    firewalld.start()
    assert firewalld.sources() == set()


def test_without_the_family_inet_pods_are_sources_but_have_no_owner_records(chain, firewalld, monkeypatch):
    """A kernel without CONFIG_NF_TABLES_INET rejects the table for the records. Once, ADD failed there."""
    monkeypatch.setattr(owners, "FAMILY", 99)                   # no kernel has this family
    conf = chain.at("10.22.0.2/24", "fd00:22::2/64")
    chain.ok("ADD", conf, "pod")
    assert firewalld.sources() == SOURCES and owned() == set()
    chain.ok("CHECK", conf, "pod")
    for _ in range(2):
        chain.ok("DEL", conf, "pod")
    assert firewalld.sources() == set()


# -- CHECK -------------------------------------------------------------------------------------------------

def test_check_reports_sources_lost_by_a_reload_and_restore_restores_them(chain, firewalld):
    conf = chain.at("10.22.0.2/24", "fd00:22::2/64")
    chain.ok("ADD", conf, "pod")
    firewalld.client("--reload")
    assert firewalld.sources() == set()
    assert "trusted lacks the source 10.22.0.2/32" in chain.refused("CHECK", conf, "pod")["msg"]
    env = {"CNI_CONTAINERID": cid_of("pod"), "CNI_IFNAME": "eth0", "CNI_NETNS": "/nowhere", "CNI_PATH": "/nowhere"}
    assert restore("firewall", {**env, **chain.env}, json.dumps(conf).encode(), Mode()) == []
    assert firewalld.sources() == SOURCES
    chain.ok("CHECK", conf, "pod")


def test_check_names_a_missing_zone(chain, firewalld):
    error = chain.refused("CHECK", chain.at("10.22.0.2/24", firewalldZone="nowhere"), "pod")
    assert "INVALID_ZONE" in error["msg"] and owned() == set()


# -- firewalld does not run, or does not answer ------------------------------------------------------------

def test_only_del_succeeds_while_firewalld_is_stopped(chain, firewalld):
    conf = chain.at("10.22.0.2/24")
    chain.ok("ADD", conf, "pod")
    chain.ok("STATUS", chain.conf())
    firewalld.stop()
    for command in ("STATUS", "CHECK", "ADD"):
        error = chain.refused(command, conf, "another" if command == "ADD" else "pod")
        assert error["code"] == 50
        assert "firewalld is not running" in error["msg"]
        assert "systemctl" in error["details"]
    chain.ok("DEL", conf, "pod")
    assert owned() == set()
    firewalld.start()
    chain.ok("ADD", conf, "pod")
    assert firewalld.sources() == {"10.22.0.2/32"}


def test_without_a_bus_the_error_of_add_names_its_path(node, tmp_path):
    chain = Chain(node, {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/nothing"})
    conf = chain.at("10.22.0.2/24")
    error = chain.refused("ADD", conf, "pod")
    assert error["code"] == 50 and f"{tmp_path}/nothing: No such file or directory" in error["msg"]
    chain.ok("DEL", conf, "pod")
    assert owned() == set()


@pytest.mark.parametrize("name", ["firewalld", "the system bus"])
def test_a_process_that_hangs_is_named_in_time_and_later_calls_succeed(chain, firewalld, monkeypatch, name):
    conf, process = chain.at("10.22.0.2/24"), firewalld.process if name == "firewalld" else firewalld.bus.process
    chain.ok("ADD", conf, "pod")
    set_timeout(monkeypatch)
    stop(process.pid)
    started = time.monotonic()
    for command, pod in (("ADD", "new"), ("CHECK", "pod"), ("DEL", "pod"), ("STATUS", "")):
        error = chain.refused(command, chain.at("10.22.0.3/24") if pod == "new" else conf, pod)
        assert (error["code"], error["msg"]) == (11, f"{name} did not answer within 0.5 s")
    assert time.monotonic() - started < 5
    process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    chain.ok("DEL", conf, "pod")
    chain.ok("DEL", chain.at("10.22.0.3/24"), "new")
    assert firewalld.sources() == owned() == set()


def test_firewalld_that_ends_during_a_call_counts_as_not_running(chain, firewalld):
    conf = chain.at("10.22.0.2/24")
    chain.ok("ADD", conf, "pod")
    stop(firewalld.process.pid)
    threading.Timer(0.3, firewalld.process.kill).start()
    chain.ok("DEL", conf, "pod")
    assert owned() == set()


def test_firewalld_counts_as_running_only_while_it_runs(firewalld):
    req = Request(Mode(), env=firewalld.env)
    assert forward_firewalld.filters(req) is True
    firewalld.stop()
    assert forward_firewalld.filters(req) is False
    end(firewalld.bus.process)
    assert forward_firewalld.filters(req) is False


def test_library_is_not_needed_to_know_that_firewalld_does_not_run(chain, firewalld, monkeypatch):
    firewalld.stop()
    monkeypatch.setitem(sys.modules, "jeepney", None)
    conf = chain.at("10.22.0.2/24", backend=None)
    for command in ("ADD", "CHECK", "DEL"):
        chain.ok(command, conf, "pod")


def test_a_request_without_the_library_names_the_package_to_install(chain, monkeypatch):
    monkeypatch.setitem(sys.modules, "jeepney", None)
    error = chain.refused("STATUS", chain.conf())
    assert "jeepney" in error["msg"] and "pip install jeepney" in error["details"]
