"""Commands show the agent's flowtable: list, inspect, explain, `datapath status` and `why`."""

import contextlib

import pytest
from lab.datapath_pods import Tcp
from unit.node.conftest import LIST

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.ports import Port
from fastcni.agent.run import remove_policies
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

needs_flowtable = pytest.mark.needs("nft-flowtable")


@pytest.fixture
def spaces(host, pod_netns):
    """Return the namespaces of two pods of ptp: pod0 with the address .2, pod1 with .3."""
    host.configure({**LIST, "plugins": [{"type": "ptp", "ipam": LIST["plugins"][0]["ipam"]}]})
    found = pod_netns(), pod_netns()
    for number, space in enumerate(found):
        host.add(f"pod{number}", space)
    return found


def link_to(address):
    return run("ip", "-o", "route", "get", address).split(" dev ")[1].split()[0]


def test_list_inspect_and_explain_show_the_pods_in_the_flowtable(spaces, fastcni):
    def shown():
        return {it["containerID"]: it["flowtable"] for it in fastcni("list", "--json").document["attachments"]}

    assert shown() == {"pod0": False, "pod1": False}
    assert "flowtable" not in fastcni("list").out + fastcni("explain", "pod1").out
    link = link_to("10.88.0.3")
    # Each kernel has this set, which is next to the flowtable. No link deleted0 exists.
    run("nft", f"table inet fastcni-flowtable {{ set links {{ type ifname; elements = {{ {link}, deleted0 }}; }}; }}")
    assert shown() == {"pod0": False, "pod1": True}
    text = " ".join(fastcni("list").out.split())
    assert "2 running; 1 in the agent's flowtable" in text and "of no attachment" not in text
    for command in ("inspect", "explain"):
        out = fastcni(command, "pod1").out
        assert "flowtable   established connections with pods of the agent's flowtable" in out
        assert f"nftables inet fastcni-flowtable links  {link}" in out


@needs_flowtable
def test_status_counts_the_connections_in_the_flowtable_and_why_says_who_uses_it(spaces, fastcni):
    assert fastcni("datapath", "status", "--json").document["flowtable"] is None
    with contextlib.closing(Engine(AttachedCompiler(), offload=True)) as engine:
        for number in (0, 1):
            address = f"10.88.0.{number + 2}"
            port = Port(link_to(address), False, bytes(6))
            engine.compiler.attach(Attachment(("net", address, "eth0"), f"default/pod{number}", {}, (read_ip(address),),
                                              number, port))
        engine.load()
        engine.commit()
        with Tcp(*spaces, "10.88.0.3", 80) as tcp:
            tcp.there_and_back(5)
            assert eventually(lambda: fastcni("datapath", "status", "--json").document["flowtable"] == {
                "links": 2, "connections": 1})
            assert "flowtable of the agent: 1 connection between pods at 2 links" in fastcni("datapath", "status").out
            found = fastcni("why", "pod0", "10.88.0.3:80", "--json")
            assert found.status == 0 and found.document["flowtable"]
            assert "the agent's flowtable takes the connection" in fastcni("why", "pod0", "10.88.0.3:80").out
    remove_policies()
    assert not fastcni("why", "pod0", "10.88.0.3:80", "--json").document["flowtable"]


@needs_flowtable
def test_status_leaves_out_the_connections_in_the_flowtable_of_another_program(spaces, fastcni):
    """conntrack marks the connections in all flowtables. Once, `datapath status` also counted connections in another
    program's flowtable."""
    first, second = map(link_to, ("10.88.0.2", "10.88.0.3"))
    run("nft", f"""
    table inet fastcni-flowtable {{ set links {{ type ifname; elements = {{ {first} }}; }}; }}
    table inet other {{
        flowtable f {{ hook ingress priority filter; devices = {{ {first}, {second} }}; }}
        chain forward {{ type filter hook forward priority filter; ct state established flow add @f; }}
    }}""")
    with Tcp(*spaces, "10.88.0.3", 80) as tcp:
        tcp.there_and_back(5)
        assert eventually(lambda: "OFFLOAD" in run("cat", "/proc/net/nf_conntrack"))
        assert fastcni("datapath", "status", "--json").document["flowtable"] == {"links": 1, "connections": 0}
