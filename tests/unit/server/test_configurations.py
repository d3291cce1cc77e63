"""The server decodes a configuration once for all pods of its network."""

import gc
import json

import pytest

from fastcni.server.requests import configurations as module
from fastcni.server.requests.configurations import Configurations
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError


def decoded(configurations, **keys):
    return configurations.decode(json.dumps({"name": "net", "type": "bridge", **keys}).encode())


def test_the_shared_part_of_a_configuration_is_read_once():
    """In a DEL's configuration, only prevResult belongs to one pod. All pods share the values that plugins read from
    the other keys."""
    configurations, asked = Configurations(), []

    def read(section):
        asked.append(section)
        return section.integer("mtu")

    sections = [decoded(configurations, mtu=1400, prevResult={"ips": [number]}) for number in range(3)]
    assert [section.once(read) for section in sections] == [1400] * 3
    assert [section.raw("prevResult") for section in sections] == [{"ips": [number]} for number in range(3)]
    assert len(asked) == 1 and not asked[0].has("prevResult")
    assert decoded(configurations, mtu=1500, prevResult={}).common is not sections[0].common


def test_the_same_bytes_are_decoded_once_and_the_oldest_are_forgotten():
    configurations = Configurations()
    first = decoded(configurations)
    assert decoded(configurations) is first
    for number in range(module.MAX_KNOWN):
        decoded(configurations, mtu=number)
    assert len(configurations.known) == module.MAX_KNOWN and decoded(configurations) is not first


def test_a_long_configuration_is_decoded_each_time():
    configurations = Configurations()
    section = decoded(configurations, prevResult={}, x="a" * module.MAX_BYTES)
    assert section.common is section and not configurations.known


@pytest.mark.parametrize("one, other", [(1, True), (1, 1.5), (1 << 70, 1 << 71), ("1", 1)])
def test_other_values_are_another_configuration(one, other):
    configurations = Configurations()
    first, second, again = (decoded(configurations, prevResult={}, mtu=mtu) for mtu in (one, other, one))
    assert first.common is again.common is not second.common


def test_a_section_is_freed_with_its_last_reference():
    """Once, a section had a reference to itself. So the garbage collector had to free a dozen sections for each
    request."""
    configurations = Configurations()
    for section in (Section({"name": "net"}), decoded(configurations, prevResult={})):
        assert section not in gc.get_referents(section)


@pytest.mark.parametrize("document, name", [({"name": "net"}, "net"), ({"Name": "net"}, "net"), ({"name": 5}, ""),
                                            ({}, "")])
def test_a_request_gets_its_network_and_the_error_of_its_configuration(document, name):
    stdin = json.dumps({"type": "bridge", **document}).encode()
    network, decode = Configurations().read(stdin)
    assert network == name
    if name:
        assert decode(stdin).text("type") == "bridge"
    else:
        with pytest.raises(CniError):
            decode(stdin)
