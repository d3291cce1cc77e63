"""Names of sysctls may have either separator, "." or "/". No name leads to a path outside of /proc/sys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.kernel import sysctl


@pytest.mark.parametrize("name, path", [
    ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
    ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
    ("net.ipv4.conf.eth0/100.forwarding", "net/ipv4/conf/eth0.100/forwarding"),
    ("net/ipv4/conf/eth0.100/forwarding", "net/ipv4/conf/eth0.100/forwarding"),
    ("/net/ipv4/ip_forward", "net/ipv4/ip_forward"),
])
def test_the_separator_that_comes_first_is_the_separator(name, path):
    assert sysctl.path(name) == "/proc/sys/" + path


@pytest.mark.parametrize("name", ["", "net/../../etc/passwd", "/../x", "net.//.x", "net/ipv4\0x"])
def test_a_name_that_leads_out_is_refused(name):
    with pytest.raises(ValueError, match="not a sysctl name"):
        sysctl.path(name)


@given(st.text(st.sampled_from("a./\\"), max_size=12))
def test_no_name_leads_out(name):
    try:
        path = sysctl.path(name)
    except ValueError:
        return
    assert path.startswith("/proc/sys/") and ".." not in path.split("/")
