"""Keys of sysctls. fastcni reads them like the reference plugin, otherwise like sysctl(8). A key never leads outside of
net/."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.kit.sysctls import pod_sysctls
from fastcni.spec.errors import CniError


@pytest.mark.parametrize("key, first", [
    ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
    ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
    ("net/ipv4.ip_forward", "net/ipv4/ip_forward"),
    (".net..ipv4.ip_forward", "net/ipv4/ip_forward"),
    ("/net/./ipv4/ip_forward", "net/ipv4/ip_forward"),
    ("net.ipv4.conf.IFNAME.arp_notify", "net/ipv4/conf/eth0.5/arp_notify"),
    ("net/ipv4/conf/IFNAME/arp_notify", "net/ipv4/conf/eth0.5/arp_notify"),
    ("net.ipv4.conf.IFNAME.IFNAME", "net/ipv4/conf/eth0.5/IFNAME"),
])
def test_every_dot_is_a_slash_and_the_first_ifname_is_the_link(key, first):
    assert pod_sysctls.names(key, "eth0.5")[0] == first


@pytest.mark.parametrize("key", ["net/ipv4/conf/eth0.5/forwarding", "net.ipv4.conf.eth0/5.forwarding"])
def test_a_dot_can_belong_to_a_links_name(key):
    assert pod_sysctls.names(key, "eth0") == ["net/ipv4/conf/eth0/5/forwarding", "net/ipv4/conf/eth0.5/forwarding"]


@pytest.mark.parametrize("key", [
    "", ".", "net", "net.", "kernel.hostname", "netx.ipv4", "vm.net.x", "net/../kernel/hostname",
    "net/ipv4/../../kernel/hostname", "../../etc/passwd", "IFNAME", "net/a\0b"])
def test_a_key_that_is_not_below_net_is_refused(key):
    with pytest.raises(CniError) as caught:
        pod_sysctls.names(key, "eth0")
    assert (caught.value.code, caught.value.msg) == (
        7, f'invalid net sysctl key: "{key.replace("IFNAME", "eth0", 1)}"')


@given(st.text(st.sampled_from("net./IFNAME"), max_size=16), st.sampled_from(["eth0", "a..b", "net", "..."]))
def test_no_key_leads_out_of_net(key, ifname):
    try:
        names = pod_sysctls.names("net" + key, ifname)
    except CniError:
        return
    for name in names:
        assert name.startswith("net/") and ".." not in name.split("/")
