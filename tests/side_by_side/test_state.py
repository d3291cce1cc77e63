"""The state that other tests compare is complete."""

import os

import pytest
from side_by_side.sides import run
from side_by_side.state import IFLA_CONF, link_sysctls, sysctl


@pytest.mark.parametrize("family", IFLA_CONF)
def test_a_change_of_each_sysctl_of_a_link_is_seen(host_netns, family):
    """If an earlier link had the same array, the files are not read. So each change of a file must change the array."""
    run("ip", "link", "add", "v0", "type", "veth", "peer", "v1")
    directory = f"net/{family}/conf"
    changed = 0
    not_writable = {"stable_secret", "mc_forwarding"}
    for name in sorted({*os.listdir(f"/proc/sys/{directory}/v0")} - not_writable):
        value = link_sysctls()[directory]["v0"][name]
        assert value == sysctl(f"{directory}/v0/{name}")
        if other := write_another(f"/proc/sys/{directory}/v0/{name}", value):
            assert link_sysctls()[directory]["v0"][name] == other, name
            changed += 1
    assert changed > 25


def write_another(path, value):
    """Write another value that the kernel accepts. Return the value as read afterwards, or "" if there is none."""
    for other in (int(value) + 1, int(value) - 1, 0, 1, 2, 100, 1280):
        try:
            with open(path, "w") as file:
                file.write(str(other))
        except OSError:
            continue
        with open(path) as file:
            if (now := file.read().strip()) != value:
                return now
    return ""
