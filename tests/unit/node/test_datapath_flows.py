"""`datapath status` and `why` show flows that the datapath ebpf redirects, with the names of pods."""

import pytest
from lab.datapath_pods import Tcp, Udp, bpffs, kernel_flows, marks, opened_maps  # noqa: F401 - a fixture
from unit.node.test_datapath import PTP, restrict

from fastcni.kernel.bpf import objects
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

pytestmark = marks
DROP = """table inet hand { chain forward { type filter hook forward priority 0;
    ct state established accept; tcp dport 80 drop; }; }"""


@pytest.fixture
def spaces(host, pod_netns, bpffs):  # noqa: F811
    """Return the namespaces of two pods of the datapath: pod0 with the address .2, pod1 with .3. Both links are up, and
    no flow exists."""
    host.configure(PTP)
    found = pod_netns(), pod_netns()
    for number, space in enumerate(found):
        host.add(f"pod{number}", space)
    with Udp(*found, "10.88.0.3", 4999) as udp:
        udp.there()
    with opened_maps() as opened:
        for flow in kernel_flows():
            objects.delete(opened.flows, flow.key)
    return found


def test_status_sums_the_flows_of_each_two_pods_by_their_names(spaces, fastcni):
    with Udp(*spaces, "10.88.0.3", 5000) as one, Udp(*reversed(spaces), "10.88.0.2", 5001) as other:
        one.there_and_back(6)
        other.there_and_back(3)
        found = fastcni("datapath", "status", "--json").document
        [pair] = found["pairs"]
        assert pair["pods"] == ["pod0", "pod1"] and pair["flows"] == 2
        # Of one flow, 5 packets are redirected in each direction; of the other, 2. The sums are the same for whichever
        # pod began the flow.
        assert pair["packets"] == [7, 7]
        assert pair["bytes"] == [sum(flow["bytes"][flow["names"].index(name)] for flow in found["flows"])
                                 for name in pair["pods"]]
        assert "  pod0 and pod1: 2 flows, 7 and 7 packets" in fastcni("datapath", "status").out


def test_status_shows_the_address_of_a_pod_that_no_cache_names(spaces, fastcni, directories):
    with Udp(*spaces, "10.88.0.3") as udp:
        udp.there_and_back(2)
        for file in (directories.cache / "results").glob("*pod1*"):
            file.unlink()
        assert fastcni("datapath", "status", "--json").document["pairs"][0]["pods"] == ["10.88.0.3", "pod0"]
        assert "  10.88.0.3 and pod0: 1 flow, 1 and 1 packets" in fastcni("datapath", "status").out


def test_why_says_that_a_connection_is_redirected_and_counts_the_others(spaces, fastcni):
    with Tcp(*spaces, "10.88.0.3") as tcp:
        tcp.there_and_back(3)
        [before] = kernel_flows()
        found = fastcni("why", "pod0", "10.88.0.3:80", "--json")
        assert found.status == 0 and found.document["hops"][-1]["ok"]
        redirect = found.document["datapath"]
        assert (redirect["redirected"], redirect["why"], redirect["flows"]) == (True, "", 1)
        [after] = [flow for flow in kernel_flows() if flow.key == before.key]
        for key in ("packets", "bytes"):            # a late acknowledgement may increase the count
            first, last = getattr(before, key), getattr(after, key)
            assert all(low <= count <= high for low, count, high in zip(first, redirect[key], last, strict=True))
        tcp.listener.accept()[0].close()
        assert eventually(lambda: len(kernel_flows()) == 1)
        text = " ".join(fastcni("why", "pod0", "10.88.0.3:80").out.split())
        assert "the datapath ebpf redirects the connection: packets after the first ones skip the node's hops" in text
        assert "redirects 1 other connection to this port, past the node's hops" in text
        assert f"{after.packets[0]} and {after.packets[1]} packets, {after.bytes[0]} and {after.bytes[1]} bytes" in text


