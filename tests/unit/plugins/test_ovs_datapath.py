"""ovs on the kernel's datapath. The module runs tests of test_ovs.py and test_ovs_lifecycle.py with another switch."""

import pytest
from lab.openvswitch import Switch, needs_ovs
from unit.plugins.test_ovs import (  # noqa: F401
    test_a_pod_announces_its_addresses_when_its_port_is_up,
    test_a_trunk_carries_its_vlans_tagged_and_drops_others,
    test_add_makes_a_port_as_ovs_cni_does_and_del_leaves_nothing,
    test_pods_of_one_vlan_hear_each_other_and_no_other_vlan,
    test_port_number_type_and_mtu_are_as_asked,
)
from unit.plugins.test_ovs_lifecycle import (  # noqa: F401
    test_a_server_adds_and_deletes_as_one_shot_does,
    test_del_works_if_namespace_or_link_is_gone_and_twice,
    test_del_works_without_vswitchd_and_ports_come_back_with_it,
    test_gc_removes_stale_and_invalid_ports_and_none_of_others,
)

pytestmark = [needs_ovs, pytest.mark.needs("openvswitch")]


@pytest.fixture
def switch(host_netns):
    """Yield a running Open vSwitch. Its bridge br0 uses the kernel's datapath."""
    with Switch("br0", datapath="system") as switch:
        yield switch
