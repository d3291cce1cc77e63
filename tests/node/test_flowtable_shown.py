"""Commands of a node show the agent's flowtable: `datapath status` and `why`."""

import contextlib

import pytest
from node.conftest import LIST
from real_kernel.datapath_pods import Tcp

from fastcni.agent.policy.attached import AttachedCompiler, Attachment
from fastcni.agent.policy.engine import Engine
from fastcni.agent.policy.ports import Port
from fastcni.agent.run import remove_policies
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import needs_root, run
from fastcni.testing.witnesses import eventually

pytestmark = [needs_root, pytest.mark.needs("nft-flowtable")]


def test_status_counts_the_connections_in_the_flowtable_and_why_says_who_uses_it(host, pod_netns, fastcni):
    host.configure({**LIST, "plugins": [{"type": "ptp", "ipam": LIST["plugins"][0]["ipam"]}]})
    spaces = pod_netns(), pod_netns()
    for number, space in enumerate(spaces):
        host.add(f"pod{number}", space)
    assert fastcni("datapath", "status", "--json").document["flowtable"] is None
    with contextlib.closing(Engine(AttachedCompiler(), offload=True)) as engine:
        for number in (0, 1):
            address = f"10.88.0.{number + 2}"
            link = run("ip", "-o", "route", "get", address).split(" dev ")[1].split()[0]
            engine.compiler.attach(Attachment(("net", address, "eth0"), f"default/pod{number}", {}, (read_ip(address),),
                                              number, Port(link, False, bytes(6))))
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
