"""The test kit makes namespaces without ip(8). They equal those that ip(8) makes."""

import os
import uuid
from pathlib import Path

import pytest

from fastcni.testing.namespaces import add_netns, delete_netns, ip

pytestmark = pytest.mark.needs("root")


def test_a_namespace_of_the_kit_is_known_to_ip_until_it_is_deleted():
    name, home = f"fcni-kit-{uuid.uuid4().hex[:8]}", os.readlink("/proc/thread-self/ns/net")
    add_netns(name)
    try:
        assert os.readlink("/proc/thread-self/ns/net") == home
        assert name in ip("netns", "list").split()
        assert [line.split(": ")[1] for line in ip("-o", "link", netns=name).splitlines()] == ["lo"]
        with pytest.raises(FileExistsError):
            add_netns(name)
    finally:
        delete_netns(name)
    assert not os.path.exists(f"/run/netns/{name}")
    assert name not in Path("/proc/self/mountinfo").read_text()
    delete_netns(name)          # the test has already deleted this namespace, as some tests do


def test_the_host_of_a_test_has_lo_and_forwards_nothing(host_netns):
    assert "UP" in ip("-o", "link", "show", "lo").split("<")[1].split(">")[0].split(",")
    assert host_netns in ip("netns", "identify").split()
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "0\n"
