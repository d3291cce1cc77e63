"""The datapath "ebpf" of ptp while flows run: new programs, missing filters, many ADDs and DELs, and removal."""

import contextlib
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from lab.datapath_pods import COUNTER, Tcp, Udp, forwarded, host_end, kernel_flows, marks, pods_in_map
from lab.node import cid_of, links, run
from unit.server.client import Server

from fastcni.kernel import wire
from fastcni.kernel.bpf.redirect_programs import DIGEST
from fastcni.kit.datapath import filters, maps, pins, redirect
from fastcni.launcher.install import install
from fastcni.node.own import datapath as own

pytestmark = marks
CHURNED = int(os.environ.get("FASTCNI_CHURNED", "12"))


def test_removal_leaves_links_that_pass_packets_through_the_host(datapath_pods, bpffs):
    run("nft", "table inet strict { chain forward { type filter hook forward priority 1; ct state invalid drop; "
        "ct state established accept; ip saddr 10.22.0.3 drop; ip6 saddr fd00:22::3 drop; }; }")
    with Tcp(*datapath_pods, "10.22.0.3") as tcp, Tcp(*datapath_pods, "fd00:22::3") as other:
        for each in (tcp, other):
            each.there_and_back()
        with contextlib.closing(wire.open_socket()) as sock:
            links, flows = own.remove(sock)
            assert links == 2 and flows >= 2
            assert own.remove(sock) == (0, 0) and own.pinned(sock) == []
        assert not [name for name in os.listdir(bpffs) if name.startswith("fastcni")]
        before = forwarded()
        for each in (tcp, other):
            each.server.sendall(b"the server speaks first")
            assert each.client.recv(100) == b"the server speaks first"
            each.there_and_back(3, size=100_000)
        assert forwarded() > before


def test_programs_are_replaced_while_flows_run(datapath_pods, bpffs):
    """The programs of an earlier version have pins with other names. load() removes these pins."""
    with Tcp(*datapath_pods, "10.22.0.3") as tcp, contextlib.closing(wire.open_socket()) as sock:
        tcp.there_and_back()
        where = pins.directory(sock)
        for name in filters.PARENTS:
            os.rename(f"{where}/{name}-{DIGEST}", f"{where}/{name}-former")
        before = program_ids()
        assert own.load(sock, pytest.fail) == 2
        assert not {*program_ids().values()} & {*before.values()}
        assert sorted(os.listdir(where)) == sorted([f"from_pod-{DIGEST}", f"to_pod-{DIGEST}", "pods-1", "flows-1"])
        forwarded_before = forwarded()
        tcp.there_and_back(5)
        assert forwarded() == forwarded_before


def test_a_link_gets_lost_filters_again_and_the_host_sees_its_flows(datapath_pods):
    """While the link had no filters, a policy may have begun to forbid the flows. So the host must see their next
    packets."""
    with Tcp(*datapath_pods, "10.22.0.3") as tcp, contextlib.closing(wire.open_socket()) as sock:
        tcp.there_and_back()
        run("tc", "qdisc", "del", "dev", host_end(), "clsact")
        assert own.load(sock, pytest.fail) == 2 and len(program_ids()) == 4
        before = forwarded()
        tcp.there_and_back(2)
        assert forwarded() > before and not [flow for flow in kernel_flows() if flow.protocol == maps.IPPROTO_TCP]
        with Udp(*datapath_pods, "10.22.0.3", 5004) as udp:
            udp.there_and_back(2)
            assert [flow for flow in kernel_flows() if 5004 in flow.ports]


def test_flows_outlive_a_killed_server_and_its_pods_are_deleted_without_one(node, datapath_conf, pod_netns, bpffs,
                                                                            tmp_path):
    """The server runs in a mount namespace that has the test's bpffs at /sys/fs/bpf."""
    inside = ("unshare", "--mount", "sh", "-c", f'mount --bind {bpffs} /sys/fs/bpf && exec "$0" "$@"')
    pods = [pod_netns() for _ in range(3)]
    with Server(tmp_path, before=inside) as server:
        install(tmp_path / "bin")
        server.cni_path = str(tmp_path / "bin")
        for pod in pods[:2]:
            server.ok("ADD", datapath_conf, pod, cid=cid_of(pod))
        with Udp(*pods[:2], "10.22.0.3", 4999) as udp:
            udp.there()
        run("nft", COUNTER)
        with Tcp(*pods[:2], "10.22.0.3") as tcp:
            tcp.there_and_back()
            before = forwarded()
            server.process.kill()
            server.process.wait()
            tcp.there_and_back(50)
            assert forwarded() == before
            node.add(datapath_conf, pods[2])            # without the server
            with Tcp(pods[0], pods[2], "10.22.0.4") as other:
                other.there_and_back()
                assert len([flow for flow in kernel_flows() if flow.protocol == 6]) == 2
        for pod in pods:
            node.delete(datapath_conf, pod)
        assert pods_in_map() == {}


def program_ids():
    """Return {(link, direction): [ids of the programs in cls_bpf filters]}."""
    return {(name, way): tuple(re.findall(r" id (\d+)", run("tc", "filter", "show", "dev", name, way)))
            for name in links() if name.startswith("veth") for way in ("ingress", "egress")
            if " id " in run("tc", "filter", "show", "dev", name, way)}


def test_churn_and_new_programs_lose_no_packet_of_a_flow_and_leave_nothing(datapath_pods, node, datapath_conf, pod):
    """The test replaces the programs three times while it adds and deletes pods and datagrams go in both directions.
    FASTCNI_CHURNED: the number of pods, for example 2000."""
    def churn():
        for number in range(CHURNED):
            node.add(datapath_conf, pod)
            if number % (CHURNED // 3) == 0:
                with contextlib.closing(wire.open_socket()) as sock:
                    for name in filters.PARENTS:
                        os.rename(f"{pins.directory(sock)}/{name}-{DIGEST}", f"{pins.directory(sock)}/{name}-former")
                    assert own.load(sock, pytest.fail) == 3
            node.delete(datapath_conf, pod)

    with Udp(*datapath_pods, "10.22.0.3", 5005) as udp, Tcp(*datapath_pods, "fd00:22::3") as tcp:
        udp.there_and_back()
        tcp.there_and_back()
        before, kept = forwarded(), pods_in_map()
        with ThreadPoolExecutor(1) as pool:
            churning, sent = pool.submit(churn), 0
            while not churning.done() or sent < 100:
                udp.there_and_back()            # there_and_back() fails if a datagram does not arrive
                tcp.there_and_back()
                sent += 2
            churning.result()
        assert pods_in_map() == kept
        assert forwarded() - before < sent      # the programs let the host see one UDP packet per direction in 10 s
    for each in datapath_pods:
        node.delete(datapath_conf, each)
    with contextlib.closing(wire.open_socket()) as sock:
        redirect.sweep(sock)
        assert pods_in_map() == {} and kernel_flows() == [] and not filters.linked(sock)
