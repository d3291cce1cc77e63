"""Commands show the datapath ebpf: list, explain and inspect show its pods, and doctor finds its faults."""

import contextlib
import os

import pytest
from lab.datapath_pods import bpffs, marks  # noqa: F401 - a fixture
from unit.node.conftest import LIST, diagnosed

from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import DIGEST
from fastcni.kit.datapath import filters, maps, pins
from fastcni.kit.datapath.restrict import Restricted
from fastcni.node.checks import datapath as checked
from fastcni.node.own import datapath as own
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import run

pytestmark = marks
PTP = {**LIST, "plugins": [{"type": "ptp", "datapath": "ebpf", "ipam": LIST["plugins"][0]["ipam"]}]}


@pytest.fixture
def pods(host, pod_netns, bpffs):  # noqa: F811
    """Make two pods of the datapath, with the addresses .2 and .3. Return a function that returns the pins'
    directory."""
    host.configure(PTP)
    for number in range(2):
        host.add(f"pod{number}", pod_netns())
    return lambda: wire_call(pins.directory)


def wire_call(do, *more):
    """Return do(socket, *more) with a new netlink socket."""
    with contextlib.closing(wire.open_socket()) as sock:
        return do(sock, *more)


def restrict(*addresses):
    with contextlib.closing(wire.open_socket(12)) as netfilter:         # NETLINK_NETFILTER
        Restricted().put(netfilter, [read_ip(text) for text in addresses])


def finding(fastcni):
    return diagnosed(fastcni)[1].get("datapath")


def test_list_inspect_and_explain_show_the_pods_of_the_datapath(pods, fastcni):
    restrict("10.88.0.3")
    found = {it["containerID"]: it["datapath"] for it in fastcni("list", "--json").document["attachments"]}
    assert found == {"pod0": "redirected", "pod1": "not redirected, because policies restrict the pod"}
    text = fastcni("list").out
    assert "2 in the datapath ebpf, policies restrict 1 of these" in " ".join(text.split())
    for asked in ("10.88.0.2", "pod0"):
        out = fastcni("explain", asked).out
        assert "ebpf: flows with pods of the datapath are redirected" in out and "pods-1  10.88.0.2 redirected" in out
    inspected = " ".join(fastcni("inspect", "pod1").out.split())
    assert "are not redirected, because policies restrict the pod" in inspected


def test_a_pod_of_no_datapath_has_none(host, pod_netns, fastcni, bpffs):  # noqa: F811
    host.add("pod0", pod_netns())
    assert [it["datapath"] for it in fastcni("list", "--json").document["attachments"]] == [None]
    assert "ebpf" not in fastcni("list").out + fastcni("explain", "pod0").out and not finding(fastcni)


def test_doctor_finds_nothing_wrong_with_a_datapath(pods, fastcni):
    assert finding(fastcni) is None


def test_doctor_finds_flows_that_nobody_can_end_and_its_command_mends_that(pods, fastcni):
    """Filters keep their programs and maps in the kernel. Without the pins, the redirection continues, but nothing can
    end a flow."""
    where = pods()
    for name in os.listdir(where):
        os.unlink(f"{where}/{name}")
    os.rmdir(where)
    before = wire_call(filters.linked)
    it = finding(fastcni)
    assert it["severity"] == "error" and "2 links of pods redirect flows" in it["what"]
    assert it["do"] == "fastcni datapath load"
    assert wire_call(own.load, pytest.fail) == 2
    after = wire_call(filters.linked)
    assert after.keys() == before.keys() and not set.union(*before.values()) & set.union(*after.values())
    assert "not in the datapath" in finding(fastcni)["what"]          # only an ADD adds a pod to the new maps


def test_an_add_that_makes_maps_again_ends_the_use_of_the_former_ones(pods, host, pod_netns):
    """Otherwise the earlier programs would redirect flows that policies cannot end."""
    where = pods()
    former = set.union(*wire_call(filters.linked).values())
    os.unlink(f"{where}/flows-1")
    host.add("pod2", pod_netns())
    now = wire_call(filters.linked)
    assert len(now) == 3 and not former & set.union(*now.values())
    assert set.union(*now.values()) == wire_call(checked.own_programs)


def test_doctor_finds_programs_of_another_version(pods, fastcni):
    where = pods()
    for name in filters.PARENTS:
        os.rename(f"{where}/{name}-{DIGEST}", f"{where}/{name}-former")
    wire_call(pins.open_or_load, pytest.fail).__exit__()
    it = finding(fastcni)
    assert it["severity"] == "warning" and "programs of another version of fastcni" in it["what"]
    wire_call(own.load, pytest.fail)
    assert finding(fastcni) is None


def test_doctor_finds_a_link_that_has_lost_its_filters(pods, fastcni):
    name = run("ip", "-o", "route", "get", "10.88.0.3").split(" dev ")[1].split()[0]
    run("tc", "qdisc", "del", "dev", name, "clsact")
    it = finding(fastcni)
    assert f"1 link of pods ({name}) has lost filters" in it["what"] and it["do"] == "fastcni datapath load"


@pytest.mark.parametrize(("name", "key"), [("pods", maps.ADDRESS_BYTES), ("flows", maps.KEY_BYTES)])
def test_doctor_finds_a_map_without_room(pods, fastcni, monkeypatch, name, key):
    sizes = pins.MAPS[name]
    monkeypatch.setitem(pins.MAPS, name, (*sizes[:2], 2))
    if name == "flows":
        with wire_call(pins.open_maps) as opened:
            for number in range(2):
                objects.update(opened.flows, bytes([number]) * key, bytes(maps.FLOW_BYTES))
    assert f"the map of {name} of the datapath ebpf has 2 of 2 elements" in finding(fastcni)["what"]


def test_doctor_finds_a_pod_for_which_the_kernel_refused_the_datapath(host, pod_netns, fastcni, monkeypatch, bpffs):  # noqa: F811
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    host.configure(PTP)
    monkeypatch.setattr(objects, "load", refuse)
    host.add("pod0", pod_netns())
    assert '1 running pod (pod0/eth0) is not in the datapath "ebpf"' in finding(fastcni)["what"]


def test_doctor_says_what_it_may_not_read(pods, fastcni, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(objects, "get", refuse)
    answer = fastcni("doctor", "--json", "--socket", "")
    assert answer.status == 3
    assert any(text.startswith("datapath ebpf: ") for text in answer.document["unseen"])


def test_removal_ends_what_former_maps_redirect(pods):
    where = pods()
    os.unlink(f"{where}/pods-1")
    assert wire_call(own.remove)[0] == 2
    assert not wire_call(filters.linked) and not os.path.exists(where)