def test_why_finds_a_rule_although_the_last_connection_was_redirected(spaces, fastcni):
    """For a second after a connection, the datapath redirects the next connection from its first packet on. Once, `why`
    reported that the pods reach each other, but a later connection failed."""
    with Tcp(*spaces, "10.88.0.3") as tcp:
        tcp.there_and_back()
        run("nft", DROP)
        found = fastcni("why", "pod0", "10.88.0.3:80", "--json")
        assert found.status == 1 and found.document["ends"]["hop"] == "forward chains"
        tcp.there_and_back(2)
        assert found.document["datapath"]["flows"] == 1 and not found.document["datapath"]["redirected"]
        assert "the datapath ebpf redirects 1 other connection to this port" in fastcni(
            "why", "pod0", "10.88.0.3:80").out


def test_why_follows_a_datagram_and_leaves_no_flow_of_it(spaces, fastcni):
    with Udp(*spaces, "10.88.0.3", 5000) as udp:
        udp.there_and_back(2)
        found = fastcni("why", "--udp", "pod0", "10.88.0.3:5000", "--json")
        assert found.status == 0, found.out
        assert found.document["datapath"]["redirected"] and found.document["datapath"]["flows"] == 1
        assert [flow.ports[0] for flow in kernel_flows()] == [udp.client.getsockname()[1]]


def restricted(host):
    restrict("10.88.0.3")
    return "a policy restricts pod pod1"


def without_filters(host):
    name = run("ip", "-o", "route", "get", "10.88.0.3").split(" dev ")[1].split()[0]
    run("tc", "qdisc", "del", "dev", name, "clsact")
    return f"{name} has lost its filters; `fastcni datapath load` adds them again"


@pytest.mark.parametrize("prevent", [restricted, without_filters])
def test_why_says_why_a_connection_is_not_redirected(spaces, host, fastcni, prevent):
    why = prevent(host)
    with Tcp(*spaces, "10.88.0.3"):
        found = fastcni("why", "pod0", "10.88.0.3:80", "--json")
        assert found.status == 0
        assert found.document["datapath"] == {"redirected": False, "why": why, "flows": 0, "packets": [0, 0],
                                              "bytes": [0, 0]}
        text = fastcni("why", "pod0", "10.88.0.3:80").out
        assert f"the datapath ebpf does not redirect the connection: {why}" in text


def test_why_says_nothing_of_the_datapath_if_one_end_is_no_pod_of_it(spaces, fastcni):
    with Tcp(*spaces, "10.88.0.3"):
        found = fastcni("why", "10.88.0.1", "10.88.0.3:80", "--json")
        assert found.status == 0 and found.document["datapath"] is None
        assert "ebpf" not in fastcni("why", "10.88.0.1", "10.88.0.3:80").out


def test_uninstall_removes_pins_and_filters_while_connections_go_on(spaces, fastcni, tmp_path, bpffs):  # noqa: F811
    where = ["--bin-dir", tmp_path / "bin", "--unit-dir", tmp_path / "units", "--socket", ""]
    (tmp_path / "bin").mkdir()
    [pins] = bpffs.glob("fastcni-*")
    with Tcp(*spaces, "10.88.0.3") as tcp:
        tcp.there_and_back(2)
        run("nft", DROP)                # this rule drops packets of connections that conntrack does not know
        planned = fastcni("uninstall", "--dry-run", *where, "--json").document
        assert str(pins) in planned["state"]["removed"] and pins.exists() and kernel_flows()
        done = fastcni("uninstall", *where)
        assert done.status == 0 and str(pins) in "".join(done.out.split()), done.out
        assert not pins.exists()
        assert "clsact" not in run("tc", "qdisc", "show") and "fastcni" not in run("ip", "-o", "link", "show")
        tcp.there_and_back(2)
    assert fastcni("uninstall", *where).out.count("fastcni-") == 0
    assert fastcni("datapath", "status").out == "no pod of this node has had the datapath ebpf\n"
