"""Prefixes that a pod may send from (allowedAddressPairs), and egress addresses. Needs root."""


import pytest
from unit.agent.egress.test_objects import document
from unit.agent.policy.frames import ipv4, ipv6, udp
from unit.agent.policy.pods import ADDRESSES, mac_of_pod
from unit.agent.policy.test_ports import site  # noqa: F401 - fixture
from unit.agent.policy.test_service import Running

from fastcni.testing.witnesses import eventually


@pytest.mark.parametrize("name", "ad")
def test_a_prefix_is_closed_while_the_pod_has_an_egress_address_of_its_family(site, name):        # noqa: F811
    """Once, packets from the prefix left with the node's address, because the egress address applied only to the pod's
    single addresses."""
    own, gateway = mac_of_pod(name), site.gateway_mac(name)
    sent = {"IPv4": ipv4(own, "10.9.8.7", ADDRESSES["c"][0], udp(), to=gateway),
            "IPv6": ipv6(own, "fd00:9::7", ADDRESSES["c"][1], udp(), to=gateway)}
    pairs = {"allowedAddressPairs": [{"ipAddress": "10.9.0.0/16"}, {"ipAddress": "fd00:9::/64"}]}
    site.pod(name, **pairs)
    assert site.arrived(sent, name, "c", "b") == set(sent)
    Running.write(site, document())
    assert eventually(lambda: site.arrived(sent, name, "c", "b") == {"IPv6"})
    site.pod(name, **pairs)
    assert site.arrived(sent, name, "c", "b") == {"IPv6"}
    site.write()
    assert eventually(lambda: site.arrived(sent, name, "c", "b") == set(sent))
